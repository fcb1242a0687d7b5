"""Results of every public signature under what a caller has switched on in PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.distributions import FieldDistribution
from probneural.fields import Field
from tests.bad_input.signatures import SIGNATURES, good, parameters

OTHERS = re.compile(
    r"(operators|training|plots|export|runs|data|metrics\.score_by_lead|active\.(ActiveLearner|ResultStore))\b.*"
    r"|fit|load|save|heads\..*\.fit|active\.OperatorDraws\.forward"  # fits: see `tests/bad_input/accepted.py`
)
"""Operators and losses, where autocast may be meant, what writes files, and fresh draws, as a pattern of whole names."""
NAMES = [name for name in SIGNATURES if not OTHERS.fullmatch(name)]


@contextlib.contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def everything() -> Iterator[None]:
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        yield


CONTEXTS: tuple[Callable[[], Any], ...] = (everything, double)


def tensors(result: object) -> list[Tensor]:
    """The tensors of a result, with the moments of a distribution."""
    if isinstance(result, Tensor):
        return [result.detach()]
    if isinstance(result, Field):
        return [result.values.detach()]
    if isinstance(result, FieldDistribution):
        return [result.mean.detach(), result.variance.detach()]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    return [one for part in result for one in tensors(part)] if isinstance(result, list | tuple) else []


def outcome(name: str, context: Callable[[], Any]) -> list[Tensor]:
    """What a call gives whose arguments were made outside of the context."""
    make, function = SIGNATURES[name]
    declared = parameters(function)
    seed = {one.name: 0 for one in declared if one.name == "seed"}
    thing, given = make(), seed | good(name, declared)
    first = [given.pop(one.name) for one in declared if one.kind is one.POSITIONAL_ONLY]
    with context():
        return tensors(thing(*first, **given))


@pytest.mark.bad_input
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_results_do_not_depend_on_the_callers_contexts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a thread of its own, to which contexts belong."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        expected = outcome(name, contextlib.nullcontext)
        results = [outcome(name, context) for context in CONTEXTS] + [thread.submit(outcome, name, everything).result()]
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
