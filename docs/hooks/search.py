"""Search: decision records and the changelog are left out, and American and British spellings find the same pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

EXCLUDED = ("design/", "changelog.md")
"""Pages, and folders of pages, that the search leaves out."""

_STEMS = (
    "characteri|discreti|equali|factori|generali|initiali|lineari|locali|maximi|minimi|normali|optimi|organi|"
    "parameteri|penali|randomi|reali|regulari|seriali|standardi|summari|symmetri|utili|vectori|visuali"
)
_SUFFIXES = "e|ed|es|er|ers|ing|ation|ations"
SPELLINGS = (
    (re.compile(rf"\b(\w*(?:{_STEMS}))s({_SUFFIXES})\b", re.IGNORECASE), r"\1z\2"),
    (re.compile(rf"\b(\w*(?:{_STEMS}))z({_SUFFIXES})\b", re.IGNORECASE), r"\1s\2"),
    (re.compile(r"\b(behavi|col|fav|neighb)our(\w*)\b", re.IGNORECASE), r"\1or\2"),
    (re.compile(r"\b(behavi|col|fav|neighb)or(\w*)\b", re.IGNORECASE), r"\1our\2"),
    (re.compile(r"\b(cent)re(s|d)?\b", re.IGNORECASE), r"\1er\2"),
    (re.compile(r"\b(cent)er(s|ed)?\b", re.IGNORECASE), r"\1re\2"),
    (re.compile(r"\b(label|model|travel)l(ed|ing)\b", re.IGNORECASE), r"\1\2"),
    (re.compile(r"\b(label|model|travel)(ed|ing)\b", re.IGNORECASE), r"\1l\2"),
    (re.compile(r"\b(licen)ce(s?)\b", re.IGNORECASE), r"\1se\2"),
    (re.compile(r"\b(licen)se(s?)\b", re.IGNORECASE), r"\1ce\2"),
)
"""Patterns of one spelling with the other one."""


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Exclude a page from the search index if it is one of `EXCLUDED`."""
    if page.file.src_uri.startswith(EXCLUDED):
        page.meta["search"] = {"exclude": True}
    return markdown


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Append the other spellings of its words to every section of the index."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for section in index["docs"]:
        words = other_spellings(f"{section['title']} {section['text']}")
        section["text"] += f"<p>{' '.join(words)}</p>" if words else ""
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def other_spellings(text: str) -> list[str]:
    """The American spellings of the British words of a text, and the reverse.

    Examples:
        >>> other_spellings("normalise the neighbors; noise")
        ['neighbours', 'normalize']
    """
    return sorted({match.expand(other).lower() for pattern, other in SPELLINGS for match in pattern.finditer(text)})
