"""How the site is built: Markdown by MyST, the API by autodoc, formulas as MathML at build time.

Formulas go through docutils' own LaTeX converter, so neither the build nor the reader needs the network or a
script. A formula it cannot read is a warning, and ``make docs`` turns warnings into errors.
"""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

import lipcert

project = "lipcert"
author = "The lipcert developers"
project_copyright = author
version = release = lipcert.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"lipcert {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False

logger = logging.getLogger(__name__)


def mathml(node: nodes.Element, *, block: bool) -> str:
    """The formula of ``node`` as MathML; one that cannot be read is a warning and stays LaTeX.

    The converter reads a half without braces as 12 over what follows, and sets the index of a wide hat underneath
    it. Both would be wrong in silence, so they are warnings too.
    """
    formula = node.astext().replace("'", r"^{\prime}")  # an apostrophe would take the index that follows
    if re.search(r"frac\s*\d|\\(wide)?(hat|tilde)\s*\\?\w+}?_", formula):
        logger.warning("formula %r: write \\frac{1}{2} and \\widehat{w_i}", formula, location=node)
    try:
        return tidy(tex2mathml(formula, as_block=block))
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{nodes.unescape(node.astext())}</code>"


def tidy(markup: str) -> str:
    """``markup`` with bars and slashes set as brackets are, and indices of a letter with a hat where they belong.

    A browser gives a bar the space of a relation, lets a double bar grow with the line, and lifts a superscript
    above the hat or tilde. The converter sets the index of a hat below the letter and no space beside functions.
    """
    markup = re.sub(r"<mo[^>]*>([|‖/])</mo>", r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', markup)
    markup = re.sub(r"<mn>(\d),(\d)</mn>", r"<mn>\1</mn><mo>,</mo><mn>\2</mn>", markup)  # a pair, not a number
    # A thin space around the name of a function, none before a bracket.
    name, space = r"<mi[^>]*>[a-z]{2,}</mi>\s*<mo>&ApplyFunction;</mo>", '<mspace width="0.1667em"></mspace>'
    markup = re.sub(rf"({name})(?!\s*<mo[^>]*>[(‖|])", rf"\1{space}", markup)
    markup = re.sub(rf"(</m(?:i|n|sub|sup)>\s*)({name})", rf"\1{space}\2", markup)
    markup = re.sub(r"<mo>(max|min)</mo>(?=\s*<mo[^>]*>[(‖])", r'<mo lspace="0.1em" rspace="0">\1</mo>', markup)
    letter, index = r"(<mi[^>]*>[^<]*</mi>)", r"(<m(?:i|n)>[^<]*</m(?:i|n)>|<mrow>(?:(?!<mrow>|</mrow>).)*</mrow>)"
    under = rf"<munderover>\s*{letter}\s*{index}\s*(<mo[^>]*>[\^ˆ~˜]</mo>)\s*</munderover>"
    markup = re.sub(under, r"<msub><mover>\1\3</mover>\2</msub>", markup, flags=re.DOTALL)
    prime = rf"<msup>\s*{letter}\s*<m[io][^>]*>′</m[io]>\s*</msup>"  # the sign is raised by itself
    markup = re.sub(prime, r'<mrow>\1<mo lspace="0" rspace="0">′</mo></mrow>', markup)
    hat = rf"<mover[^>]*>\s*{letter}\s*<mo[^>]*>[\^ˆ~˜]</mo>\s*</mover>"
    return re.sub(hat, r'<mpadded height="0.7em">\g<0></mpadded>', markup)


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(mathml(node, block=False) + "</span>")
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(mathml(node, block=True) + "</div>\n")
    raise nodes.SkipNode


def plain_mathematics(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings write |x|, (*, m) and A_ij for ``help()``; none of it is markup, so escape it for Sphinx."""
    for index, line in enumerate(lines):
        parts = re.split(r"(``.+?``)", line)  # literals stay as they are
        parts[::2] = [re.sub(r"\||(?<=\()\*(?=,)", r"\\\g<0>", part) for part in parts[::2]]
        lines[index] = "".join(parts)


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None)
    )
    app.connect("autodoc-process-docstring", plain_mathematics)
