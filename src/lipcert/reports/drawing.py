"""What the figures share: the style of each run, axes, and the record of a figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import altair as alt

from lipcert.reports.theme import SHAPES, dash, light, run_color

NARROW = 480  # below it panels stand on each other instead of side by side


@dataclass(frozen=True)
class Figure:
    """A figure: its file name, heading, caption (what there is to see), and how to draw it.

    ``draw(width, on_page)``: a page has its own legend and a line that follows its slider.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[int, bool], alt.TopLevelMixin]


def styles(runs: list[dict[str, Any]], width: int, on_page: bool) -> dict[str, Any]:
    """Colour and dash of every run's line; a legend of lines where the figure stands alone."""
    names = [run["name"] for run in runs]
    every = range(len(runs))
    legend = None
    if len(runs) > 1 and not on_page:
        longest = max(len(name) for name in names)
        columns = max(1, min(len(runs), width // (60 + 7 * min(longest, 36))))
        legend = alt.Legend(orient="top", columns=columns, title=None, symbolType="stroke", symbolSize=600)

    def scale(values: list[Any]) -> alt.Scale:
        return alt.Scale(domain=names, range=values)

    return {
        "color": alt.Color("run:N", scale=scale([light(run_color(i)) for i in every]), legend=legend),
        "strokeDash": alt.StrokeDash("run:N", scale=scale([dash(i) for i in every]), legend=legend),
    }


def markers(rows: list[dict[str, Any]], x: alt.X, y: alt.Y, *, size: int, filled: bool = True) -> list[alt.Chart]:
    """One layer per run, in its colour and shape: as values, so that the legend stays one of lines."""
    layers = []
    for position in sorted({row["position"] for row in rows}):
        color, shape = light(run_color(position)), SHAPES[position % len(SHAPES)]
        edge = {"stroke": light("surface"), "strokeWidth": 1} if filled else {"strokeWidth": 2}
        mark: dict[str, Any] = {
            "filled": filled,
            "size": size,
            "opacity": 1,
            "color": color,
            "shape": shape,
            **edge,
        }
        chart = alt.Chart(values([row for row in rows if row["position"] == position]))
        layers.append(chart.mark_point(**mark).encode(x=x, y=y))
    return layers


def values(rows: list[dict[str, Any]]) -> alt.InlineData:
    """Rows as inline data; as text, which Altair's many copies of a chart share."""
    return alt.InlineData(values=json.dumps(rows), format={"type": "json"})


def percent_axis(field: str, **scale: Any) -> alt.Y:
    axis = alt.Axis(title=None, labelExpr="datum.label + ' %'", tickCount=4)
    return alt.Y(field, type="quantitative", axis=axis, scale=alt.Scale(**(scale or {"domain": [0, 100]})))


def radius_axis(field: str, title: str | None, largest: float, width: int) -> alt.X:
    axis = alt.Axis(tickCount=max(4, width // 90), format="~g")
    return alt.X(
        field, type="quantitative", title=title, scale=alt.Scale(domain=[0, largest], nice=False), axis=axis
    )
