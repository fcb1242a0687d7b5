"""Write llms.txt, a list of all pages with a sentence each, and llms-full.txt with the text of the guides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_pages: dict[str, str] = {}
"""Markdown by the page's path, of the build that runs."""


def on_pre_build(**_: Any) -> None:
    """Clear the pages of an earlier build."""
    _pages.clear()


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Store the text of a page."""
    _pages[page.file.src_uri] = markdown
    return markdown


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Store the order of the pages."""
    _pages.update({page.file.src_uri: "" for page in nav.pages})
    return nav


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Write both files to the folder of the home page."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    texts = []
    for path, markdown in _pages.items():
        title = next((line[2:] for line in markdown.splitlines() if line.startswith("# ")), path)
        address = path.removesuffix("index.md").removesuffix(".md")
        lines.append(
            f"- [{title}]({address + '/' if address and not address.endswith('/') else address or './'}): {_about(markdown)}"
        )
        if not path.startswith(("reference/", "design/")):
            texts.append(markdown.strip())
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _about(markdown: str) -> str:
    """The first sentence of a page's first paragraph."""
    paragraphs = (" ".join(block.split()) for block in markdown.split("\n\n"))
    first = next((text for text in paragraphs if text and text[0].isalnum()), "reference of what the title names")
    return first.partition(". ")[0].rstrip(".:") + "."
