"""The figures of a report as Vega-Lite specifications, each with its caption and its numbers as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lipcert.reports.report import Report, RunReport
from lipcert.reports.tables import DataTable
from lipcert.reports.theme import light, run_style
from lipcert.reports.verdict import percent, short

NARROW = 480  # below this width panels stand on top of each other instead of side by side
MOST_DOTS = 60  # epochs with a marker
MOST_ROWS = 15  # of a table of numbers

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure: its file name, title, caption (what there is to see), how to draw it, and its numbers.

    ``draw(width, on_page)``: the page has its own legend, and a line that follows its slider.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[int, bool], alt.TopLevelMixin]
    table: DataTable | None


def figures(report: Report) -> Iterator[Figure]:
    """The figures that the records allow."""
    if any(run.curve for run in report.runs):
        yield _certified(report)
        yield _radii(report)
    if any((row.get("loss") or 0) > 0 for run in report.runs for row in run.training):
        yield _training(report)


# --- Certified accuracy ---


def _certified(report: Report) -> Figure:
    runs, largest = report.runs, report.largest_radius
    lines = [
        {"run": run.name, "radius": step / 255, "accuracy": 100 * share}
        for run in runs
        for step, share in _corners(run.curve)
    ]
    points = [
        {"run": run.name, "position": position, "radius": row.radius}
        | {"attacked": 100 * row.attacked, "certified": 100 * row.certified}
        | {
            "tip": f"{run.name}, {row.eps}, attacked images: {percent(row.certified)} are certified, "
            f"{percent(row.attacked)} survived"
        }
        for position, run in enumerate(runs)
        for row in run.attacked
        if row.radius <= largest
    ]
    marks = [{"radius": entry.radius, "eps": entry.eps} for entry in report.radii if entry.radius <= largest]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        x = _radius_axis("radius", "L2 radius of the change", largest, width)
        color, dash = _color_and_dash(report, width, on_page)
        names = _chart(_spread(marks, width / largest)).mark_text(
            baseline="bottom", dy=-4, fontSize=11, color=light("muted")
        )
        curves = _chart(lines).mark_line(strokeWidth=2.2)
        layers = [
            _chart(marks).mark_rule(color=light("rule"), strokeWidth=1).encode(x=x),
            names.encode(x=x, y=alt.value(0), text="eps:N"),
            curves.encode(x=x, y=_percent_axis("accuracy"), color=color, strokeDash=dash),
        ]
        if points:
            stems = _chart(points).mark_rule(strokeWidth=1.4)
            layers.append(stems.encode(x=x, y="certified:Q", y2="attacked:Q", color=color))
            layers += _markers(points, x, alt.Y("certified:Q"), size=40, filled=False)
            layers += _markers(points, x, alt.Y("attacked:Q"), size=70)
        if on_page:
            cursor = _chart([{"radius": 36 / 255}], name="cursor")
            layers.append(cursor.mark_rule(color=light("ink"), strokeWidth=1).encode(x=x))
        return alt.layer(*layers).properties(width=width, height=360 if width > NARROW else 280)

    starts = ", ".join(f"{100 * run.natural:.1f} % for {run.name}" for run in runs if run.natural is not None)
    caption = (
        "Each line shows the share of test images that are certified: classified correctly, and with the same "
        f"answer everywhere within the radius. Unchanged, the accuracy is {starts}."
    )
    caption += _warning(report)
    if points:
        caption += (
            " A filled marker shows the accuracy under attack, of the images that were attacked. The open marker "
            "below it shows what is certified of the same images. Their true robust accuracy lies on the stem "
            "between the two."
        )
    return Figure("certified", "Certified accuracy by radius", caption, draw, _curve_table(report))


def _warning(report: Report) -> str:
    """What to say where some radii hold with a probability alone."""
    if all(run.kind == "deterministic" for run in report.runs):
        return ""
    return " What is marked as probabilistic is about a smoothed classifier, and holds with high probability only."


def _corners(curve: Sequence[float]) -> list[tuple[int, float]]:
    """The points of a curve, without those inside a flat stretch."""
    ends = (0, len(curve) - 1)
    return [
        (step, share)
        for step, share in enumerate(curve)
        if step in ends or not curve[step - 1] == share == curve[step + 1]
    ]


def _spread(marks: Sequence[Row], scale: float) -> list[Row]:
    """The radii whose names fit beside each other, from the left; ``scale`` is in pixels."""
    chosen: list[Row] = []
    for mark in marks:
        letters = len(mark["eps"] + chosen[-1]["eps"]) if chosen else 0
        if not chosen or (mark["radius"] - chosen[-1]["radius"]) * scale > 3.2 * letters + 8:
            chosen.append(mark)
    return chosen


def _curve_table(report: Report) -> DataTable:
    steps = round(report.largest_radius * 255)
    usual = {step for step in (36, 72, 108, 255) if step <= steps}
    rows = [
        [f"{step}/255 ≈ {short(step / 255)}"]
        + [percent(run.curve[step] if run.curve else None, 2) for run in report.runs]
        for step in sorted({*range(0, steps + 1, -(-steps // MOST_ROWS)), *usual})
    ]
    return DataTable("Certified accuracy by radius", ["radius", *(run.name for run in report.runs)], rows)


# --- Distribution of the radii ---


def _radii(report: Report) -> Figure:
    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        bars = (_bars(position, run, width) for position, run in enumerate(report.runs) if run.histogram)
        return alt.vconcat(*bars, spacing=22)

    beyond = [
        f" {run.name}: {percent(run.histogram.beyond)} lie beyond the axis."
        for run in report.runs
        if run.histogram and run.histogram.beyond
    ]
    caption = (
        "Correct answers by certified radius, in percent of all test images. The vertical line is the median of "
        "the correct answers." + "".join(beyond) + _warning(report)
    )
    return Figure("radii", "Distribution of the radii", caption, draw, _histogram_table(report))


def _bars(position: int, run: RunReport, width: int) -> Any:
    assert run.histogram is not None
    bins = run.histogram
    rows = [
        {"low": i * bins.width, "high": (i + 1) * bins.width, "share": 100 * share, "zero": 0}
        | {"tip": f"{run.name}: {percent(share)} of the images have a radius from {_bin(bins.width, i)}"}
        for i, share in enumerate(bins.shares)
    ]
    x = _radius_axis("low", "certified radius", bins.width * len(rows), width)
    look: dict[str, Any] = {"binSpacing": 0, "stroke": light("surface"), "strokeWidth": 1}
    bars = _chart(rows).mark_bar(color=run_style(position).light, aria=True, **look)
    y = _percent_axis("share", zero=True)
    layers = [bars.encode(x=x, x2="high:Q", y=y, y2="zero:Q", description="tip:N")]
    if run.median_radius is not None:
        median = _chart([{"low": run.median_radius, "text": f"median {short(run.median_radius)}"}])
        text = median.mark_text(align="left", baseline="bottom", dx=5, dy=-3, fontSize=11, color=light("ink"))
        layers.append(median.mark_rule(color=light("ink"), strokeWidth=1.5).encode(x=x))
        layers.append(text.encode(x=x, y=alt.value(0), text="text:N"))
    missing = " or missing" if run.kind == "probabilistic" else ""
    wrong = f"{percent(bins.wrong)} of the answers are wrong{missing}"
    title = alt.TitleParams(run.name, subtitle=wrong, limit=width)
    return alt.layer(*layers).properties(width=width, height=110, title=title)


def _bin(width: float, position: int) -> str:
    return f"{position * width:.3g} to {(position + 1) * width:.3g}"


def _histogram_table(report: Report) -> DataTable:
    shown = [(run.name, run.histogram) for run in report.runs if run.histogram]
    bins = shown[0][1]  # all have the same
    rows = [
        [_bin(bins.width, i), *(percent(each.shares[i], 2) for _, each in shown)] for i in range(len(bins.shares))
    ]
    rows.append(["beyond", *(percent(each.beyond, 2) for _, each in shown)])
    rows.append(["wrong answer", *(percent(each.wrong, 2) for _, each in shown)])
    return DataTable("Share of the images by radius", ["radius", *(name for name, _ in shown)], rows)


# --- Training ---


def _training(report: Report) -> Figure:
    rows: list[dict[str, Any]] = [
        {"run": run.name, "position": position, **row}
        for position, run in enumerate(report.runs)
        for row in run.training
    ]
    losses = [
        {**row, "value": row["loss"], "tip": f"{row['run']}, epoch {row['epoch']}: loss {row['loss']:.4g}"}
        for row in rows
        if (row.get("loss") or 0) > 0
    ]
    shares = [
        {**row, "value": 100 * row[key], "series": series}
        | {"tip": f"{row['run']}, epoch {row['epoch']}: {percent(row[key])} {series}"}
        for row in rows
        for key, series in (("natural", "natural"), ("certified 36/255", "certified"))
        if row.get(key) is not None
    ]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        side_by_side = width > NARROW
        size = {"width": (width - 60) // 2 if side_by_side else width, "height": 220}
        color, dash = _color_and_dash(report, width, on_page)
        last = max(row["epoch"] for row in losses)
        ticks, domain = alt.Axis(tickMinStep=1, tickCount=6), alt.Scale(domain=[0, last], nice=False)
        x = alt.X("epoch:Q", title="epoch", axis=ticks, scale=domain)
        y = _loss_axis([row["value"] for row in losses])
        line = _chart(losses).mark_line(strokeWidth=2).encode(x=x, y=y, color=color, strokeDash=dash)
        layers = [line, *_markers(_thinned(losses, last), x, y, size=32)]
        charts = [alt.layer(*layers).properties(**size, title="Training loss, logarithmic scale")]
        if shares:
            y = _percent_axis("value")
            line = _chart(shares).mark_line(strokeWidth=2)
            layers = [line.encode(x=x, y=y, detail="series:N", color=color, strokeDash=dash)]
            for series, filled in (("natural", True), ("certified", False)):
                measured = [row for row in _thinned(shares, last) if row["series"] == series]
                layers += _markers(measured, x, y, size=60, filled=filled)
            charts.append(alt.layer(*layers).properties(**size, title="Accuracy: ● natural, ○ certified 36/255"))
        if side_by_side:
            return alt.hconcat(*charts, spacing=64, bounds="flush")
        return alt.vconcat(*charts, spacing=22)

    caption = (
        "The mean loss of each epoch, and the accuracies that were measured during training: in float32, without "
        "an allowance for rounding."
    )
    return Figure("training", "Training", caption, draw, _training_table(report))


def _thinned(rows: Sequence[Row], last: int) -> list[Row]:
    """The rows of at most MOST_DOTS epochs, counted back from the last one."""
    step = math.ceil(last / MOST_DOTS)
    return [row for row in rows if (last - row["epoch"]) % step == 0]


def _loss_axis(values: list[float]) -> alt.Y:
    """Logarithmic, with ticks at 1, 2 and 5 times the powers of ten, and at more multiples if these are few."""
    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    all_ticks = [
        [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        for digits in ((1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
    ]
    ticks = next((ticks for ticks in all_ticks if len(ticks) > 2), all_ticks[-1])
    axis = alt.Axis(title=None, values=ticks, format="~g")
    return alt.Y("value:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)


def _training_table(report: Report) -> DataTable:
    """At most MOST_ROWS epochs of each run, the last one among them."""
    shares = ["natural", "certified 36/255", "certified 1"]
    rows = [
        [f"{run.name}, {row['epoch']}", _number(row.get("loss"), 4), *(percent(row.get(key)) for key in shares)]
        for run in report.runs
        for row in run.training[:: -max(1, -(-len(run.training) // MOST_ROWS))][::-1]
    ]
    return DataTable("Loss, natural and certified accuracy", ["run and epoch", "loss", *shares], rows)


def _number(value: float | None, digits: int = 6) -> str:
    return "–" if value is None else f"{value:#.{digits}g}"


# --- Parts of figures ---


def _chart(rows: Sequence[Row], **named: Any) -> alt.Chart:
    """A chart of inline data; as text, which Altair's many copies of a chart share."""
    return alt.Chart(alt.InlineData(values=json.dumps(rows), format={"type": "json"}), **named)


