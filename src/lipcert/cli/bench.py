"""``lipcert bench``: what named networks cost on this machine, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Bench:
    """Measure networks on this machine: a training step, and inference when frozen.

    CPU time, all networks in turn, the minimum of the repeats.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")] = (
        "sll_tiny",
        "aol_tiny",
    )
    """Names from `lipcert models`; the first is what the others are compared with."""
    image_shape: tuple[int, int, int] = (3, 32, 32)
    """Channels, height and width of random images."""
    classes: int = 10
    """Number of classes."""
    batch_size: int = 64
    """Images in a batch."""
    repeats: int = 5
    """Timed repeats, after one warm-up."""
    threads: int = 1
    """Number of torch threads. CPU time is summed over threads."""
    json: bool = False
    """Print the figures as JSON instead of a table."""

    def run(self) -> int:
        import platform

        import torch

        from lipcert.certified.freeze import freeze
        from lipcert.cli.common import emit, make_table
        from lipcert.data.dataset import ImageData
        from lipcert.errors import positive_int
        from lipcert.experiments.cost import inference_seconds, step_seconds
        from lipcert.models.build import build
        from lipcert.models.presets import model_spec
        from lipcert.training.config import TrainConfig
        from lipcert.training.loop import spec_of

        for name in ("classes", "batch_size", "repeats", "threads"):
            positive_int(f"--{name.replace('_', '-')}", getattr(self, name))
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"name at least one model, and each of them once, got {list(self.models)}.")
        for model in self.models:
            model_spec(model)
        for size in self.image_shape:
            positive_int("--image-shape", size)
        chance = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (self.batch_size, *self.image_shape), generator=chance, dtype=torch.uint8)
        labels = torch.randint(0, self.classes, (self.batch_size,), generator=chance)
        data = ImageData(images, labels, tuple(map(str, range(self.classes))), "random", "train")
        configs = {name: TrainConfig(model=name, batch_size=self.batch_size) for name in self.models}
        networks = {name: build(spec_of(config, data)) for name, config in configs.items()}
        both = {name: (config, data) for name, config in configs.items()}
        steps = step_seconds(both, self.repeats, self.threads)
        frozen = {name: freeze(network) for name, network in networks.items()}
        still = inference_seconds(frozen, images.float() / 255, self.repeats, self.threads)
        counts = {name: sum(p.numel() for p in networks[name].parameters()) for name in self.models}
        machine = f"{platform.machine()}, torch {torch.__version__}"
        record = {
            "machine": machine,
            "threads": self.threads,
            "batch_size": self.batch_size,
            "image_shape": self.image_shape,
            "rows": [
                {
                    "model": name,
                    "parameters": counts[name],
                    "step_seconds": steps[name],
                    "inference_seconds": still[name],
                }
                for name in self.models
            ],
        }
        first = self.models[0]
        lines = [
            [
                name,
                f"{counts[name] / 1e6:.2f} M",
                f"{1000 * steps[name]:.4g} ms",
                f"{steps[name] / steps[first]:.2f}",
                f"{1000 * still[name]:.4g} ms",
                f"{still[name] / still[first]:.2f}",
            ]
            for name in self.models
        ]
        shape = "×".join(map(str, self.image_shape))
        header = ["model", "parameters", "step", "ratio", "frozen", "ratio"]
        table = make_table(f"CPU time for {self.batch_size} images of {shape}", header, lines)
        emit(record, self.json, table, f"{machine}, threads: {self.threads}. Ratios are to {first}.")
        return 0
