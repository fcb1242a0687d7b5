"""The program, as a stranger runs it: one file, one command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest
import torch
import xarray
from safetensors.torch import load_file

from probneural import command_line, runs
from probneural.command_line import main
from probneural.errors import FileError
from probneural.runs.config import Config, hints_of
from probneural.runs.reporting import print_page
from tests.runs.files import cheap, written

ROOT = Path(__file__).parents[1]
SMALL = ["--training.epochs", "2", "--operator.options", "modes=[4]", "width=4", "depth=1", "--scores.whole", "4"]
LATE = """operator = { options = { widht = 3 } }
[data]
path = "waves.nc"
periodic = []
inputs = ["a"]
outputs = ["u"]
"""
"""Mistakes that show when the data are looked at."""
NAMED = ["--inputs", "a", "--outputs", "u", "--periodic", "true"]


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own."""
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "probneural", *words],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_command_leads_from_a_file_to_a_report(tmp_path: Path) -> None:
    written(tmp_path)
    finished = program(tmp_path, "report", "waves.nc", *NAMED, *SMALL)
    assert finished.returncode == 0, finished.stderr
    assert "coverage at 0.9, pointwise" in finished.stdout
    assert finished.stdout.splitlines()[-1] == "waves-run/report.html"
    assert "epoch 2 of 2: train" in finished.stderr
    names = {"config.toml", "run.json", "operator.safetensors", "history.json", "head.safetensors", "predictor.safetensors"}
    names |= {"calibration.json", "scores.json", "report.html", ".lock"}
    assert {path.name for path in (tmp_path / "waves-run").iterdir()} == names
    again = program(tmp_path, "score", "waves.nc", "--quiet")
    assert again.returncode == 0
    assert again.stderr == ""
    predicted = program(tmp_path, "predict", "waves-run", "waves.nc", "out.nc")
    assert predicted.returncode == 0, predicted.stderr
    with xarray.open_dataset(tmp_path / "out.nc") as dataset:
        assert dict(dataset.sizes) == {"sample": 40, "lon": 16}