def _color_and_dash(report: Report, width: int, on_page: bool) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of the line of every run, with a legend where the figure stands alone."""
    names = [run.name for run in report.runs]
    styles = [run_style(position) for position in range(len(names))]
    legend = None
    if len(names) > 1 and not on_page:
        columns = max(1, min(len(names), width // (60 + 7 * min(max(map(len, names)), 36))))
        legend = alt.Legend(orient="top", columns=columns, title=None, symbolType="stroke", symbolSize=600)
    colors = alt.Scale(domain=names, range=[style.light for style in styles])
    dashes = alt.Scale(domain=names, range=[style.dash for style in styles])
    return (
        alt.Color("run:N", scale=colors, legend=legend),
        alt.StrokeDash("run:N", scale=dashes, legend=legend),
    )


def _markers(rows: Sequence[Row], x: alt.X, y: alt.Y, *, size: int, filled: bool = True) -> list[alt.Chart]:
    """One layer per run, in its colour and shape: as values, so that the legend stays one of lines."""
    edge: dict[str, Any] = {"stroke": light("surface"), "strokeWidth": 1} if filled else {"strokeWidth": 2}
    layers = []
    for position in sorted({row["position"] for row in rows}):
        style = run_style(position)
        chart = _chart([row for row in rows if row["position"] == position]).mark_point(
            filled=filled, size=size, opacity=1, color=style.light, shape=style.shape, aria=True, **edge
        )
        layers.append(chart.encode(x=x, y=y, description="tip:N"))
    return layers


def _percent_axis(field: str, **scale: Any) -> alt.Y:
    axis = alt.Axis(title=None, labelExpr="datum.label + ' %'", tickCount=4)
    return alt.Y(field, type="quantitative", axis=axis, scale=alt.Scale(**(scale or {"domain": [0, 100]})))


def _radius_axis(field: str, title: str | None, largest: float, width: int) -> alt.X:
    axis, domain = alt.Axis(tickCount=max(4, width // 90), format="~g"), alt.Scale(domain=[0, largest], nice=False)
    return alt.X(field, type="quantitative", title=title, scale=domain, axis=axis)
