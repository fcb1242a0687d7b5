"""Configurations as files: what is written is read back, and what is wrong is named with its line."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probneural.errors import ArgumentError, ConfigurationError, FileError
from probneural.runs import Config, Data, Head, Split, read_config, write_config
from probneural.runs.config import EarlyStopping, Training, explanations, hints_of
from probneural.runs.toml import parsed_config, place_in, text_of

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
        assert set(told) == set(hints), section
        for name, hint in hints.items():
            if dataclasses.is_dataclass(hint):
                sections.append((f"{section}.{name}".removeprefix("."), hint))
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
    "[trainig]\nepochs = 3": r"setting of Config; got 'trainig' in line 1 of run.toml; did you mean 'training'\?",
    "\n[training]\n# few\nepoch = 3": r"setting of training; got 'epoch' in line 4 of run.toml; did you mean 'epochs'\?",
    "[training]\nlearning-rate = 1": r"setting of training; got 'learning-rate' in line 2 .* mean 'learning_rate'\?",
    '[training]\nepochs = "many"': r"training.epochs: a valid integer or 'auto'; got 'many' in line 2 of run.toml",
    "[training]\nepochs = 0": r"training.epochs: greater than or equal to 1 or 'auto'; got 0 in line 2 of run.toml",
    "[training]\nepochs = true": r"got True in line 2",
    "[split]\ntest = 1.5": r"split.test: less than 1; got 1.5 in line 2 of run.toml",
    "[split]\ntest = nan": r"split.test: a finite number; got nan in line 2",
    '[split]\ntest = "0.1"': r"split.test: a valid number; got '0.1' in line 2",
    "[training]\nbatch_size = 2.0": r"training.batch_size: a valid integer; got 2.0 in line 2",
    "[calibration]\nbands = 1": r"calibration.bands: a valid boolean; got 1 in line 2",
    '[data]\ninputs = [\n  "a",\n]\nperiodic = ["yes"]': r"data.periodic: a valid boolean; got 'yes' in line 5",
    '[data]\ninputs = "a"': r"data.inputs: a valid list; got 'a' in line 2",
    "[data]\ninputs = [1]": r"data.inputs: a valid string; got 1 in line 2",
    'data.dtype = "half"': r"'float32' or 'float64'; got 'half' in line 1",
    "data = 3": r"data: a dictionary or an instance of Data; got 3 in line 1 of run.toml",
    "[data\n": r"TOML in run.toml; got .*line 1",
    "[head]\n[head.options]\nlevel = [1, 2020-01-01]": r"head.options.level: a valid integer .*; got \[1, datetime.* in line 3",
    "[head]\noptions = { level = inf }": r"head.options.level: .*; got inf in line 2",
    f"[head]\noptions.a-b = {2**63}": r"head.options: .*; got 9223372036854775808 in line 2",
    'operator = { name = "FNO", mode = 3 }': r"setting of operator; got 'mode' in line 1",
    "[training.optimization]\noptimiser = 1": (
        r"setting of training.optimization; got 'optimiser' in line 2 of run.toml; did you mean 'optimizer'\?"
    ),
    '[training.optimization]\noptimizer = "sgd"': r"optimization.optimizer: 'muon' or 'adamw'; got 'sgd' in line 2 of run.toml",
    "[training]\noptimization = 3": r"training.optimization: a dictionary .*; got 3 in line 2 of run.toml",
    "[training.optimization]\ngradient_clip = 0": r"gradient_clip: greater than 0 or 'none'; got 0 in line 2 of run.toml",
    "[training.early_stopping]\n\npatience = 0": r"patience: greater than or equal to 1 or 'none'; got 0 in line 3 of run.toml",
    "[split]\n[training]\nvalidation = 0\nearly_stopping.patience = 3": (
        r"training.early_stopping: validation above 0.*'patience': 3} in line 4 of run.toml"
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named_with_their_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=MISTAKES[text]):
        parsed_config(text, name="run.toml")


def test_lines_are_where_statements_begin() -> None:
    text = '[data]\n# first\n\npath = """\n[split]\nseed = 3\n"""\n[split]\nseed = 4'
    assert place_in(text, "run.toml", ("data", "path")) == " in line 4 of run.toml"
    assert place_in(text, "run.toml", ("split", "seed")) == " in line 9 of run.toml"
    assert place_in(text, "run.toml", ("split", "test")) == " in line 8 of run.toml"
    assert place_in(text, "run.toml", ("head",)) == " in run.toml"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="probneural init"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="binary.toml"):
        read_config(tmp_path / "binary.toml")


@pytest.mark.bad_input
def test_lists_are_taken_for_tuples_and_numbers_of_numpy_for_plain_ones() -> None:
    assert Data(inputs=["a"]).inputs == ("a",)
    with pytest.raises(ArgumentError, match="inputs: a valid list; got {'a'}"):
        Data(inputs={"a"})
    assert Head(options={"modes": (4, 8)}).options == {"modes": [4, 8]}
    assert type(Training(seed=np.int64(3)).seed) is int
    assert type(Split(test=np.float32(0.5)).test) is float


def test_settings_check_themselves() -> None:
    with pytest.raises(ArgumentError, match="batch_size: greater than or equal to 1; got 0"):
        Training(batch_size=0)
    with pytest.raises(ArgumentError, match="validation above 0.*; got EarlyStopping.patience=3"):
        Training(validation=0.0, early_stopping=EarlyStopping(patience=3))
    with pytest.raises(ArgumentError, match="batch_size: greater than or equal to 1; got 0"):
        dataclasses.replace(Training(), batch_size=0)
    with pytest.raises(ArgumentError, match="known setting of training; got 'epoch'"):
        Config.from_dict({"training": {"epoch": 3}})
    with pytest.raises(ArgumentError, match="known setting of Config; got 'self'"):
        Config.from_dict({"self": {}})
    with pytest.raises(ArgumentError, match="known setting of training.optimization; got 'optim'; did you mean 'optimizer'"):
        Config.from_dict({"training": {"optimization": {"optim": 3}}})
    assert Config.from_dict({"training": {"optimization": {"accumulation": 2}}}).training.optimization.accumulation == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().data = Data()


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
