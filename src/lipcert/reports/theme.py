"""Colours by name, in a light and a dark value: figures are drawn in the light ones and follow the page's theme.

The colours of runs are near those of Okabe and Ito, darkened or lightened until each has a contrast of 4.5 on its
ground; a run also has a dash and a marker of its own, so that nothing rests on colour alone.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

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
RUN_COLORS = [name for name in COLORS if name.startswith("run")]
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
MARKERS = {  # the shapes again, as paths around the origin, for the page's own legend
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


def light(name: str) -> str:
    return COLORS[name][0]


def run_color(position: int) -> str:
    return RUN_COLORS[position % len(RUN_COLORS)]


def dash(position: int) -> list[int]:
    return DASHES[position % len(DASHES)]


def config() -> dict[str, Any]:
    """Vega-Lite's settings: quiet axes, no frame, text in the page's font."""
    text = {"labelColor": light("muted"), "titleColor": light("ink"), "labelFontSize": 12, "titleFontSize": 12}
    return {
        "aria": False,  # the figure as a whole has a title and a description; marks one by one would be noise
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "titlePadding": 10,
            "labelPadding": 6,
            "gridColor": light("rule"),
            "domain": False,
            "ticks": False,
        },
        "axisX": {
            "grid": False,
            "domain": True,
            "domainColor": light("muted"),
            "ticks": True,
            "tickColor": light("muted"),
        },
        "legend": {**text, "symbolStrokeWidth": 2, "symbolSize": 90, "labelLimit": 260, "title": None},
        "header": {**text, "labelColor": light("ink"), "labelFontWeight": "bold", "title": None},
        "title": {
            "color": light("ink"),
            "fontSize": 13,
            "anchor": "start",
            "fontWeight": "bold",
            "offset": 8,
            "subtitleColor": light("muted"),
        },
    }


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
            elif key == "font-family" or key.startswith("aria-") or key == "role":
                del element.attrib[key]
            elif "url(#" in value:
                element.set(key, re.sub(r"url\(#", f"url(#{name}-", value))
    wide = root.attrib.pop("width")
    root.attrib.pop("height")
    root.attrib.pop("class", None)
    root.set("role", "img")
    root.set("style", f"max-width: {wide}px")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", id=f"{name}-{'description' if position else 'title'}")
        element.text = text
        root.insert(position, element)
    return ElementTree.tostring(root, encoding="unicode")
