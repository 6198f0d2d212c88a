"""``lipcert models``: the named architectures and their fields, and the trained networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

RADII = ("36/255", "72/255", "108/255", "1")
LEGEND = """Parameters are for 3×32×32 images and 10 classes; sll_table is for 16 columns.
Convolutions: number × channels·neurons per pixel. Dense: number × inputs·neurons.
A name starts with the method, see docs/layers.md and docs/results.md.
`lipcert models NAME` shows all fields of one architecture."""


@dataclass(frozen=True)
class Models:
    """List the named architectures, or all fields of one for --overrides."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A name or a shell pattern, such as 'sll*'."""
    pretrained: bool = False
    """List the trained networks instead, and where they are."""
    zoo: Path | None = None
    """Folder of trained networks. None means $LIPCERT_ZOO, the package and its checkout."""
    json: bool = False
    """Print parameters and fields as JSON instead of tables."""

    def run(self) -> int:
        if self.pretrained:
            return self.list_pretrained()
        if self.zoo is not None:
            raise ValueError("--zoo is for --pretrained. Add it, or leave --zoo out.")
        from lipcert.cli.common import emit, make_table
        from lipcert.errors import suggest
        from lipcert.models.build import parameters
        from lipcert.models.pieces import changes_width
        from lipcert.models.presets import list_models, model_spec

        names = list_models(self.pattern)
        if not names:
            guess = suggest(self.pattern, list_models())
            raise ValueError(f"no model matches {self.pattern!r}{guess} Run lipcert models to list all of them.")
        record: dict[str, dict[str, Any]] = {}
        groups: dict[str, list[tuple[str, int, list[str]]]] = {}
        for name in names:
            spec = model_spec(name)
            count = parameters(spec)
            record[name] = {"parameters": count, **spec.model_dump(mode="json")}
            hidden = "" if changes_width(spec) else f"·{spec.conv_hidden}"
            row = [
                name,
                f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k",
                f"{spec.conv_layers} × {spec.channels}{hidden}",
                f"{spec.dense_layers} × {spec.features}·{spec.dense_hidden}" if spec.dense_layers else "–",
            ]
            small = (
                "Small, for a CPU"
                if name.endswith(("nano", "tiny", "table", "deep", "deep64", "dense"))
                else "The sizes of the paper"
            )
            title = small if spec.layout == "flat" else "Rivals as published"
            groups.setdefault(title, []).append((spec.method, count, row))
        tables = [
            make_table(title, ["name", "parameters", "convolutions", "dense"], [row for *_, row in sorted(rows)])
            for title, rows in groups.items()
        ]
        if len(names) == 1:
            about = type(spec).model_fields
            fields = [[name, str(value), about[name].description or ""] for name, value in spec]
            header = ["field", "value", "meaning"]
            tables.append(make_table("Fields for lipcert train --overrides FIELD=VALUE", header, fields, "left"))
        emit(record, self.json, *tables, LEGEND)
        return 0

    def list_pretrained(self) -> int:
        import fnmatch

        from lipcert.cli.common import emit, make_table
        from lipcert.zoo import list_pretrained, places, read_entry

        found = {
            name: folder
            for name, folder in list_pretrained(self.zoo).items()
            if fnmatch.fnmatch(name, self.pattern)
        }
        if not found:
            where = ", ".join(map(str, places(self.zoo)))
            raise ValueError(f"no trained network matches {self.pattern!r} in {where}. Name a folder with --zoo.")
        record, rows = {}, []
        for name, folder in found.items():
            entry = read_entry(folder)
            assert entry is not None
            record[name] = {**entry.model_dump(mode="json"), "folder": str(folder)}
            shares = [entry.natural, *(entry.certified.get(radius) for radius in RADII)]
            shown = ["–" if share is None else f"{100 * share:.1f}" for share in shares]
            rows.append([name, entry.model, f"{entry.parameters / 1e6:.1f} M", *shown])
        header = ["name", "model", "parameters", "natural", *RADII]
        table = make_table("Trained networks: certified accuracy within an L2 radius (%)", header, rows)
        emit(record, self.json, table, "\n".join(f"{name}: {folder}" for name, folder in found.items()))
        return 0
