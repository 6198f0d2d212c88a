"""Colours, lines and markers in a light and a dark theme; figures as SVG for the page and as files.

Figures are drawn in the light colours; on the page the colours become variables, which follow its theme. The
colours of runs are near those of Okabe and Ito, darkened or lightened until each has a contrast of 4.5 on its
ground. A run also has a dash and a marker of its own, so that nothing rests on colour alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import vl_convert
from altair.utils.schemapi import debug_mode

if TYPE_CHECKING:
    from lipcert.reports.figures import Figure

WIDE, COMPACT = 760, 300  # of a plot in pixels; the page shows the compact one below 640 px
COLORS = {  # name → (light, dark)
    "page": ("#f7f7f4", "#0f1318"),
    "surface": ("#ffffff", "#171c23"),
    "ink": ("#1a1f26", "#e8ecf0"),
    "muted": ("#565f6a", "#a5b0bc"),
    "rule": ("#dfe1dd", "#2d3641"),
    "accent": ("#0a58a6", "#7fc1ff"),
    "good": ("#0b6b4b", "#4fd1a1"),
    "bad": ("#b3261e", "#ff8a80"),
    "warn": ("#8a5300", "#f0b75a"),
    "run0": ("#0067a3", "#5bb8ef"),
    "run1": ("#b84700", "#ff9f57"),
    "run2": ("#007a58", "#35c79b"),
    "run3": ("#a03a78", "#e69ac5"),
    "run4": ("#876000", "#e6c13a"),
    "run5": ("#5b5fc7", "#a9b2ff"),
}
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4])
MARKERS = {  # Vega's shapes, and the same as paths around the origin for the legend of the page
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M-4-4h8v8h-8z",
    "triangle-up": "M0-5 5 4H-5z",
    "diamond": "M0-5.5 4.5 0 0 5.5-4.5 0z",
    "cross": "M-2-5h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
    "triangle-down": "M0 5 5-4H-5z",
    "triangle-right": "M5 0-4 5V-5z",
}
FONT = "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class RunStyle:
    """How a run is drawn."""

    color: str  # a name of COLORS
    dash: list[int]
    shape: str

    @property
    def light(self) -> str:
        return light(self.color)

    @property
    def marker(self) -> str:
        return MARKERS[self.shape]


def light(name: str) -> str:
    return COLORS[name][0]


def run_style(position: int) -> RunStyle:
    shapes = list(MARKERS)
    return RunStyle(f"run{position % 6}", DASHES[position % len(DASHES)], shapes[position % len(shapes)])


def vega_config() -> dict[str, Any]:
    """Settings of Vega-Lite: quiet axes, no frame, text in the font of the page."""
    text = {"labelColor": light("muted"), "titleColor": light("ink"), "labelFontSize": 12, "titleFontSize": 12}
    quiet = {"gridColor": light("rule"), "domain": False, "ticks": False}
    line = {"domainColor": light("muted"), "tickColor": light("muted")}
    bold = {"color": light("ink"), "fontSize": 13, "fontWeight": "bold", "anchor": "start"}
    return {
        "aria": False,  # the figure as a whole has a title and a description; each mark would be noise
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**text, **quiet, "titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6},
        "axisX": {**line, "grid": False, "domain": True, "ticks": True},
        "legend": {**text, "symbolStrokeWidth": 2, "symbolSize": 90, "labelLimit": 260, "title": None},
        "header": {**text, "labelColor": light("ink"), "labelFontWeight": "bold", "title": None},
        "title": {**bold, "offset": 8, "subtitleColor": light("muted")},
    }


@dataclass(frozen=True)
class Drawing:
    """A figure for the page, wide and compact, and as files."""

    figure: Figure
    wide: str
    compact: str
    files: dict[str, bytes]  # name → content


def render(figure: Figure) -> Drawing:
    """Draw a figure offline, with the fonts at hand."""
    name, svg = figure.name, _svg(figure, WIDE, on_page=False)
    wide, compact = (
        themed_svg(_svg(figure, width, on_page=True), f"{name}-{size}", figure.title, figure.caption)
        for size, width in (("wide", WIDE), ("compact", COMPACT))
    )
    files = {
        f"{name}.svg": svg.encode(),
        f"{name}.png": vl_convert.svg_to_png(svg, scale=2),
        f"{name}.pdf": vl_convert.svg_to_pdf(svg),
    }
    return Drawing(figure, wide, compact, files)


def _svg(figure: Figure, width: int, *, on_page: bool) -> str:
    with debug_mode(False):  # checking every part against the schema would be most of the cost
        spec = figure.draw(width, on_page).to_dict(validate=False)
    look = {"background": None, "padding": 4} if on_page else {"background": light("surface"), "padding": 12}
    return vl_convert.vegalite_to_svg({**spec, **look, "config": vega_config()})


def themed_svg(svg: str, name: str, title: str, description: str) -> str:
    """An SVG for the page: colours as variables, ids of its own, a title and a description, any width."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    variables = {value: f"var(--{key})" for key, (value, _) in COLORS.items()}
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key in ("fill", "stroke"):
                element.set(key, variables.get(value.lower(), value))
            elif key == "id":
                element.set(key, f"{name}-{value}")
            elif key == "aria-label":  # only marks with a description have one: it is what the page shows on hover
                element.set("data-tip", element.attrib.pop(key))
            elif key in ("font-family", "role") or key.startswith("aria-"):
                del element.attrib[key]
            elif "url(#" in value:
                element.set(key, re.sub(r"url\(#", f"url(#{name}-", value))
    size = root.attrib.pop("width")
    root.attrib = {key: value for key, value in root.attrib.items() if key not in ("height", "class")}
    root.attrib |= {"role": "img", "style": f"max-width: {size}px"}
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for position, (tag, end, text) in enumerate((("title", "title", title), ("desc", "description", description))):
        root.insert(position, element := ElementTree.Element(f"{{{SVG}}}{tag}", id=f"{name}-{end}"))
        element.text = text
    return ElementTree.tostring(root, encoding="unicode")
