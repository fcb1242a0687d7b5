"""Names of other libraries: each error names ours, and what it says to write works."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle

import pytest
import torch

import probneural as pn
from probneural.checks import ATTRIBUTES, checks_keywords
from probneural.errors import ArgumentError, KeywordError, MissingAttributeError

GRID = pn.Grid.uniform(8)
FIELD = pn.Field(torch.randn(6, 1, 8, generator=torch.Generator().manual_seed(0)), GRID)
PAIRS = pn.FieldPairs(FIELD, FIELD)


@functools.cache
def predictor() -> pn.distributions.Predictor:
    operator = pn.operators.FNO(1, 1, modes=(2,), width=4, depth=1, seed=0)
    pn.fit(operator, PAIRS, epochs=1, show_progress=False)
    return pn.heads.LastLayerLaplace().fit(operator, PAIRS)


@pytest.mark.parametrize(
    ("theirs", "ours", "value"), [("n_modes", "modes", (2,)), ("hidden_channels", "width", 4), ("n_layers", "depth", 2)]
)
def test_keywords_of_operators(theirs: str, ours: str, value: object) -> None:
    others = {} if ours == "modes" else {"modes": (2,)}
    with pytest.raises(KeywordError, match=f"expected keywords of FNO; got '{theirs}'; did you mean '{ours}'?"):
        pn.operators.FNO(1, 1, **others, **{theirs: value})
    assert getattr(pn.operators.FNO(1, 1, **others, **{ours: value}), ours) == value


def test_keywords_of_fit() -> None:
    operator = pn.operators.FNO(1, 1, modes=(2,), width=4, depth=1)
    for theirs, ours, value in (("lr", "learning_rate", 1e-3), ("n_epochs", "epochs", 1), ("los", "loss", None)):
        with pytest.raises(KeywordError, match=f"expected keywords of fit; got '{theirs}'; did you mean '{ours}'?"):
            pn.fit(operator, PAIRS, **{theirs: value})  # type: ignore[arg-type]
        pn.fit(operator, PAIRS, **{"epochs": 1, "show_progress": False, ours: value})  # type: ignore[arg-type]
    with pytest.raises(KeywordError, match=r"give data=DataOptions\(batch_size=...\), from pn.training"):
        pn.fit(operator, PAIRS, batch_size=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="got 'colour'; choose among operator, train, epochs"):
        pn.fit(operator, PAIRS, colour=1)  # type: ignore[call-arg]
    assert issubclass(KeywordError, ArgumentError)


def test_what_is_decorated_looks_as_before() -> None:
    assert list(inspect.signature(pn.fit).parameters)[:3] == ["operator", "train", "epochs"]
    assert list(inspect.signature(pn.operators.FNO).parameters)[:3] == ["in_channels", "out_channels", "modes"]
    assert pickle.loads(pickle.dumps(pn.fit)) is pn.fit  # noqa: S301

    def open_ended(**options: int) -> int:
        return len(options)

    assert checks_keywords(open_ended) is open_ended


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_others(name: str) -> None:
    u = predictor()(FIELD)
    for thing in (predictor(), u, pn.distributions.EmpiricalField(u.rsample((3,), seed=0), grid=GRID)):
        if hasattr(type(thing), name):  # which has one of its own
            continue
        assert not hasattr(thing, name)
        assert getattr(thing, name, "default") == "default"
        with pytest.raises(MissingAttributeError) as caught:
            getattr(thing, name)
        assert str(caught.value).startswith(f"expected an attribute of {type(thing).__name__}; got '{name}'; ")
    code = ATTRIBUTES[name].partition(": ")[2] or ATTRIBUTES[name].partition(" ")[2]
    eval(code, {"u": u, "predictor": predictor(), "inputs": FIELD, "device": "cpu"})


def test_other_attributes_have_pythons_own_errors() -> None:
    class Broken(pn.distributions.EmpiricalField):
        @property
        def std(self) -> object:
            return self.nothing

    broken = Broken(FIELD.values[:, None], grid=GRID)
    for thing, name in ((broken, "std"), (predictor(), "nothing"), (predictor()(FIELD), "nothing")):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'") as caught:
            getattr(thing, name)
        assert not isinstance(caught.value, MissingAttributeError)
    assert torch.equal(copy.deepcopy(predictor())(FIELD).mean, predictor()(FIELD).mean)
