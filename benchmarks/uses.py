"""What the examples under "Other uses" in docs/tutorial.md print, with their CPU seconds, and their picture.

Run: python benchmarks/uses.py
It writes results/uses.json and docs/uses.svg. One thread; the time to import torch does not count.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import runpy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from picture import STYLE

ROOT = Path(__file__).parents[1]
EXAMPLES = ("table_regression", "monotone", "conformal", "time_series", "distance_field", "wasserstein")
WIDE, HIGH, LEFT, TOP = 300, 250, 34, 56  # of a panel, and where its plot begins
Points = Iterable[Sequence[float]]


class Panel:
    """A plot with axes from ``low`` to ``high``, as lines of SVG."""

    def __init__(self, title: str, says: str, low: Sequence[float], high: Sequence[float]) -> None:
        self.low, self.high = low, high
        self.lines = [
            f'<text class="title" x="{LEFT}" y="24">{title}</text>',
            f'<text class="soft" x="{LEFT}" y="44">{says}</text>',
        ]

    def at(self, point: Sequence[float]) -> tuple[float, float]:
        u, v = ((p - a) / (b - a) for p, a, b in zip(point, self.low, self.high, strict=True))
        return LEFT + u * (WIDE - LEFT - 16), HIGH - 30 - v * (HIGH - 30 - TOP)

    def path(self, points: Points, color: str, more: str = "") -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.at, points))
        self.lines.append(f'<polyline points="{places}" fill="none" stroke="var(--{color})" {more}/>')

    def dots(self, points: Points, color: str, radius: float = 2) -> None:
        for x, y in map(self.at, points):
            self.lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="var(--{color})"/>')

    def bar(self, left: float, right: float, top: float, color: str) -> None:
        (x, y), (end, bottom) = self.at((left, top)), self.at((right, self.low[1]))
        size = f'width="{end - x:.1f}" height="{bottom - y:.1f}"'
        self.lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="var(--{color})"/>')

    def say(self, point: Sequence[float], words: str, kind: str = "soft") -> None:
        x, y = self.at(point)
        self.lines.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{words}</text>')


def table_regression(seen: dict[str, Any], printed: list[str]) -> Panel:
    panel = Panel("Certified regression", "density of air; intervals for inputs wrong by 0.01", (0, 0.7), (30, 1.7))
    rows = seen["y"][:30].argsort()
    for place, row in enumerate(rows.tolist()):
        panel.path([(place, float(seen["low"][row, 0])), (place, float(seen["high"][row, 0]))], "sure")
    panel.dots(((place, float(seen["y"][row])) for place, row in enumerate(rows.tolist())), "foe")
    return panel


def monotone(seen: dict[str, Any], printed: list[str]) -> Panel:
    panel = Panel("A monotone network", "along the second input: proved (blue), plain", (0, -0.5), (1, 2))
    steps = torch.linspace(0, 1, 60)
    lines = [
        torch.stack([torch.full_like(steps, first / 10), steps, torch.full_like(steps, third / 10)], dim=1)
        for first in range(11)
        for third in range(11)
    ]
    with torch.no_grad():  # where the plain network falls most
        x = max(lines, key=lambda line: float(seen["plain"](line).flatten().diff().clamp_max(0).abs().sum()))
        for name, color in (("plain", "foe"), ("network", "sure")):
            values = seen[name](x).flatten().tolist()
            panel.path(zip(steps.tolist(), values, strict=True), color, 'stroke-width="2"')
    return panel


def conformal(seen: dict[str, Any], printed: list[str]) -> Panel:
    panel = Panel("Sets that stay valid", "coverage of prediction sets; 90 % was asked for", (0, 0), (3, 100))
    for place, (line, words) in enumerate(zip(printed, ("clean", "attacked", "robust sets"), strict=True)):
        covered = float(re.search(r"coverage ([\d.]+)%", line)[1])  # type: ignore[index]
        panel.bar(place + 0.1, place + 0.9, covered, "foe" if place == 1 else "sure")
        panel.say((place + 0.1, -10), f"{words} {covered}")
    panel.path([(0, 90), (3, 90)], "ink", 'stroke-dasharray="4 4"')
    return panel


def time_series(seen: dict[str, Any], printed: list[str]) -> Panel:
    accuracy = re.search(r"within 0.5: ([\d.]+)%", printed[0])[1]  # type: ignore[index]
    panel = Panel("Time series", f"which channel leads? {accuracy} % certified within 0.5", (0, -1.5), (1, 1.5))
    torch.manual_seed(1)
    series, _ = seen["signals"](1)
    for channel, color in zip(series[0], ("sure", "foe"), strict=True):
        panel.path(zip(seen["time"].tolist(), channel.tolist(), strict=True), color)
    return panel


def distance_field(seen: dict[str, Any], printed: list[str]) -> Panel:
    panel = Panel("A distance field", "levels of a proved lower bound; rays stop in time", (-1.8, -1.1), (1.8, 1.1))
    line = torch.linspace(-1.1, 1.1, 90)
    points = torch.cartesian_prod(line * 1.5, line)
    low = seen["low_and_high"](points)[0] - seen["offset"]
    for level, radius in ((0.0, 0.9), (0.2, 0.5), (0.4, 0.5)):
        near = (low - level).abs() < 0.012
        panel.dots(points[near].tolist(), "sure", radius)
    panel.path([*seen["corners"].tolist(), seen["corners"][0].tolist()], "ink", 'stroke-width="2"')
    rays = seen["rays"]
    panel.dots(rays[rays[:, 0] > -1.4][::6].tolist(), "foe")
    return panel


def wasserstein(seen: dict[str, Any], printed: list[str]) -> Panel:
    panel = Panel("A lower bound of W1", "proved (blue) beside the exact distance", (0, 0), (3, 3.2))
    for place, line in enumerate(printed):
        name, proved, exact = re.search(r"(\w+): W1 >= ([\d.]+); exact ([\d.]+)", line).groups()  # type: ignore[union-attr]
        panel.bar(place + 0.1, place + 0.45, float(proved), "sure")
        panel.bar(place + 0.5, place + 0.85, float(exact), "foe")
        panel.say((place + 0.1, -0.3), name)
        panel.say((place + 0.1, float(exact) + 0.1), f"{100 * float(proved) / float(exact):.2f} %")
    return panel


def main() -> None:
    record: dict[str, Any] = {"command": "python benchmarks/uses.py", "examples": {}}
    panels = []
    for name in EXAMPLES:
        before, out = resource.getrusage(resource.RUSAGE_SELF).ru_utime, io.StringIO()
        with contextlib.redirect_stdout(out):
            seen = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
        spent, printed = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before, out.getvalue().splitlines()
        printed = [line for line in printed if not line.startswith("Saved")]
        record["examples"][name] = {"cpu_seconds": round(spent), "printed": printed}
        print(name, *printed, sep="\n  ", flush=True)
        panels.append(globals()[name](seen, printed))
    groups = [
        f'<g transform="translate({place % 3 * WIDE} {place // 3 * HIGH})">' + "\n".join(panel.lines) + "</g>"
        for place, panel in enumerate(panels)
    ]
    size = f'viewBox="0 0 {3 * WIDE} {2 * HIGH}" width="{3 * WIDE}" height="{2 * HIGH}"'
    words = "Six uses of networks with a proved slope, one panel for each example"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}"><style>{STYLE}</style>'
    background = '<rect width="100%" height="100%" fill="var(--card)"/>'
    picture = "\n".join([svg, background, *groups, "</svg>\n"])
    (ROOT / "docs" / "uses.svg").write_text(picture, encoding="utf-8")
    target = ROOT / "results" / "uses.json"
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
