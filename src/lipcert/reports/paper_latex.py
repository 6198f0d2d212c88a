r"""A reproduced table in LaTeX, as the paper sets it: booktabs, multirow, makecell, natbib, all in its preamble.

The result is plain ASCII, so that any engine and any encoding can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipcert.reports.paper_layout import SPREAD, Line, Sheet, footnotes, sheet, title
from lipcert.reports.tables import latex

_RADII = {
    "36/255": r"$\frac{36}{255}$",
    "72/255": r"$\frac{72}{255}$",
    "108/255": r"$\frac{108}{255}$",
    "1": "$1$",
}
_HEADS = {
    "natural": ("Natural", "Accuracy"),
    "parameters": ("Number of", "Parameters"),
    "seconds": ("Time by", "Epoch (s)"),
    "inference": ("Inference", "Time"),
}
_SIGNS = {  # what the notes and names contain beyond ASCII
    "3√2/2": r"$\frac32 \sqrt{2}$",
    "√2/2": r"$\frac12 \sqrt{2}$",
    "2√2": r"$2 \sqrt{2}$",
    "√2": r"$\sqrt{2}$",
    "q_j": "$q_j$",
    "q_i": "$q_i$",
    "ε": r"$\epsilon$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "…": r"\dots",
}


def latex_table(record: Mapping[str, Any]) -> str:
    """The whole table environment."""
    made = sheet(record)
    stubs, width = len(made.stubs), len(made.stubs) + 1 + len(made.blocks) * len(made.columns)
    spec = "l" * (stubs + 1) + "r" * (width - stubs - 1)
    notes = "\n".join(rf"    {text(note)}\par" for note in footnotes(record))
    caption = f"{text(title(record))}. The paper's caption: {text(record['paper']['caption'])}"
    body = "\n".join(f"    {line}" for line in [*_header(made), r"\midrule", *_body(made, width)])
    size = r"\scriptsize" if width > 9 or len(made.lines) > 40 else r"\footnotesize"
    return rf"""\begin{{table}}[t]
  \centering
  \caption{{{caption}}}
  {{{size}\setlength{{\tabcolsep}}{{3.5pt}}
    \begin{{tabular}}{{{spec}}}
    \toprule
{body}
    \bottomrule
    \end{{tabular}}%
  }}
  \par\smallskip
  \begin{{minipage}}{{\linewidth}}\scriptsize
{notes}
  \end{{minipage}}
  \label{{{record["paper"]["label"]}_reproduced}}%
\end{{table}}%
"""


def text(words: str) -> str:
    """Plain words as LaTeX in ASCII."""
    marks = {sign: chr(0xE000 + index) for index, sign in enumerate(_SIGNS)}  # kept from escaping
    for sign, mark in marks.items():
        words = words.replace(sign, mark)
    words = latex(words)
    for sign, mark in marks.items():
        words = words.replace(mark, _SIGNS[sign])
    return words


def _header(made: Sheet) -> list[str]:
    """One to three lines: the data sets if side by side, the kinds of accuracy, the radii."""
    radii = [column for column in made.columns if column in _RADII]
    if not radii:
        heads = [_bold(*_HEADS.get(column, (column,))) for column in made.columns]
        return [" & ".join([*(_bold(stub) for stub in made.stubs), _bold("Source"), *heads]) + r" \\"]
    attacked = made.columns == tuple(radii)
    kind = r"\textit{AutoAttack}" if attacked else "Provable Accuracy"
    wide, above = len(made.blocks) > 1, len(made.blocks) > 1 and not attacked
    first: list[str] = []
    second: list[str] = []
    third: list[str] = []
    rules_first, rules_second = [], []
    height = 3 if above else 2
    for stub in (*made.stubs, "Source"):
        cell = rf"\multirow{{{height}}}{{*}}{{{_bold(stub)}}}"
        (first if above else second).append(cell)
        if above:
            second.append("")
        third.append("")
    column = len(made.stubs) + 2
    for block in made.blocks:
        if above:
            first.append(rf"\multicolumn{{{len(made.columns)}}}{{c}}{{{_bold(block)}}}")
            rules_first.append(rf"\cmidrule(lr){{{column}-{column + len(made.columns) - 1}}}")
        name = rf"{text(block)} -- {kind}" if wide and attacked else kind
        for head in made.columns:
            if head not in _RADII:
                second.append(rf"\multirow{{2}}{{*}}{{{_bold(*_HEADS.get(head, (head,)))}}}")
                third.append("")
                column += 1
                continue
            if head == radii[0]:
                second.append(
                    rf"\multicolumn{{{len(radii)}}}{{c}}{{\textbf{{{name} ($\boldsymbol{{\varepsilon}}$)}}}}"
                )
                rules_second.append(rf"\cmidrule(lr){{{column}-{column + len(radii) - 1}}}")
            third.append(_RADII[head])
            column += 1
    made_lines = [" & ".join(line) + r" \\" for line in (first, second, third) if line]
    rules = [*(["".join(rules_first)] if above else []), "".join(rules_second)]
    return [part for pair in zip(made_lines, [*rules, ""], strict=True) for part in pair if part]


def _bold(*words: str) -> str:
    if len(words) == 1:
        return rf"\textbf{{{text(words[0])}}}"
    return r"\makecell{" + r" \\ ".join(rf"\textbf{{{text(word)}}}" for word in words) + "}"


def _body(made: Sheet, width: int) -> list[str]:
    """Lines with rules between the groups; a name stands once, in the middle of its lines."""
    written: list[str] = []
    previous: tuple[tuple[str, ...], Line] | None = None
    for index, (names, line) in enumerate(made.lines):
        level = _level(previous, (names, line))
        if level is not None:
            written.append(r"\midrule" if level == 0 else rf"\cmidrule{{{level + 1}-{width}}}")
        cells = [_stub(made, index, depth) for depth in range(len(names) - 1)]
        fresh = previous is None or previous[0] != names
        cells.append(_model(line) if fresh else "")
        cells.append(r"$\pm$" if line.source == SPREAD else text(line.source))
        cells += [text(cell) for cell in line.cells]
        written.append(" & ".join(cells) + r" \\")
        previous = (names, line)
    return written


def _level(above: tuple[tuple[str, ...], Line] | None, here: tuple[tuple[str, ...], Line]) -> int | None:
    """The first column of names in which a group begins; None within a group."""
    if above is None:
        return None
    groups = list(zip(above[0][:-1], here[0][:-1], strict=True))
    for depth, (old, new) in enumerate(groups):
        if old != new:
            return depth
    return len(groups) if bool(above[1].citation) != bool(here[1].citation) else None


def _stub(made: Sheet, index: int, depth: int) -> str:
    """A name over all its lines, where they begin."""
    key = made.lines[index][0][: depth + 1]
    if index and made.lines[index - 1][0][: depth + 1] == key:
        return ""
    count = 0
    while index + count < len(made.lines) and made.lines[index + count][0][: depth + 1] == key:
        count += 1
    return rf"\multirow{{{count}}}{{*}}{{{text(key[depth])}}}"


def _model(line: Line) -> str:
    cited = rf" {{\scriptsize \citep{{{line.citation}}}}}" if line.citation else ""
    return rf"\textbf{{{text(line.model)}}}{cited}"
