"""Set formulas as MathML when the documentation is built: browsers show it without a script or a font from elsewhere."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What pymdownx.arithmatex leaves of $...$ and $$...$$."""


def on_page_content(html: str, **_: Any) -> str:
    """Replace the LaTeX of a page by MathML."""
    return _FORMULA.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    tag, formula = match.groups()
    is_block = tag == "div"
    mathml = convert(unescape(formula), display="block" if is_block else "inline")
    return f'<div class="formula">{mathml}</div>' if is_block else mathml
