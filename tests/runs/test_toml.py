"""Configurations as files: what is written is read back, and what is wrong is named with its line."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probneural.errors import ArgumentError, ConfigurationError, FileError
from probneural.runs import Config, Data, read_config, write_config
from probneural.runs.config import EarlyStopping, Training, convert, explanations, hints_of, is_section, joined
from probneural.runs.toml import line_of, parsed_config, text_of

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBERS | st.text()
TABLES = st.dictionaries(
    st.text(), st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
)


def values_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotation; numbers are between 0 and 1, or 1 and 100, which every range allows."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return values_of(inner[0])
    if origin in (Union, UnionType):
        return st.one_of(map(values_of, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return TABLES
    if wanted is EarlyStopping:
        return st.builds(EarlyStopping, restore_best=st.booleans())  # patience wants a validation split: tested below
    if dataclasses.is_dataclass(wanted):
        return st.builds(wanted, **{name: values_of(hint) for name, hint in hints_of(wanted).items()})
    return {bool: st.booleans(), int: st.integers(1, 100), float: st.floats(1e-6, 0.99), str: st.text()}[wanted]


@given(values_of(Config))
def test_what_is_written_is_read_back(config: Config) -> None:
    text = text_of(config)
    assert parsed_config(text, name="run.toml") == config
    assert Config.from_dict(tomllib.loads(text)) == config


def test_every_setting_is_written_with_its_explanation(tmp_path: Path) -> None:
    write_config(Config(), tmp_path / "run.toml", notes={"data.inputs": "There are a and u."})
    text = (tmp_path / "run.toml").read_text()
    sections = [("", Config)]
    for section, kind in sections:  # which grows
        told, hints = explanations(kind), hints_of(kind)
        assert set(told) - {"source"} == set(hints), section
        for name, hint in hints.items():
            if is_section(hint):
                sections.append((joined(section, name), hint))
                continue
            above = text.partition(f"[{section}]\n")[2].partition(f"\n{name} = ")[0]
            assert told[name] in above.replace("\n# ", " "), name
    assert len(sections) == 10
    assert "# There are a and u.\ninputs = []" in text
    assert read_config(tmp_path / "run.toml") == Config()


def test_the_data_are_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[data]\npath = "flow.nc"\n')
    assert read_config(tmp_path / "run.toml").data.path == str(tmp_path / "flow.nc")


MISTAKES = {
    "[trainig]\nepochs = 3": r"section; got 'trainig' in line 1 of run.toml; did you mean 'training'\?",
    "\n[training]\n# few\nepoch = 3": r"setting of \[training\]; got 'epoch' in line 4 of run.toml; did you mean 'epochs'\?",
    '[training]\nepochs = "many"': r"training.epochs: an integer of at least 1, or 'auto'; got 'many' in line 2 of run.toml",
    "[training]\nepochs = 0": r"training.epochs: an integer of at least 1, or 'auto'; got 0 in line 2 of run.toml",
    "[training]\nepochs = true": r"got True in line 2",
    "[split]\ntest = 1.5": r"split.test: a finite number of above 0 and below 1; got 1.5 in line 2 of run.toml",
    "[split]\ntest = nan": r"split.test: .*; got nan in line 2",
    '[data]\ninputs = [\n  "a",\n]\nperiodic = ["yes"]': r"data.periodic: a list, each entry true or false; .*yes.* in line 5",
    '[data]\ninputs = "a"': r"data.inputs: a list, each entry a text; got 'a' in line 2",
    'data.dtype = "half"': r"one of 'float32', 'float64'; got 'half' in line 1",
    "data = 3": r"a section \[data\]; got 3 in line 1 of run.toml",
    "[data\n": r"TOML in run.toml; got .*line 1",
    "[head]\noptions = { level = 2020-01-01 }": r"head.options.level: true, false, .*; got an object of type date in line 2",
    'operator = { name = "FNO", mode = 3 }': r"setting of \[operator\]; got 'mode' in line 1",
    "[training.optimization]\noptimiser = 1": (
        r"setting of \[training.optimization\]; got 'optimiser' in line 2 of run.toml; did you mean 'optimizer'\?"
    ),
    '[training.optimization]\noptimizer = "sgd"': r"optimization.optimizer: one of 'muon', .*; got 'sgd' in line 2 of run.toml",
    "[training]\noptimization = 3": (
        r"a section \[training.optimization\]; got 3 in line 2 of run.toml; write \[training.optimization\] on a line"
    ),
    "[training.optimization]\ngradient_clip = 0": r"gradient_clip: .* above 0, or 'none'; got 0 in line 2 of run.toml",
    "[training.early_stopping]\n\npatience = 0": r"patience: an integer of at least 1, or 'none'; got 0 in line 3 of run.toml",
    "[split]\n[training]\nvalidation = 0\nearly_stopping.patience = 3": (
        r"validation above 0 .*patience = 3 in line 2 of run.toml; raise validation"
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named_with_their_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=MISTAKES[text]):
        parsed_config(text, name="run.toml")


def test_lines_are_where_statements_begin() -> None:
    text = '[data]\n# first\n\npath = """\n[split]\nseed = 3\n"""\n[split]\nseed = 4'
    assert line_of(text, ("data", "path")) == 4
    assert line_of(text, ("split", "seed")) == 9
    assert line_of(text, ("split", "test")) is None


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="probneural init"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="binary.toml"):
        read_config(tmp_path / "binary.toml")


@pytest.mark.bad_input
def test_lists_are_taken_for_tuples() -> None:
    assert Data(inputs=["a"]).inputs == ("a",)


def test_settings_check_themselves() -> None:
    with pytest.raises(ArgumentError, match="batch_size: an integer of at least 1; got 0"):
        Training(batch_size=0)
    with pytest.raises(ArgumentError, match="validation above 0 with early stopping.*early_stopping.patience = 3"):
        Training(validation=0.0, early_stopping=EarlyStopping(patience=3))
    with pytest.raises(ArgumentError, match="finite"):
        convert({"rate": float("inf")}, dict[str, Any], "options")
    with pytest.raises(ArgumentError, match="known settings; got training.epoch"):
        Config.from_dict({"training": {"epoch": 3}})
    with pytest.raises(ArgumentError, match="known settings; got training.optimization.optim"):
        Config.from_dict({"training": {"optimization": {"optim": 3}}})
    assert Config.from_dict({"training": {"optimization": {"accumulation": 2}}}).training.optimization.accumulation == 2


def test_differences_name_single_options() -> None:
    one, other = (
        dataclasses.replace(Config(), operator=dataclasses.replace(Config().operator, options=options))
        for options in ({"width": 3, "depth": 2}, {"width": 4})
    )
    assert list(one.differences(other)) == [
        "operator.options.depth = 2, not 'left out'",
        "operator.options.width = 3, not 4",
    ]
    assert list(one.differences(one)) == []
