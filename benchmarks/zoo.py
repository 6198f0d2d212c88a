"""Which trained networks come with lipcert? Make the folder of one from a run: half precision, certificate, card.

Matrices of the trained network are rounded to float16, and everything after that is about the rounded network: it
is frozen, proved and certified on the complete test set, whose shares go into zoo.json and the card. Images take
room, so the certificate in the folder is about the first --examples of them; the checker must accept it.

Run: python benchmarks/zoo.py RUN --name cifar10 --examples 500       (writes zoo/cifar10 and zoo/README.md)
     python benchmarks/zoo.py RUN --name digits --out src/lipcert/zoo
     python benchmarks/zoo.py                                         (zoo/README.md and the cards alone)
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

import torch

import lipcert as lc
from lipcert.certified.certificate import halved, write_certificate
from lipcert.certified.certify import certify
from lipcert.certified.freeze import prove
from lipcert.certified.records import describe
from lipcert.exporters.files import Certificate, write_network
from lipcert.exporters.hub import RADII, model_card
from lipcert.files import write_text
from lipcert.reports.commands import train_command
from lipcert.zoo import FILE, HERE, Entry, list_pretrained, read_entry

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = """\
## The complete test set

Accuracy of this network on all {examples:,} test images, and how many of them are certified within more than the
radius (%), by `python benchmarks/zoo.py RUN --name {name}`. The certificate here is about {count:,} of them.

| natural | {radii} |
|{rule}
| {natural} | {shares} |

## How it was trained

`{model}`{overrides}, {parameters:,} parameters{minutes}. Its matrices were then rounded to float16.

```text
{command}
```

## Check it

```text
python src/lipcert/check.py {folder}/certificate.json
```

The checker needs numpy alone and trusts nothing else in this folder. It proves the constant of every layer,
evaluates every listed input and recomputes every radius.

## Use it

```python
import lipcert as lc

network = lc.create_model("{model}", pretrained="{name}")
logits = network(images)  # (N, {{shape}}), float32
```

The classes are {classes}. Images belong to their data set, {data}."""
README = """\
# Trained networks with certificates

```text
python benchmarks/zoo.py RUN --name NAME --examples 500    # makes zoo/NAME from a run folder, and this page
```

`lc.create_model(MODEL, pretrained=NAME)` finds these networks in a checkout; elsewhere, let `LIPCERT_ZOO` name this
folder. The network for digits is inside the package. `lipcert check FOLDER` verifies a certificate, which is about
the first test images; the shares below are about the complete test set (%).

{table}

The numbers are those of `zoo.json` in each folder. Weights are stored in float16 where that changes none of them.
"""


def make(run: lc.Run, folder: Path, examples: int) -> Entry:
    """Write the folder of a run's network."""
    if folder.exists():
        raise SystemExit(f"{folder} exists. Remove it first.")
    if run.unfinished:
        raise SystemExit(f"{run.unfinished}. Continue it with lipcert train --resume --out {run.folder}.")
    model, data = run.model(), run.test_data()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.any():
                scale = parameter.abs().max().log2().ceil().exp2()  # as freezing scales it
                parameter.copy_((parameter / scale).half() * scale)
    network = lc.freeze(model)
    proved = prove(network, data.image_shape)
    whole = certify(proved, data.inputs(), data.labels, show=lambda done, total: print(f"\r{done}/{total}", end=""))
    print()
    config = run.settings
    entry = Entry(
        data=data.name,
        classes=data.classes,
        model=config.model,
        overrides=config.overrides,
        parameters=run.parameters,
        examples=len(data),
        natural=whole.natural_accuracy,
        certified={name: whole.certified_accuracy(radius) for name, radius in RADII.items()},
        cpu_minutes=round(run.record.cpu_seconds / 60, 1),
        command=train_command(run.config or {}, "RUN"),
    )
    part = slice(0, examples)
    few = dataclasses.replace(
        whole,
        **{name: getattr(whole, name)[part] for name in ("radii", "correct", "predictions", "labels", "errors")},
    )
    some = f", the first {examples:,} of {len(data):,} images" if examples < len(data) else ""
    folder.mkdir(parents=True)
    try:
        records = describe(proved)
        tensors = {name: halved(tensor) for name, tensor in records.tensors.items()}
        write_network(folder / "model.safetensors", dataclasses.replace(records, tensors=tensors))
        write_certificate(
            folder,
            proved,
            network,
            data.images[part],
            few,
            about=f"{data.name} test{some}",
            stored="model.safetensors",
            half=True,
        )
        report = lc.verify(folder)
        if not report.ok:
            raise SystemExit(f"the checker refuses the certificate: {report.refuted}")
        write_text(folder / FILE, entry.model_dump_json(indent=1) + "\n")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return entry


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def card(folder: Path) -> str:
    """The README of a network."""
    entry, certificate = read_entry(folder), Certificate.of_folder(folder)
    assert entry is not None
    assert certificate is not None
    changed = ", ".join(f"{key} {value}" for key, value in entry.overrides.items())
    inside = "src/lipcert/zoo" if folder.resolve().parent == HERE else "zoo"
    sections = SECTIONS.format(
        examples=entry.examples,
        count=certificate.content["inputs"]["count"],
        name=folder.name,
        radii=" | ".join(entry.certified),
        rule="---:|" * (1 + len(entry.certified)),
        natural=percent(entry.natural),
        shares=" | ".join(map(percent, entry.certified.values())),
        model=entry.model,
        overrides=f" with {changed}" if changed else "",
        parameters=entry.parameters,
        minutes="" if entry.cpu_minutes is None else f", trained in {entry.cpu_minutes} CPU minutes",
        command=entry.command,
        folder=f"{inside}/{folder.name}",
        classes=", ".join(entry.classes) if len(entry.classes) <= 20 else f"{len(entry.classes)} in number",
        data=entry.data,
    )
    return model_card(certificate, sections)


def readme(folders: dict[str, Path]) -> str:
    """zoo/README.md, with a row for each network."""
    header = ["network", "model", "parameters", "MB", "natural", *RADII, "CPU minutes"]
    lines = [f"| {' | '.join(header)} |", "|---|---|" + "---:|" * (len(header) - 2)]
    for name, folder in folders.items():
        entry = read_entry(folder)
        assert entry is not None
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        shares = [entry.natural, *(entry.certified[radius] for radius in RADII)]
        place = f"../src/lipcert/zoo/{name}" if folder.parent == HERE else name
        cells = [
            f"[{name}]({place}/README.md)",
            f"`{entry.model}`",
            f"{entry.parameters:,}",
            f"{size:.1f}",
            *map(percent, shares),
            "–" if entry.cpu_minutes is None else f"{entry.cpu_minutes}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return README.format(table="\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--name", help="of the network; by default that of its data set")
    parser.add_argument("--out", type=Path, default=ROOT / "zoo")
    parser.add_argument("--examples", type=int, default=500, help="test images in the certificate")
    arguments = parser.parse_args()
    if arguments.run:
        run = lc.Run(arguments.run)
        make(run, arguments.out / (arguments.name or run.settings.data), arguments.examples)
    folders = {**list_pretrained(HERE), **list_pretrained(arguments.out)}
    for folder in folders.values():
        write_text(folder / "README.md", card(folder))
    if arguments.out.resolve() in (HERE, ROOT / "zoo"):
        (ROOT / "zoo").mkdir(exist_ok=True)
        write_text(ROOT / "zoo" / "README.md", readme({**list_pretrained(HERE), **list_pretrained(ROOT / "zoo")}))
    for name, folder in folders.items():
        print(f"{name}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB in {folder}")


if __name__ == "__main__":
    main()
