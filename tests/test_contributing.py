"""The examples of docs/how-to/extend.md: added to a copy of the tree, they pass their tests, the linter and the layers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PARTS = ("probneural", "tests", "pyproject.toml", "setup.cfg")
"""What the examples change or their tests read."""


class Block(NamedTuple):
    """A fenced block: its language, the file that its title names, and its text."""

    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    """All blocks of the page, in order."""
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text()
    page = re.sub(r'^--8<-- "(.*)"\n', lambda snippet: (ROOT / snippet[1]).read_text(), page, flags=re.MULTILINE)
    matches = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', page, flags=re.MULTILINE | re.DOTALL)
    return [Block(*parts) for parts in matches]


def patched(text: str, diff: str) -> str:
    """A text in which the lines of a diff that start with a space or a minus became those with a space or a plus."""
    lines = diff.splitlines(keepends=True)
    assert {line[0] for line in lines} <= {" ", "-", "+"}
    before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
    places = list(re.finditer(f"^{re.escape(before)}", text, flags=re.MULTILINE))
    assert len(places) == 1, f"{len(places)} places for\n{diff}"
    return text[: places[0].start()] + after + text[places[0].end() :]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to which the page's blocks have been added."""
    folder = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for block in blocks():
        path = folder / block.title
        if block.language == "python":
            assert not path.exists(), f"{block.title} is there already"
            path.write_text(block.text)
        elif block.language == "diff":
            path.write_text(patched(path.read_text(), block.text))
    return folder


def run(command: list[str], folder: Path) -> str:
    """What a command prints, which has to succeed."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-4000:]
    return finished.stdout


def commands() -> list[list[str]]:
    """The page's calls of pytest on the examples: files, and the name to look for."""
    lines = [line for block in blocks() if block.language == "console" for line in block.text.replace("\\\n", "").splitlines()]
    calls = [shlex.split(line) for line in lines if " -m pytest " in line]
    assert all(call[:3] == [".venv/bin/python", "-m", "pytest"] and call[-2] == "-k" for call in calls)
    return [call[3:-2] + call[-1:] for call in calls]


def test_worked_examples_pass_their_tests(tree: Path) -> None:
    """All in one process, because importing torch takes longer than most of the tests."""
    names = [call[-1] for call in commands()]
    files = sorted({path for call in commands() for pattern in call[:-1] for path in map(str, tree.glob(pattern))})
    assert len(names) == 3
    printed = run([sys.executable, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider", "-k", " or ".join(names)], tree)
    assert int(re.search(r"(\d+) passed", printed)[1]) > 200
    assert "failed" not in printed


def test_worked_examples_keep_the_style(tree: Path) -> None:
    changed = sorted({block.title for block in blocks() if block.title.endswith(".py")})
    run([sys.executable, "-m", "ruff", "check", "--no-cache", "--fix-only", "--select", "I,RUF022", *changed], tree)
    run([sys.executable, "-m", "ruff", "check", "--no-cache", *changed], tree)
    run([sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *changed], tree)


def test_worked_examples_keep_the_layers(tree: Path) -> None:
    run([str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"], tree)


def test_patches_need_one_place() -> None:
    assert patched("a\nb\nc\n", " a\n-b\n+B\n+D\n") == "a\nB\nD\nc\n"
    for text in ("x\n", "a\nb\na\nb\n"):
        with pytest.raises(AssertionError, match="places for"):
            patched(text, " a\n-b\n")
