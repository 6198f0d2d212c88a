"""Plain English: shapes of sentences that nobody would say aloud, kept out of what users read.

This is a short list of mistakes that were made, not a style guide. It looks at every page and every string of the
package: help texts, errors, tables, docstrings.
"""

import ast
import re

import pytest

from paths import ROOT

ODD = [
    r"vouche?[sd]?\b",
    r"\bof yours\b",
    r"no number any ?more|became no number|is no longer a number",
    r"got it inside|got none\b|got nothing\b|got one that may",
    r"argues? against",
    r"layer answers for|answers? for (its|their) (formula|constant)",
    r"speaks? JSON",
    r"[Nn]obody (proved|asked|vouche)",
    r"with who\b",
    r"[Oo]f everything random",
    r"\bBuild it anew\b",
    r"basis of waves|in waves\b",
    r"How many there are|After one that does not count|how fast the confident stop",
    r"wherever in an epoch",
    r"behind your back|a hair (more|less|larger|smaller|outside)",
    r"for the (features|channels|images) there are",
    r"costs one idea to trust|say how much more there might be|dearer steps",
    r"\bin this house\b|house style|\brooms of\b",
]
PATTERN = re.compile("|".join(f"(?:{shape})" for shape in ODD))


def texts():
    """Everything that users read, with the file that holds it."""
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
    for path in [*map(ROOT.joinpath, pages), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").iterdir()]:
        if path.is_file():
            yield path.relative_to(ROOT), re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    source = ROOT / "src" / "lipcert"
    for path in [*source.rglob("*.py"), *source.rglob("*.jinja")]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            text = "\n".join(value for value in strings if isinstance(value, str))
        yield path.relative_to(ROOT), re.sub(r"\s+", " ", text)


def test_no_odd_sentence_is_left():
    found = [
        f"{path}: … {text[max(0, match.start() - 40) : match.end() + 20]} …"
        for path, text in texts()
        for match in PATTERN.finditer(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "sentence",
    [
        "A layer answers for its formula with its present parameters and mode.",
        "share_bounds must not be nested; got it inside another one.",
        "diverged: the loss of every seed became no number",
        "its bias must have shape (4,); got (1,). Build it anew.",
        "no model matches 'foo*'; got none of 130. Try '*'.",
        "What nobody vouched for is refused",
        "by a method that is named … a rule of yours",
    ],
)
def test_the_pattern_finds_the_sentences_that_it_is_about(sentence):
    assert PATTERN.search(sentence)


def test_every_flag_has_a_sentence():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S.*?)` \| .*? \| (.*?) \|$", page, re.M)
    assert len(rows) > 100
    for name, meaning in rows:
        assert re.match(r"[A-Z`]|[a-z]+\d* \(|torch ", meaning), f"{name}: {meaning!r} does not begin a sentence"
        assert meaning.endswith((".", "…")), f"{name}: {meaning!r} does not end one"
