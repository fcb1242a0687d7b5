"""What is published: an archive and a wheel that build, hold what they should, and run the five-minute program elsewhere."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import probneural
from tests.test_extras import CALLED, check_errors, packages
from tests.test_program import OUTPUT, PROGRAM, ROOT, numbers

PARTS = ("probneural", "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md")
CONFIGURATION = ("constraints.txt", "pyproject.toml", "setup.cfg")


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints, which has to succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    finished = subprocess.run(command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    return finished.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an archive, and of a wheel made from it; for `make release`, what it has built."""
    if "DIST" in os.environ:
        return ROOT / os.environ["DIST"]
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for part in (*PARTS, *CONFIGURATION):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, source / part)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)], target)
    return target


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "probneural").rglob("*.py")}
    assert names == modules | {f"probneural/{name}" for name in ("py.typed", "runs/report.css", "storage/model_card.md")}


@pytest.mark.slow
def test_the_archive_holds_what_one_cites_and_no_tests(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {*PARTS[1:], *CONFIGURATION} <= names
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.slow
def test_the_program_runs_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    """Installed from the wheel without an extra, with the exact versions; it takes minutes and the package index."""
    (wheel,) = built.glob("*.whl")
    python = str(tmp_path / "clean" / "bin" / "python")
    run([sys.executable, "-m", "venv", str(tmp_path / "clean")], tmp_path)
    run([python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)], tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    printed = run([python, "program.py"], tmp_path, OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    found, shown = numbers(printed), numbers(OUTPUT)
    assert list(found) == list(shown)
    for name in ("relative L2 error", "CRPS", "variance factor"):
        assert found[name] == pytest.approx(shown[name], rel=0.5), name  # other machines round otherwise, over 50 epochs
    for name in ("coverage at 0.9, pointwise", "coverage at 0.9, simultaneous"):
        assert found[name] == pytest.approx(shown[name], abs=0.1), name
    installed = {entry["name"] for entry in json.loads(run([python, "-m", "pip", "list", "--format", "json"], tmp_path))}
    assert {"probneural", "torch"} <= installed
    assert not installed & {*packages("all"), "pandas", "pillow"}
    assert run([python, "-c", "import probneural; print(probneural.__version__)"], tmp_path).strip() == probneural.__version__
    errors = json.loads(run([python, str(ROOT / "tests" / "optional_calls.py")], tmp_path))
    for extra in CALLED:
        check_errors(errors, extra)


def test_extras_for_users_and_for_developers_are_apart() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    users, developers = (set(re.search(r"\[(.*)\]", extras[name][0])[1].split(",")) for name in ("all", "dev"))
    assert developers == {"test", "docs"}
    assert users | developers | {"all", "dev"} == set(extras)
    assert not users & developers


def test_every_dependency_has_an_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    exact = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    names = {re.match(r"[\w.-]+", name)[0].lower() for name in wanted} - {"probneural"}
    assert not {name for name in names if not {name, name.replace("_", "-"), name.replace("-", "_")} & exact}


def test_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert probneural.__version__ == version
    assert f"version = {{{version}}}" in (ROOT / "docs" / "about.md").read_text(encoding="utf-8")
    assert f"| {version.rpartition('.')[0]} | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    citation = pytest.importorskip("yaml").safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type", "abstract"} <= set(citation)  # the first four are required
    assert (citation["cff-version"], citation["type"], citation["version"]) == ("1.2.0", "software", version)
    assert all(author["name"] for author in citation["authors"])
    assert isinstance(citation["date-released"], datetime.date)


def test_releases_are_published_without_secrets() -> None:
    """By a token of the run alone, in an environment, after the tests; every action has an exact version."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow = pytest.importorskip("yaml").safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as a truth value
    assert "secrets" not in text
    assert set(re.findall(r"\$\{\{ (.*?) \}\}", text)) == {"github.repository", "github.token"}
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert (jobs["publish"]["environment"], jobs["publish"]["needs"], jobs["attach"]["needs"]) == ("pypi", "build", "publish")
    assert "make release sbom" in [step.get("run") for step in jobs["build"]["steps"]]
    actions = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert actions == re.findall(r"uses: (\S+)\n", text)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", action) for action in actions)
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{name}: venv" in targets for name in ("release", "sbom"))
