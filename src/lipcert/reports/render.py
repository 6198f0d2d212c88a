"""A figure as files and as part of a page: one specification, rendered offline with the fonts at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import vl_convert
from altair.utils.schemapi import debug_mode

from lipcert.reports.drawing import Figure
from lipcert.reports.theme import config, light, themed_svg

WIDE, COMPACT = 760, 300  # of the plot; the page shows the second below 640 px


@dataclass(frozen=True)
class Rendered:
    """The figure for the page, wide and compact, and as files."""

    figure: Figure
    wide: str
    compact: str
    files: dict[str, bytes]  # name → content


def render(figure: Figure) -> Rendered:
    page = {size: _for_page(figure, size, width) for size, width in (("wide", WIDE), ("compact", COMPACT))}
    svg = _svg(figure, WIDE, on_page=False)
    files = {
        f"{figure.name}.svg": svg.encode(),
        f"{figure.name}.png": vl_convert.svg_to_png(svg, scale=2),
        f"{figure.name}.pdf": vl_convert.svg_to_pdf(svg),
    }
    return Rendered(figure, page["wide"], page["compact"], files)


def _for_page(figure: Figure, size: str, width: int) -> str:
    return themed_svg(_svg(figure, width, on_page=True), f"{figure.name}-{size}", figure.title, figure.caption)


def _svg(figure: Figure, width: int, *, on_page: bool) -> str:
    with debug_mode(False):  # every part would be checked against the schema each time: most of the cost
        spec: dict[str, Any] = figure.draw(width, on_page).to_dict(validate=False)
    background = None if on_page else light("surface")
    whole = {**spec, "config": config(), "background": background, "padding": 4 if on_page else 12}
    return vl_convert.vegalite_to_svg(whole)
