"""The figures of a report as Vega-Lite specifications, each with its caption and its numbers as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lipcert.reports.report import Layer, Report, RunReport
from lipcert.reports.tables import DataTable
from lipcert.reports.theme import light, run_style
from lipcert.reports.verdict import constant, percent, short

NARROW = 480  # below this width panels stand on top of each other instead of side by side
MOST_DOTS = 60  # epochs with a marker each; in longer trainings only the last one has a marker
MOST_LAYERS = 24  # small panels per run; the table has every layer
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
    if any(layer.share_estimate is not None for run in report.runs for layer in run.layers):
        yield _tightness(report)
    yield from (_spectra(position, run) for position, run in enumerate(report.runs))


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
        for position, run in enumerate(runs)
        for row in run.attacked
        if row.radius <= largest
    ]
    marks = [{"radius": entry.radius, "eps": entry.eps} for entry in report.radii if entry.radius <= largest]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        x = _radius_axis("radius", "L2 radius of the perturbation", largest, width)
        color, dash = _color_and_dash(report, width, on_page)
        names = _chart(_spread(marks, 52 * largest / width)).mark_text(
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
            layers += _markers(points, x, alt.Y("attacked:Q"), size=70)
        if on_page:
            cursor = _chart([{"radius": 36 / 255}], name="cursor")
            layers.append(cursor.mark_rule(color=light("ink"), strokeWidth=1).encode(x=x))
        return alt.layer(*layers).properties(width=width, height=360 if width > NARROW else 280)

    starts = ", ".join(f"{100 * run.natural:.1f} % for {run.name}" for run in runs if run.natural is not None)
    caption = (
        "Each line shows the share of test images that are proved to be classified correctly everywhere within the "
        f"radius. Without perturbation the accuracy is {starts}."
    )
    if points:
        caption += (
            " A marker shows the accuracy under attack. The stem below it reaches down to what is certified of the "
            "same images; their true robust accuracy lies on the stem."
        )
    return Figure("certified", "Certified accuracy by radius", caption, draw, _curve_table(report))


def _corners(curve: Sequence[float]) -> list[tuple[int, float]]:
    """The points of a curve, without those inside a flat stretch."""
    ends = (0, len(curve) - 1)
    return [
        (step, share)
        for step, share in enumerate(curve)
        if step in ends or not curve[step - 1] == share == curve[step + 1]
    ]


def _spread(marks: Sequence[Row], least: float) -> list[Row]:
    """The radii whose names fit beside each other, from the left."""
    chosen: list[Row] = []
    for mark in marks:
        if not chosen or mark["radius"] - chosen[-1]["radius"] > least:
            chosen.append(mark)
    return chosen


def _curve_table(report: Report) -> DataTable:
    steps = round(report.largest_radius * 255)
    usual = {step for step in (36, 72, 108, 255) if step <= steps}
    rows = [
        [f"{step}/255 = {step / 255:.3f}"]
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
        "the correct answers." + "".join(beyond)
    )
    return Figure("radii", "Distribution of the radii", caption, draw, _histogram_table(report))


def _bars(position: int, run: RunReport, width: int) -> Any:
    assert run.histogram is not None
    bins = run.histogram
    rows = [
        {"low": i * bins.width, "high": (i + 1) * bins.width, "share": 100 * share, "zero": 0}
        for i, share in enumerate(bins.shares)
    ]
    x = _radius_axis("low", None, bins.width * len(rows), width)
    look: dict[str, Any] = {"binSpacing": 0, "stroke": light("surface"), "strokeWidth": 1}
    bars = _chart(rows).mark_bar(color=run_style(position).light, **look)
    layers = [bars.encode(x=x, x2="high:Q", y=_percent_axis("share", zero=True), y2="zero:Q")]
    if run.median_radius is not None:
        median = _chart([{"low": run.median_radius, "text": f"median {short(run.median_radius)}"}])
        text = median.mark_text(align="left", baseline="bottom", dx=5, dy=-3, fontSize=11, color=light("ink"))
        layers.append(median.mark_rule(color=light("ink"), strokeWidth=1.5).encode(x=x))
        layers.append(text.encode(x=x, y=alt.value(0), text="text:N"))
    wrong = f"{percent(bins.wrong)} of the answers are wrong"
    title = alt.TitleParams(run.name, subtitle=wrong, limit=width)
    return alt.layer(*layers).properties(width=width, height=110, title=title)


def _histogram_table(report: Report) -> DataTable:
    shown = [(run.name, run.histogram) for run in report.runs if run.histogram]
    bins = shown[0][1]  # all have the same
    rows = [
        [f"{i * bins.width:.3g} to {(i + 1) * bins.width:.3g}", *(percent(each.shares[i], 2) for _, each in shown)]
        for i in range(len(bins.shares))
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
    losses = [{**row, "value": row["loss"]} for row in rows if (row.get("loss") or 0) > 0]
    last_epochs = list({row["run"]: row for row in losses}.values())
    shares = [
        {**row, "value": 100 * row[key], "series": series}
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
        layers = [line, *_markers(last_epochs if last > MOST_DOTS else losses, x, y, size=32)]
        charts = [alt.layer(*layers).properties(**size, title="Training loss, logarithmic scale")]
        if shares:
            y = _percent_axis("value")
            line = _chart(shares).mark_line(strokeWidth=2)
            layers = [line.encode(x=x, y=y, detail="series:N", color=color, strokeDash=dash)]
            for series, filled in (("natural", True), ("certified", False)):
                layers += _markers([r for r in shares if r["series"] == series], x, y, size=60, filled=filled)
            charts.append(alt.layer(*layers).properties(**size, title="Accuracy: ● natural, ○ certified 36/255"))
        return alt.hconcat(*charts, spacing=30) if side_by_side else alt.vconcat(*charts, spacing=22)

    caption = (
        "The mean loss of each epoch, and the accuracies that were measured during training: in float32, without "
        "an allowance for rounding."
    )
    return Figure("training", "Training", caption, draw, _training_table(report))


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


# --- Layers ---


def _tightness(report: Report) -> Figure:
    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        shown = [[layer for layer in run.layers if layer.share_estimate is not None] for run in report.runs]
        panels = (
            _shares(position, run.name, layers, width)
            for position, (run, layers) in enumerate(zip(report.runs, shown, strict=True))
            if layers
        )
        return alt.vconcat(*panels, spacing=24).resolve_scale(x="independent")

    caption = (
        "Two estimates for each layer, from 0 to 1. ● is the share of the allowed squared norm that WT^(−½) "
        "reaches: at 1, no smaller multiple of T would do. ○ is the mean of ‖w_i‖²/T_i: at 1, T equals WᵀW and the "
        "columns of W are orthogonal. A layer without T needs an audit to know what is allowed."
    )
    return Figure("tightness", "How tight T is", caption, draw, None)


def _shares(position: int, name: str, layers: Sequence[Layer], width: int) -> Any:
    color = run_style(position).light
    rows: list[dict[str, Any]] = [
        {"layer": layer.name, "share": layer.share_estimate, "mean": layer.mean_share_estimate} for layer in layers
    ]
    labels = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6, ticks=False)
    x = alt.X("layer:N", sort=None, title=None, axis=labels, scale=alt.Scale(paddingOuter=0.4))
    domain = alt.Scale(domain=[0, max([1.04, *(row["share"] for row in rows)])], nice=False)
    y = alt.Y("share:Q", title=None, scale=domain, axis=alt.Axis(values=[0, 0.5, 1]))
    base = _chart(rows).encode(x=x)
    lines = base.mark_rule(strokeWidth=2, color=color, opacity=0.45)
    means = base.mark_point(size=84, opacity=1, color=color, fill=light("surface"), strokeWidth=1.8)
    dots = base.mark_point(filled=True, size=38, opacity=1, color=color)  # on top: both are seen where they meet
    marks = (lines.encode(y=y, y2="mean:Q"), means.encode(y=alt.Y("mean:Q")), dots.encode(y=y))
    return alt.layer(*marks).properties(width=width, height=110, title=alt.TitleParams(name, limit=width))


def _spectra(position: int, run: RunReport) -> Figure:
    step = max(1, math.ceil(len(run.layers) / MOST_LAYERS))
    shown = run.layers[::step]
    top = max(1.0, *(layer.quantiles[0] / _scale(layer) for layer in shown))

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        columns = 6 if width > NARROW else 3
        each = (width - 16 * (columns - 1)) // columns
        charts = [
            _spectrum(position, layer, each, top, first=i % columns == 0, last=i + columns >= len(shown))
            for i, layer in enumerate(shown)
        ]
        return alt.concat(*charts, columns=columns, spacing=16)

    grids = [layer.grid for layer in run.layers if layer.grid]
    caption = (
        "Singular values of WT^(−½) from the largest to the smallest; the proof says that none exceeds 1. Where a "
        "layer has no T, they are divided by its proved constant, or by the largest of them before an audit. These "
        "are estimates in float64 from the stored weights."
        + (f" Convolutions are sampled at {min(grids)}×{min(grids)} frequencies or more." if grids else "")
        + (f" {len(shown)} of {len(run.layers)} layers are drawn; the table has all." if step > 1 else "")
    )
    title = f"Singular values of {run.name}"
    return Figure(f"spectra-{position + 1}", title, caption, draw, _layer_table(run))


def _spectrum(position: int, layer: Layer, width: int, top: float, *, first: bool, last: bool) -> Any:
    """One panel; labels stand at the left and below the lowest panels alone."""
    color, parts = run_style(position).light, len(layer.quantiles) - 1
    points = [
        {"rank": 100 * rank / parts, "value": value / _scale(layer)} for rank, value in enumerate(layer.quantiles)
    ]
    x_axis = alt.Axis(values=[0, 100], labelExpr="datum.value + ' %'", labelFlush=True, labels=last)
    y_axis, domain = alt.Axis(values=[0, 0.5, 1], labels=first), alt.Scale(domain=[0, top], nice=False)
    base = _chart(points).encode(
        x=alt.X("rank:Q", title=None, axis=x_axis), y=alt.Y("value:Q", title=None, scale=domain, axis=y_axis)
    )
    name = _chart([{"text": f"{layer.name} {'conv' if len(layer.shape) > 2 else 'dense'}"}]).encode(text="text:N")
    label: dict[str, Any] = {
        "align": "left",
        "fontWeight": "bold",
        "fontSize": 11,
        "color": light("ink"),
        "limit": width,
    }
    marks = (
        base.mark_area(color=color, opacity=0.18),
        base.mark_line(color=color, strokeWidth=1.8),
        name.mark_text(x=0, y=-9, **label),
    )
    return alt.layer(*marks).properties(width=width, height=72)


def _scale(layer: Layer) -> float:
    """What the singular values of a layer are compared with."""
    return layer.proved_upper or (1.0 if layer.kind == "residual" else layer.largest_estimate) or 1.0


def _layer_table(run: RunReport) -> DataTable:
    header = ["layer", "operation", "weight", "frequencies", "dead neurons", "largest singular value"]
    header += ["share of the allowed", "mean ‖w‖²/T", "proved L"]
    rows = [
        [
            *(layer.name, layer.op, "×".join(map(str, layer.shape))),
            f"{layer.grid}×{layer.grid}" if layer.grid else "dense",
            str(layer.dead_neurons),
            *map(_number, (layer.largest_estimate, layer.share_estimate, layer.mean_share_estimate)),
            constant(layer.proved_upper) if layer.proved_upper else "–",
        ]
        for layer in run.layers
    ]
    return DataTable(f"{run.name}: singular values (estimates) and proved constants", header, rows)


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
            filled=filled, size=size, opacity=1, color=style.light, shape=style.shape, **edge
        )
        layers.append(chart.encode(x=x, y=y))
    return layers


def _percent_axis(field: str, **scale: Any) -> alt.Y:
    axis = alt.Axis(title=None, labelExpr="datum.label + ' %'", tickCount=4)
    return alt.Y(field, type="quantitative", axis=axis, scale=alt.Scale(**(scale or {"domain": [0, 100]})))


def _radius_axis(field: str, title: str | None, largest: float, width: int) -> alt.X:
    axis, domain = alt.Axis(tickCount=max(4, width // 90), format="~g"), alt.Scale(domain=[0, largest], nice=False)
    return alt.X(field, type="quantitative", title=title, scale=domain, axis=axis)
