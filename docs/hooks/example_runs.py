"""Run the scripts of `examples/` at full size and store their output, or run them and compare with the stored output.

`python docs/hooks/example_runs.py [NAME ...]` runs scripts at full size and fills `docs/gallery/` (`make gallery`). The name
`five_minutes` is the program of the README; `make test` compares its output with that of a fresh run. `make test-all` runs the
others too, at full size and at the sizes of `examples/small.toml`.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "docs" / "gallery"
OUTPUTS = KEPT / "outputs.json"
PROGRAM = "five_minutes"
"""The README's program; the others are files."""
NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)\b", re.IGNORECASE)
TIMINGS = {
    "curvature_of_an_operator": r"(?m)^  [HG] v.*: [\d.]+$",
    "learn_an_operator": r"(?m)(?: +\d+\.\d){4}$",  # the last four columns, in seconds
}
"""Regular expressions of measured times, by script; no other numbers are exempt from the comparison."""


class StaleError(Exception):
    """The stored output does not belong to the script."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Printed text, figures and processor seconds of a script."""

    printed: str
    figures: dict[str, bytes]
    seconds: float


def scripts() -> list[Path]:
    """All examples, by name."""
    return sorted((ROOT / "examples").glob("*.py"))


def source(name: str) -> str:
    """The text of an example, or of the README's program."""
    if name != PROGRAM:
        return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    return next(block for block in blocks if "burgers = pn.problems.Burgers" in block)


def small(name: str) -> str:
    """The text of an example with the sizes of `examples/small.toml`.

    Raises:
        StaleError: If the table lacks the script, or names a constant that the script does not assign.
    """
    table = tomllib.loads((ROOT / "examples" / "small.toml").read_text(encoding="utf-8"))
    if name not in table:
        raise StaleError(f"examples/small.toml has no table for {name}: add the sizes of a quick run, {name} = {{ ... }}")
    return resized(source(name), table[name])


def resized(text: str, sizes: dict[str, Any]) -> str:
    r"""A program whose constants, assigned at its top level, have other values.

    Examples:
        >>> resized("WIDTH, EPOCHS = 32, 50  # large\nprint(WIDTH)\n", {"EPOCHS": 2})
        'WIDTH, EPOCHS = 32, 2\nprint(WIDTH)\n'
    """
    lines, missing = text.splitlines(keepends=True), set(sizes)
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        names = [target.id for target in ast.walk(node.targets[0]) if isinstance(target, ast.Name)]
        if set(names) & set(sizes):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            written = dict(zip(names, map(ast.unparse, values), strict=True))
            new = [repr(sizes[name]) if name in sizes else written[name] for name in names]
            lines[node.lineno - 1] = f"{', '.join(names)} = {', '.join(new)}\n"
            missing -= set(names)
    if missing:
        raise StaleError(f"examples/small.toml names what the script does not assign: {', '.join(sorted(missing))}")
    return "".join(lines)


