"""Every link leads to a file of the repository, every anchor to a heading in it, and all files name one version."""

import re
import subprocess
import sys

import pytest

import lipcert
from paths import ROOT

PAGES = sorted(
    path for pattern in ("*.md", "docs/*.md", "results/*.md", "examples/*.ipynb") for path in ROOT.glob(pattern)
)


def anchors(text):
    """What GitHub and MyST make of the headings, and the labels of MyST."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    names = re.findall(r"^\((\S+)\)=$", text, re.M)
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).strip().lower()
        names.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return {re.sub(r"-+", "-", name) for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            found = anchors(path.read_text(encoding="utf-8"))
            assert re.sub(r"-+", "-", anchor) in found, f"{page.name} links to {target}"


def test_one_version_everywhere():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]
    assert version == lipcert.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").startswith(f"# Changelog\n\n## {version}")


def test_the_site_builds_without_a_warning(tmp_path):
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", tmp_path]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=400)
    assert result.returncode == 0, result.stderr
    html = (tmp_path / "rounding.html").read_text(encoding="utf-8")
    assert "ˆ" in html
    assert not re.search(r"<munderover>[^ˆ]{0,200}ˆ", html), "the index of a hat stands below its letter"
