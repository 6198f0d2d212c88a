"""The figures of a report as Vega-Lite specifications, from its content alone: curves, radii, training."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from lipcert.reports.drawing import NARROW, Figure, markers, percent_axis, radius_axis, styles, values
from lipcert.reports.layer_figures import spectra, tightness
from lipcert.reports.theme import light, run_color

MOST_DOTS = 60  # epochs with a marker each; of longer trainings the last one has one


def figures(report: dict[str, Any]) -> list[Figure]:
    """Those that the records allow."""
    runs = report["runs"]
    found = []
    if any(run["curve"] for run in runs):
        found += [_certified(report), _radii(report)]
    if any((row.get("loss") or 0) > 0 for run in runs for row in run["training"]):
        found.append(_training(runs))
    if any(row["share_estimate"] is not None for run in runs for row in run["layers"]):
        found.append(tightness(runs))
    return found + [spectra(position, run) for position, run in enumerate(runs)]


def _certified(report: dict[str, Any]) -> Figure:
    runs, largest = report["runs"], report["largest_radius"]
    lines = [
        {"run": run["name"], "radius": step / 255, "accuracy": 100 * share}
        for run in runs
        for step, share in _corners(run["curve"])
    ]
    points = [
        {
            "run": run["name"],
            "position": position,
            "radius": row["radius"],
            "attacked": 100 * row["attacked"],
            "certified": 100 * row["certified"],
        }
        for position, run in enumerate(runs)
        for row in run["attacked"]
        if row is not None and row["radius"] <= largest
    ]
    marks = [
        {"radius": entry["radius"], "eps": entry["eps"]} for entry in report["radii"] if entry["radius"] <= largest
    ]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        x = radius_axis("radius", "L2 radius of the perturbation", largest, width)
        style = styles(runs, width, on_page)
        color, dashes = style["color"], style["strokeDash"]
        named = alt.Chart(values(_apart(marks, 52 * largest / width)))
        layers = [
            alt.Chart(values(marks)).mark_rule(color=light("rule"), strokeWidth=1).encode(x=x),
            named.mark_text(baseline="bottom", dy=-4, fontSize=11, color=light("muted")).encode(
                x=x, y=alt.value(0), text="eps:N"
            ),
            alt.Chart(values(lines))
            .mark_line(strokeWidth=2.2)
            .encode(x=x, y=percent_axis("accuracy"), color=color, strokeDash=dashes),
        ]
        if points:
            stems = alt.Chart(values(points)).mark_rule(strokeWidth=1.4)
            layers.append(stems.encode(x=x, y="certified:Q", y2="attacked:Q", color=color))
            layers += markers(points, x, alt.Y("attacked:Q"), size=70)
        if on_page:
            cursor = alt.Chart(values([{"radius": 36 / 255}]), name="cursor")
            layers.append(cursor.mark_rule(color=light("ink"), strokeWidth=1).encode(x=x))
        return alt.layer(*layers).properties(width=width, height=360 if width > NARROW else 280)

    best = [f"{run['name']} {100 * run['natural']:.1f} % at radius 0" for run in runs if run["natural"] is not None]
    return Figure(
        "certified",
        "Certified accuracy against the radius",
        "Each line is the share of test images proved to be classified correctly everywhere within the radius: "
        + ", ".join(best)
        + "."
        + (
            " Markers are the accuracy under attack; the stem below each reaches down to what is certified of the "
            "same images, and the true robust accuracy lies on it."
            if points
            else ""
        ),
        draw,
    )


def _corners(curve: list[float]) -> list[tuple[int, float]]:
    """The points of a curve without those inside a flat stretch."""
    last = len(curve) - 1
    return [
        (step, share)
        for step, share in enumerate(curve)
        if step in (0, last) or not curve[step - 1] == share == curve[step + 1]
    ]


def _apart(marks: list[dict[str, Any]], least: float) -> list[dict[str, Any]]:
    """The radii whose names fit beside each other, from the left."""
    kept: list[dict[str, Any]] = []
    for mark in marks:
        if not kept or mark["radius"] - kept[-1]["radius"] > least:
            kept.append(mark)
    return kept


def _radii(report: dict[str, Any]) -> Figure:
    runs = [(position, run) for position, run in enumerate(report["runs"]) if run["histogram"]]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        return alt.vconcat(*(_bars(position, run, width) for position, run in runs), spacing=22)

    return Figure(
        "radii",
        "How the radii are distributed",
        "Right answers by certified radius, in % of all test images; the line is the median of the right answers. "
        + " ".join(
            f"{run['name']}: {100 * run['histogram']['beyond']:.1f} % lie beyond the axis."
            for _, run in runs
            if run["histogram"]["beyond"]
        ),
        draw,
    )


def _bars(position: int, run: dict[str, Any], width: int) -> Any:
    bins, median = run["histogram"], run["median_radius"]
    each = bins["width"]
    rows = [
        {"low": i * each, "high": (i + 1) * each, "share": 100 * s, "zero": 0} for i, s in enumerate(bins["shares"])
    ]
    x = radius_axis("low", None, each * len(rows), width)
    bars = alt.Chart(values(rows)).mark_bar(
        color=light(run_color(position)), binSpacing=0, stroke=light("surface"), strokeWidth=1
    )
    layers = [bars.encode(x=x, x2="high:Q", y=percent_axis("share", zero=True), y2="zero:Q")]
    if median is not None:
        at = alt.Chart(values([{"low": median, "text": f"median {median:.3f}"}]))
        text = at.mark_text(align="left", baseline="bottom", dx=5, dy=-3, fontSize=11, color=light("ink"))
        layers.append(at.mark_rule(color=light("ink"), strokeWidth=1.5).encode(x=x))
        layers.append(text.encode(x=x, y=alt.value(0), text="text:N"))
    title = alt.TitleParams(
        run["name"], subtitle=f"{100 * bins['wrong']:.1f} % of the answers are wrong", limit=width
    )
    return alt.layer(*layers).properties(width=width, height=110, title=title)


def _training(runs: list[dict[str, Any]]) -> Figure:
    losses = [
        {"run": run["name"], "position": position, "epoch": row["epoch"], "value": row["loss"]}
        for position, run in enumerate(runs)
        for row in run["training"]
        if (row.get("loss") or 0) > 0
    ]
    series = {"natural": "natural", "certified 36/255": "certified"}
    shares = [
        {"run": run["name"], "position": position, "epoch": row["epoch"], "value": 100 * row[key], "series": label}
        for position, run in enumerate(runs)
        for row in run["training"]
        for key, label in series.items()
        if row.get(key) is not None
    ]

    ends = [
        row for row, after in zip(losses, [*losses[1:], {"run": None}], strict=True) if row["run"] != after["run"]
    ]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        side = width > NARROW
        each = (width - 60) // 2 if side else width
        style = styles(runs, width, on_page)
        last = max(row["epoch"] for row in losses)
        domain = alt.Scale(domain=[0, last], nice=False)
        x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, tickCount=6), scale=domain)
        y = _loss_axis([row["value"] for row in losses])
        line = alt.Chart(values(losses)).mark_line(strokeWidth=2).encode(x=x, y=y, **style)
        layers = [line, *markers(ends if last > MOST_DOTS else losses, x, y, size=32)]
        charts = [alt.layer(*layers).properties(width=each, height=220, title="Training loss, logarithmic scale")]
        if shares:
            y = percent_axis("value")
            layers = [
                alt.Chart(values(shares)).mark_line(strokeWidth=2).encode(x=x, y=y, detail="series:N", **style)
            ]
            for label, filled in (("natural", True), ("certified", False)):
                layers += markers([r for r in shares if r["series"] == label], x, y, size=60, filled=filled)
            title = "Accuracy: ● natural, ○ certified 36/255"
            charts.append(alt.layer(*layers).properties(width=each, height=220, title=title))
        return alt.hconcat(*charts, spacing=30) if side else alt.vconcat(*charts, spacing=22)

    return Figure(
        "training",
        "Training",
        "The mean loss of each epoch, and the accuracies measured on the way: in float32, without rounding terms.",
        draw,
    )


def _loss_axis(values: list[float]) -> alt.Y:
    """Logarithmic, with ticks at 1, 2 and 5 times the powers of ten."""
    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    axis = alt.Axis(title=None, values=ticks, format="~g")
    return alt.Y("value:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)
