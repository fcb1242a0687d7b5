"""A page, a thumbnail and a notebook for every script of `examples/`.

The pages show the stored output of full-size runs (`docs/gallery/`). The build runs no script, and fails if one has changed.
"""

from __future__ import annotations

import ast
from typing import Any

import example_runs as runs
import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the gallery's pages, notebooks and scripts to the site; the figures are there."""
    names = [script.stem for script in runs.scripts()]
    for name in names:
        _check(name)
    pages = {f"{name}.md": _page(name) for name in names}
    pages |= {f"{name}.ipynb": notebook(name) for name in names}
    pages |= {f"{name}.py": runs.source(name) for name in names}
    pages["index.md"] = _index(names)
    for path, content in pages.items():
        files.append(File.generated(config, f"gallery/{path}", content=content))
    return files


def notebook(name: str, *, text: str | None = None) -> str:
    """A script as a Jupyter notebook: its docstring above, then a cell for every paragraph.

    Args:
        name: The script's.
        text: Its source, if other sizes are wanted.
    """
    text = runs.source(name) if text is None else text
    body = "".join(text.splitlines(keepends=True)[ast.parse(text).body[0].end_lineno :]).lstrip()
    book = jupytext.reads(body, fmt="py:light")
    book.cells.insert(0, nbformat.v4.new_markdown_cell(f"# {_title(name)}\n\n{_description(name)}"))
    book.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"  # two builds are the same
    return jupytext.writes(book, fmt="ipynb")


def _check(name: str) -> None:
    try:
        runs.check_program(name)
    except runs.StaleError as error:
        raise PluginError(str(error)) from error


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _description(name: str) -> str:
    return ast.get_docstring(ast.parse(runs.source(name))) or ""


def _introduction(name: str) -> str:
    """The first paragraph of a script's docstring, on one line."""
    return " ".join(_description(name).split("\n\n")[0].split())


def _page(name: str) -> str:
    """Title, description, figures, output, downloads, and the script."""
    entry = runs.kept()[name]
    parts = [f"# {_title(name)}", _description(name)]
    parts += [f"![Figure of the script: {_introduction(name)}]({figure})" for figure in entry["figures"]]
    if entry["printed"]:
        parts += [f"It prints, after {entry['seconds']} s of one core:", f"```text\n{entry['printed']}\n```"]
    parts.append(f"Download it as a [script]({name}.py){{: download }} or a [notebook]({name}.ipynb){{: download }}.")
    parts.append(f'```python\n--8<-- "examples/{name}.py"\n```')
    return "\n\n".join(parts) + "\n"


def _index(names: list[str]) -> str:
    """All examples as cards: thumbnail, title, first sentence."""
    text = (
        "# Gallery\n\nEvery page is a script of `examples/` with the output and figures of its full-size run."
        " `make test-all` runs all scripts at small sizes.\n"
    )
    cards = []
    for name in names:
        figures = runs.kept()[name]["figures"]
        image = f"![]({figures[0]}){{: .thumbnail loading=lazy }} " if figures else ""
        cards.append(f"-   [{image}**{_title(name)}**]({name}.md)\n\n    {_introduction(name)}")
    return text + '\n<div class="gallery" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>\n"
