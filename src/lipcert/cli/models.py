"""``lipcert models``: the named architectures, how many parameters they have, and the fields of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Models:
    """List the architectures; of one alone, every field for --overrides."""

    pattern: Annotated[str, tyro.conf.Positional] = "*"
    """A shell pattern, such as 'sll*'."""
    json: bool = False
    """Print parameters and fields as JSON instead of tables."""

    def run(self) -> int:
        import json

        import torch
        from rich.console import Console
        from rich.table import Table

        from lipcert.models.build import build
        from lipcert.models.pieces import changes_width
        from lipcert.models.presets import list_models, model_spec

        names = list_models(self.pattern)
        if not names:
            raise ValueError(f"no model matches {self.pattern!r}; got none of {len(list_models())}. Try '*'.")
        table = Table(title="Models, with parameters for 3×32×32 images and 10 classes")
        for column in ("name", "parameters", "convolutions", "dense"):
            table.add_column(column, justify="left" if column == "name" else "right")
        fields_of = {}
        for name in names:
            spec = model_spec(name)
            with torch.device("meta"):
                count = sum(p.numel() for p in build(spec).parameters())
            fields_of[name] = {"parameters": count, **spec.model_dump(mode="json")}
            hidden = "" if changes_width(spec) else f"·{spec.conv_hidden}"
            dense = f"{spec.dense_layers} × {spec.features}·{spec.dense_hidden}" if spec.dense_layers else "–"
            table.add_row(
                name,
                f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k",
                f"{spec.conv_layers} × {spec.channels}{hidden}",
                dense,
            )
        if self.json:
            print(json.dumps(fields_of, indent=2))
            return 0
        console = Console()
        console.print(table)
        if len(names) == 1:
            fields = Table("field", "value", "what it is", title="lipcert train --overrides FIELD VALUE …")
            about = type(spec).model_fields
            for field, value in spec.model_dump().items():
                fields.add_row(field, str(value), about[field].description or "")
            console.print(fields)
        return 0
