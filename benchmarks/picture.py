"""The picture of the README: what a radius is, and how much of CIFAR-10 is certified and survives AutoAttack.

Run: python benchmarks/picture.py
It writes docs/picture.svg from results/. The picture follows the reader's light or dark theme.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from lipcert.data.registry import load_data

ROOT = Path(__file__).parent.parent
RUN = "cifar10-sll_tiny-9-epochs"
STYLE = """
svg { --card: #ffffff; --ink: #1f2328; --soft: #656d76; --line: #d0d7de;
  --sure: #0067a3; --fill: #0067a322; --foe: #b84700; }
@media (prefers-color-scheme: dark) {
  svg { --card: #0d1117; --ink: #e6edf3; --soft: #8d96a0; --line: #30363d;
    --sure: #4fb0ee; --fill: #4fb0ee2a; --foe: #ff9457; }
}
text { font: 14px system-ui, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); font-size: 12.5px; }
.title { font-size: 16px; font-weight: 600; }
.sure { fill: var(--sure); } .foe { fill: var(--foe); }
"""


def digit(x: float, y: float, size: float) -> str:
    """The first test image of the embedded digits, as squares."""
    image = load_data("digits", "test").images[0, 0]
    step = size / 8
    squares = [
        f'<rect x="{x + j * step:g}" y="{y + i * step:g}" width="{step:g}" height="{step:g}" '
        f'fill="rgb({g},{g},{g})"/>'
        for i, row in enumerate(image.tolist())
        for j, g in enumerate(row)
    ]
    return '<g shape-rendering="crispEdges">' + "\n".join(squares) + "</g>"


def ball() -> str:
    """An image in its ball, and the border to another class outside."""
    return f"""
<text class="title" x="30" y="40">Inside the ball nothing changes the answer</text>
<circle cx="200" cy="195" r="108" fill="var(--fill)" stroke="var(--sure)" stroke-width="2"/>
{digit(160, 155, 80)}
<rect x="160" y="155" width="80" height="80" fill="none" stroke="var(--line)"/>
<path d="M 388 62 C 322 120, 316 190, 334 232 S 372 310, 352 338" fill="none" stroke="var(--foe)"
  stroke-width="2" stroke-dasharray="7 5"/>
<line x1="240" y1="195" x2="308" y2="195" stroke="var(--sure)" stroke-width="2"/>
<text class="sure" x="246" y="187">radius r</text>
<text class="foe" x="345" y="205">another</text><text class="foe" x="345" y="223">class</text>
<text x="30" y="338">‖δ‖₂ &lt; r: the class of x + δ is that of x,</text>
<text class="soft" x="30" y="358">proved for exact and for float64 arithmetic</text>
"""


def curves() -> str:
    """Certified accuracy against the radius, and what AutoAttack leaves, of the same images."""
    record = json.loads((ROOT / f"results/attacked/{RUN}.json").read_text(encoding="utf-8"))
    lines = gzip.decompress((ROOT / f"results/certified/{RUN}.jsonl.gz").read_bytes()).decode().splitlines()
    radii = [json.loads(line)["radius"] for line in lines[: record["examples"]]]
    left, right, bottom, top = 520.0, 940.0, 310.0, 70.0

    def at(radius: float, share: float) -> str:
        return f"{left + (right - left) * radius / 1.05:.1f},{bottom - (bottom - top) * share / 0.8:.1f}"

    grid = "".join(
        f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="var(--line)"/>'
        f'<text class="soft" x="{left - 8}" y="{float(y) + 4}" text-anchor="end">{tick} %</text>'
        for tick in (0, 20, 40, 60, 80)
        for y in [at(0, tick / 100).split(",")[1]]
    )
    ticks = "".join(
        f'<text class="soft" x="{x}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
        for value in (0, 0.25, 0.5, 0.75, 1)
        for x in [at(value, 0).split(",")[0]]
    )
    steps = [step / 255 for step in range(0, 268, 2)]
    proved = " ".join(at(r, sum(radius > r for radius in radii) / len(radii)) for r in steps)
    attacked = [(0.0, record["rows"][0]["natural"]), *((row["radius"], row["attacked"]) for row in record["rows"])]
    dots = "".join(
        f'<circle cx="{at(*point).split(",")[0]}" cy="{at(*point).split(",")[1]}" r="4.5" fill="var(--foe)"/>'
        for point in attacked
    )
    path = " ".join(at(*point) for point in attacked)
    return f"""
<text class="title" x="480" y="40">CIFAR-10 after 9 epochs on one CPU thread</text>
{grid}{ticks}
<polygon points="{at(0, 0)} {proved} {at(steps[-1], 0)}" fill="var(--fill)"/>
<polyline points="{proved}" fill="none" stroke="var(--sure)" stroke-width="2.5"/>
<polyline points="{path}" fill="none" stroke="var(--foe)" stroke-width="1.5" stroke-dasharray="7 5"/>
{dots}
<text class="foe" x="650" y="135">right under AutoAttack (upper bound)</text>
<text class="sure" x="545" y="290">certified (proved)</text>
<text class="soft" x="730" y="348" text-anchor="middle">L2 radius, pixels in [0, 1]</text>
<text class="soft" x="730" y="366" text-anchor="middle">
accuracy on the first {record["examples"]} test images, sll_tiny</text>
"""


def picture() -> str:
    about = "Left: an image in a ball that no other class enters. Right: certified and attacked accuracy by radius."
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 384" role="img" aria-label="{about}">
<style>{STYLE}</style>
<rect x="1" y="1" width="978" height="382" rx="12" fill="var(--card)" stroke="var(--line)"/>
{ball()}{curves()}</svg>
"""


if __name__ == "__main__":
    (ROOT / "docs/picture.svg").write_text(picture(), encoding="utf-8")
