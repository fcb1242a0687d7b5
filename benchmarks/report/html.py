"""Parts of HTML pages: scroll boxes, sortable tables, inline figures, and the page frame."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.report.rows import Row
from benchmarks.report.text import laid_out
from probneural.errors import DataError

_STYLE, _SCRIPT = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))

BROAD = 1000
"""Width in pixels above which a figure fills the page."""


def page(title: str, body: str) -> str:
    """A self-contained page; the title is text, the body HTML."""
    return _PAGE.format(title=escape(title), style=_STYLE, script=_SCRIPT, body=body)


def boxed(content: str, *, label: str, kind: str = "wide") -> str:
    """Wide content in a box that scrolls, also by keyboard."""
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def folded(summary: str, content: str, *, kind: str = "", anchor: str = "", is_open: bool = False) -> str:
    """Content that opens at a click on its summary (HTML)."""
    attributes = (f' class="{kind}"' if kind else "") + (f' id="{anchor}"' if anchor else "") + (" open" if is_open else "")
    return f"<details{attributes}><summary>{summary}</summary>{content}</details>"


def paragraphs(sentences: Sequence[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def slug(name: str) -> str:
    """A name as an anchor.

    Examples:
        >>> slug("Heat 2-D, diffusivity 0.01")
        'heat-2-d-diffusivity-0-01'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "problem"


def html_table(table: Sequence[Row], *, label: str, reasons: Sequence[Mapping[str, str]] = ()) -> str:
    """A table that sorts by the values of its cells."""
    headings, cells, numeric = laid_out(table)
    sides = ["number" if right else "text" for right in numeric]
    head = "".join(
        f'<th class="{side}"><button type="button">{escape(heading)}</button></th>'
        for heading, side in zip(headings, sides, strict=True)
    )
    body = []
    for place, line in enumerate(cells):
        why = reasons[place] if reasons else {}
        row = ""
        for heading, cell, side in zip(headings, line, sides, strict=True):
            value = table[place].get(heading)
            key = "" if value is None else str(value)
            title = f' title="{escape(why[heading])}"' if value is None and heading in why else ""
            row += f'<td class="{side}" data-key="{escape(key)}"{title}>{escape(cell)}</td>'
        body.append(f"<tr>{row}</tr>")
    return boxed(f'<table class="sorts"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>', label=label)


def figure(caption: str, image: str | bytes, problem: str) -> str:
    if isinstance(image, bytes) and image.startswith(b"\x89PNG\r\n"):
        kind, content = "image/png", image
    elif isinstance(image, str) and "<svg" in image:
        # As an image, an SVG runs no scripts, and its ids cannot clash with those of other figures.
        kind, content = "image/svg+xml", image.encode()
    else:
        raise DataError(
            expected=f"a PNG image or SVG text as figure {caption!r}",
            got=str(type(image)),
            remedy="render it with probneural.plots.png",
        )
    data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    described = f"{problem}: {caption}" if problem else caption
    image_tag = f'<img alt="{escape(described)}" loading="lazy" src="{data}">'
    card = boxed(image_tag, label=f"Figure: {described}", kind="card")
    is_broad = kind == "image/png" and _width(content) > BROAD
    return f"<figure{' class=broad' if is_broad else ''}>{card}<figcaption>{escape(caption)}</figcaption></figure>"


def _width(image: bytes) -> int:
    """Width of a PNG image in pixels, from its header."""
    return int.from_bytes(image[16:20], "big")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""