BROWSER = """#!/bin/sh
printf '%s\\n' "$@" > "$0.txt"
for word; do case $word in --print-to-pdf=*) printf %s "%PDF" > "${word#*=}";; esac; done
"""
"""Records its arguments, and writes a file."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a data file."""
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_is_one_call(place: Path) -> None:
    assert main(["calibrate", "waves.nc", *NAMED, *SMALL, "--folder", "one", "--quiet"]) == 0
    config = cheap(place / "waves.nc")
    options = {name: value for name, value in config.operator.options.items() if name != "projection"}
    config = Config.from_dict({**config.to_dict(), "operator": {"options": options}})
    runs.calibrate(config, "two", show_progress=False)
    for name in ("operator.safetensors", "predictor.safetensors"):
        one, two = (load_file(place / folder / name) for folder in ("one", "two"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert (place / "one" / "calibration.json").read_text() == (place / "two" / "calibration.json").read_text()
    records = [json.loads((place / folder / "run.json").read_text()) for folder in ("one", "two")]
    assert records[0] == records[1]


def test_reports_are_printed(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "waves.nc", *NAMED, *SMALL, "--quiet", "--pdf"]
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    assert main(words) == 1
    assert "expected WeasyPrint, or Chromium or Google Chrome on the PATH" in capsys.readouterr().err
    assert not (place / "waves-run").exists()
    browser, printed = place / "chromium", place / "waves-run" / "report.pdf"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    assert main(words) == 0
    assert printed.read_text() == "%PDF"
    assert capsys.readouterr().out.endswith("waves-run/report.html\nwaves-run/report.pdf\n")
    arguments = Path(f"{browser}.txt").read_text().splitlines()
    assert arguments[0] == "--headless"
    assert arguments[-1] == (place / "waves-run" / "report.html").as_uri()
    assert main([*words, "own.pdf"]) == 0
    assert Path("own.pdf").read_text() == "%PDF"
    page = place / "waves-run" / "report.html"
    for script, message in (("echo no screen >&2; exit 3", "no screen"), ("exit 0", "it wrote nothing")):
        browser.write_text(f"#!/bin/sh\n{script}\n")
        with pytest.raises(FileError, match=message):
            print_page(page, printed)
        assert printed.read_text() == "%PDF"
    (place / "weasyprint.py").write_text("import sys; open(sys.argv[2], 'w').write(sys.argv[1])")
    monkeypatch.delitem(sys.modules, "weasyprint")
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    print_page(page, printed)
    assert printed.read_text() == str(page)
    with pytest.raises(SystemExit):
        main(["report", "--pdf", "waves.nc"])
    assert "does not end in .pdf" in capsys.readouterr().err


def test_init_writes_what_is_known(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert runs.read_config("run.toml") == Config()
    assert main(["init", "waves.nc", "--output", "open.toml"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "open.toml; still to be filled in: inputs, outputs, periodic"
    assert "# The file holds a (sample 40, lon 16); u (sample 40, lon 16); slope" in Path("open.toml").read_text()
    (place / "below").mkdir()
    assert main(["init", "waves.nc", *NAMED, "--operator.name", "FNO", "--output", "below/full.toml"]) == 0
    config = runs.read_config("below/full.toml")
    assert (config.training.epochs, config.operator.options["modes"]) == (200, [8])
    assert Path(config.data.path).resolve() == place / "waves.nc"
    data = runs.Data(path="waves.nc", inputs=("a",), outputs=("u",), periodic=(True,))
    known = runs.Config(data=data, operator=runs.Operator(name="FNO"))
    assert runs.init(known, "below/python.toml").data.path == "../waves.nc"
    assert Path("below/python.toml").read_text() == Path("below/full.toml").read_text()
    capsys.readouterr()
    assert main(["init"]) == 1
    assert "say --overwrite" in capsys.readouterr().err
    assert main(["init", "--overwrite"]) == 0


def test_settings_come_from_the_file_and_the_command_line(place: Path) -> None:
    runs.write_config(cheap(place / "waves.nc"), "run.toml")
    assert main(["train", "--config", "run.toml", "--training.seed", "3", "--quiet"]) == 0
    config = runs.read_config("waves-run/config.toml")
    assert (config.training.epochs, config.training.seed, config.operator.options["width"]) == (2, 3, 4)
    assert main(["train", "--config", "run.toml", "--operator.name", "PODDeepONet", "--folder", "pod", "--quiet"]) == 0
    assert "width" not in runs.read_config("pod/config.toml").operator.options
    words = ["--head.name", "DeepEnsemble", "--head.options", "members=2", "--folder", "clipped", "--quiet"]
    words += ["--training.optimization.schedule", "none", "--training.optimization.gradient_clip", "0.5"]
    assert main(["train", "--config", "run.toml", *words, "--training.early_stopping.patience", "5"]) == 0
    config = runs.read_config("clipped/config.toml")
    training = config.training
    assert config.head.options["members"] == 2
    assert training.optimization == runs.Optimization(schedule="none", gradient_clip=0.5)
    assert training.early_stopping == runs.EarlyStopping(patience=5)
    assert (training.epochs, training.seed) == (2, 0)
    words = ["--head.name", "LastLayerLaplace", "--folder", "plain", "--quiet"]
    assert main(["train", "--config", "clipped/config.toml", *words]) == 0
    assert runs.read_config("plain/config.toml").head == runs.Head(name="LastLayerLaplace")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train"], 1, "expected a data file, or the folder of a run; got neither"),
        (["train", "none.nc", *NAMED], 1, "No such file"),
        (["train", "waves.nc", "--inputs", "a", "--outputs", "u"], 1, "expected periodic in [data] (--periodic), one entry"),
        (["train", "waves.nc", *NAMED, "--operator.options", "widht=3"], 1, "did you mean 'width'?"),
        (["train", "--config", "bad.toml"], 1, "got 'epoch' in line 2 of bad.toml; did you mean 'epochs'?"),
        (["train", "--config", "late.toml"], 1, "expected periodic in [data] (--periodic)"),
        (["train", "--config", "late.toml", "--periodic", "true"], 1, "got 'widht' in operator.options; did you mean"),
        (
            ["train", "--config", "late.toml", "--periodic", "true", "--operator.options", "wdth=3"],
            1,
            "got 'wdth' in operator.options",
        ),
        (["info", "waves.txt"], 1, "No such file"),
        (["predict", "none", "waves.nc", "out.nc"], 1, "a run's folder at none; got none"),
        (["report", "--folder", "old"], 1, "a folder of format probneural-run-2; got probneural-run-1"),
    ],
)
def test_errors_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    (place / "bad.toml").write_text("[training]\nepoch = 3\n")
    (place / "late.toml").write_text(LATE)
    (place / "old").mkdir()
    (place / "old" / "run.json").write_text('{"format": "probneural-run-1"}')
    (place / "old" / "config.toml").write_text("[training]\nrate = 0.1\n")
    assert main(words) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("probneural: expected")
    assert printed.count("\n") == 1
    assert main([*words, "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["trian"],
        ["train", "waves.nc", "--periodic", "maybe"],
        ["train", "waves.nc", "--training.epochs", "0"],
        ["train", "waves.nc", "--training.epoch", "3"],
        ["train", "waves.nc", "--operator.options", "width"],
        ["info"],
    ],
)
def test_wrong_usage_exits_with_two(place: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--training.epochs", "0"], "expected --training.epochs: greater than or equal to 1 or 'auto'; got 0; change it"),
        (["--split.test", "1.5"], "expected --split.test: less than 1; got 1.5; change it"),
        (["--lengths", "-1"], "expected --lengths: greater than 0; got -1; change it"),
        (
            ["--training.early_stopping.patience", "0"],
            "expected --training.early_stopping.patience: greater than or equal to 1 or 'none'; got 0; change it",
        ),
    ],
)
def test_values_out_of_range_name_the_option(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "waves.nc", *NAMED, *words])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"probneural: {message}\n"


def test_every_setting_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    sections = [("" if section == "data" else f"{section}.", kind) for section, kind in hints_of(Config).items()]
    for prefix, kind in sections:  # which grows
        for name, hint in hints_of(kind).items():
            if is_dataclass(hint):
                sections.append((f"{prefix}{name}.", hint))
            else:
                assert f"--{prefix}{name} " in printed
    assert "--training.early_stopping.patience " in printed
    assert "coordinates do not contain it" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        (["train", "--config", "pipe"], None, "pipe, socket or device"),
        pytest.param(["info", "pipe"], None, "pipe, socket or device", marks=pytest.mark.slow),
        pytest.param(["train", "pipe", *NAMED], None, "pipe, socket or device", marks=pytest.mark.slow),
        (["train", "--config", "odd"], "\n".join(f"s{number} = 1" for number in range(40_000)), "more than 65536"),
        (["train", "--config", "odd"], f"[operator.options]\na = {'[' * 300}{']' * 300}", "TOML in odd"),
        (["train", "--config", "odd"], f"[training]\nseed = {'9' * 5000}", "TOML in odd"),
        (["train", "--config", "odd"], '[data]\npath = "a\\u0000"', "embedded null byte"),
        (["info", "x" * 5000], "", "File name too long"),
        (["info", "odd"], "", "begins with"),
        (["train", "waves.nc", *NAMED, "--operator.options", f"a={'[' * 5000}"], "", "got 'a'"),
        (["train", "waves.nc", "--inputs", *["a"] * 3000, "--outputs", "u", "--periodic", "true"], "", "each name once"),
    ],
)
def test_hostile_words_and_files_are_one_line(
    place: Path, capfd: pytest.CaptureFixture[str], words: list[str], content: str | None, message: str
) -> None:
    """Pipes in a process of their own: one that is opened waits for ever."""
    if content is None:
        os.mkfifo(place / "pipe")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "probneural", *words]
        assert subprocess.run(command, env=environment, check=False, timeout=120).returncode == 1
    else:
        (place / "odd").write_text(content)
        assert main(words) == 1
    printed = capfd.readouterr().err
    assert printed.startswith("probneural: ")
    assert message in printed
    assert "Traceback" not in printed


def test_names_that_are_no_text_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command_line._say("a\udcff")
    assert capsys.readouterr().out == "a\\udcff\n"


def test_stopping_says_how_to_go_on(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "info", stop)
    assert main(["info", "waves.nc"]) == 130
    assert capsys.readouterr().err == "probneural: stopped; repeat the command to go on\n"