def run(text: str, name: str) -> Output:
    """Run a program in an empty folder, with one thread.

    Raises:
        StaleError: If it fails.
    """
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"{name}.py")
        script.write_text(text, encoding="utf-8")
        start = _processor_seconds()
        finished = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise StaleError(f"{name} failed:\n{finished.stderr[-4000:]}")
        figures = {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.png"))}
    return Output(printed=finished.stdout.rstrip(), figures=figures, seconds=_processor_seconds() - start)


def _processor_seconds() -> float:
    """Of all programs that have been run so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fingerprint(text: str) -> str:
    """A hash of the syntax tree of a program, without its first docstring; equal on all versions of Python."""
    tree = ast.parse(text)
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    empty = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # where lists without entries are left out
    dump = ast.dump(tree, **empty).replace(", type_params=[]", "")  # of 3.12 and later
    return hashlib.sha256(dump.encode()).hexdigest()[:16]


def outline(printed: str) -> set[str]:
    r"""The kinds of lines in an output: numbers and blanks do not count, nor how often a line comes.

    Examples:
        >>> sorted(outline("error 0.5\nerror  1e-3\nTrue"))
        ['True', 'error #']
    """
    return {" ".join(NUMBER.sub("#", line).split()) for line in printed.splitlines()}


def differing_lines(stored: str, printed: str, *, exempt: str = r"(?!)") -> list[tuple[str, str]]:
    """Pairs of lines whose words differ, or a number by more than 2 % and two units of its last printed digit.

    Examples:
        >>> differing_lines("NLL -13.57  nat", "NLL -13.43 nat")
        []
        >>> differing_lines("NLL -13.57  nat", "NLL -15.65 nat")
        [('NLL -13.57  nat', 'NLL -15.65 nat')]
    """
    texts = (re.sub(exempt, "", text).splitlines() for text in (stored, printed))
    return [pair for pair in itertools.zip_longest(*texts, fillvalue="") if not _agree(*pair)]


def _agree(first: str, second: str) -> bool:
    numbers = zip(NUMBER.findall(first), NUMBER.findall(second), strict=False)
    return outline(first) == outline(second) and all(itertools.starmap(_are_close, numbers))


def _are_close(first: str, second: str) -> bool:
    values = [Decimal(number.replace(",", "")) for number in (first, second)]
    if not all(value.is_finite() for value in values):
        return first == second
    unit = min(Decimal((0, (1,), value.as_tuple().exponent)) for value in values)
    return abs(values[0] - values[1]) <= max(2 * unit, max(map(abs, values)) / 50)


def computer() -> str:
    """Architecture, vector instructions and PyTorch: where they are equal, runs print equal numbers."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def kept() -> dict[str, dict[str, Any]]:
    """Stored outputs of the full-size runs, by name."""
    return json.loads(OUTPUTS.read_text(encoding="utf-8")) if OUTPUTS.exists() else {}


def check_program(name: str) -> dict[str, Any]:
    """Return the stored output of a script.

    Raises:
        StaleError: If there is none, or if the script has changed since.
    """
    entry = kept().get(name)
    if entry is None or entry["program"] != fingerprint(source(name)):
        raise StaleError(f"{name} is not the program whose output is kept in docs/gallery; {_remedy(name)}")
    return entry


def _remedy(name: str) -> str:
    return f"run it again at full size: make gallery EXAMPLES={name}"


def check(name: str, output: Output) -> None:
    """Compare the stored output of a script with the script and with its output at another size.

    Raises:
        StaleError: If the script has changed since, prints other lines, or draws other figures.
    """
    entry, remedy = check_program(name), _remedy(name)
    difference = outline(entry["printed"]) ^ outline(output.printed)
    if difference:
        raise StaleError(f"{name} prints other lines than those kept: {sorted(difference)}; {remedy}")
    if entry["figures"] != sorted(output.figures):
        raise StaleError(f"{name} draws {sorted(output.figures)}, and {entry['figures']} are kept; {remedy}")


def check_numbers(name: str, output: Output) -> None:
    """Compare the stored output of a script with its output at full size; on another kind of computer without numbers.

    Raises:
        StaleError: As for `check`, or if a number differs.
    """
    check(name, output)
    entry = kept()[name]
    difference = differing_lines(entry["printed"], output.printed, exempt=TIMINGS.get(name, r"(?!)"))
    if difference and entry["computer"] == computer():
        raise StaleError(f"{name} prints other numbers than those kept: {difference}; {_remedy(name)}")


def keep(name: str) -> None:
    """Run a script at full size, and store its output and figures."""
    output = run(source(name), name)
    for figure, image in output.figures.items():
        (KEPT / figure).write_bytes(image)
    entry = {
        "program": fingerprint(source(name)),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "computer": computer(),
        "seconds": round(output.seconds),
        "figures": sorted(output.figures),
        "printed": output.printed,
    }
    table = dict(sorted({**kept(), name: entry}.items()))
    OUTPUTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    for chosen in sys.argv[1:] or [PROGRAM, *(path.stem for path in scripts())]:
        keep(chosen)
        print(f"{chosen}: {kept()[chosen]['seconds']} s", flush=True)  # noqa: T201
