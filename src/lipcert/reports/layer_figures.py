"""The figures of the layers: how tight T is, and the singular values below it."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from lipcert.reports.drawing import NARROW, Figure, values
from lipcert.reports.theme import light, run_color

MOST_LAYERS = 24  # small multiples per run; the table has every layer


def tightness(runs: list[dict[str, Any]]) -> Figure:
    """One panel per run; a map without T needs an audit to say what it is allowed."""
    shown = [
        (position, run["name"], [row for row in run["layers"] if row["share_estimate"] is not None])
        for position, run in enumerate(runs)
    ]

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        panels = (_shares(position, name, rows, width) for position, name, rows in shown if rows)
        return alt.vconcat(*panels, spacing=24).resolve_scale(x="independent")

    return Figure(
        "tightness",
        "How tight T is",
        "Per layer, from 0 to 1, estimated. ● the share of the allowed squared norm that WT^(−½) reaches: at 1 no "
        "smaller multiple of T would do. ○ the mean of ‖w_i‖²/T_i: at 1 T is WᵀW, and the columns are orthogonal.",
        draw,
    )


def _shares(position: int, name: str, layers: list[dict[str, Any]], width: int) -> Any:
    color = light(run_color(position))
    rows = [
        {"layer": row["name"], "share": row["share_estimate"], "mean": row["mean_share_estimate"]} for row in layers
    ]
    labels = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6, ticks=False)
    x = alt.X("layer:N", sort=None, title=None, axis=labels, scale=alt.Scale(paddingOuter=0.4))
    domain = alt.Scale(domain=[0, max([1.04, *(row["share"] for row in rows)])], nice=False)
    y = alt.Y("share:Q", title=None, scale=domain, axis=alt.Axis(values=[0, 0.5, 1]))
    base = alt.Chart(values(rows)).encode(x=x)
    lines = base.mark_rule(strokeWidth=2, color=color, opacity=0.45)
    means = base.mark_point(size=84, opacity=1, color=color, fill=light("surface"), strokeWidth=1.8)
    dots = base.mark_point(filled=True, size=38, opacity=1, color=color)  # above: both are seen where they meet
    marks = (lines.encode(y=y, y2="mean:Q"), means.encode(y=alt.Y("mean:Q")), dots.encode(y=y))
    title = alt.TitleParams(name, limit=width)
    return alt.layer(*marks).properties(width=width, height=110, title=title)


def spectra(position: int, run: dict[str, Any]) -> Figure:
    layers = run["layers"]
    step = max(1, math.ceil(len(layers) / MOST_LAYERS))
    shown = layers[::step]
    last = max(1, len(shown[0]["quantiles"]) - 1)
    top = max(1.0, *(_scaled(row)[0] for row in shown))

    def draw(width: int, on_page: bool) -> alt.TopLevelMixin:
        columns = 6 if width > NARROW else 3
        each = (width - 16 * (columns - 1)) // columns
        color = light(run_color(position))
        charts = []
        for i, row in enumerate(shown):
            below, first = i + columns < len(shown), i % columns == 0
            points = [{"rank": 100 * k / last, "value": value} for k, value in enumerate(_scaled(row))]
            x_axis = alt.Axis(values=[0, 100], labelExpr="datum.value + ' %'", labelFlush=True, labels=not below)
            y_axis = alt.Axis(values=[0, 0.5, 1], labels=first)
            x = alt.X("rank:Q", title=None, axis=x_axis)
            y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, top], nice=False), axis=y_axis)
            base = alt.Chart(values(points)).encode(x=x, y=y)
            name = alt.Chart(values([{"text": f"{row['name']} {_short(row)}"}])).encode(text="text:N")
            layers = (
                base.mark_area(color=color, opacity=0.18),
                base.mark_line(color=color, strokeWidth=1.8),
                name.mark_text(
                    x=0, y=-7, align="left", fontWeight="bold", fontSize=11, color=light("ink"), limit=each
                ),
            )
            charts.append(alt.layer(*layers).properties(width=each, height=72))
        return alt.concat(*charts, columns=columns, spacing=16)

    grids = sorted({row["grid"] for row in layers if row["grid"]})
    sampled = f" Convolutions: on {grids[0]}×{grids[0]} frequencies or more." if grids else ""
    some = f" {len(shown)} of {len(layers)} layers are drawn; the table has all." if step > 1 else ""
    return Figure(
        f"spectra-{position + 1}",
        f"Singular values of {run['name']}",
        "Singular values of WT^(−½) from the largest to the smallest, at most 1 by the proof; where there is no "
        f"T, divided by its proved constant. Estimates, in float64, for the stored weights.{sampled}{some}",
        draw,
    )


def _scaled(row: dict[str, Any]) -> list[float]:
    """Singular values relative to what is proved of the layer."""
    return [value / (row["proved_upper"] or 1.0) for value in row["quantiles"]]


def _short(row: dict[str, Any]) -> str:
    return "conv" if len(row["shape"]) == 4 else "dense"
