"""Names of other libraries: errors about unknown keywords and attributes name the one of this library."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from probneural.errors import KeywordError, MissingAttributeError

P = ParamSpec("P")
Result = TypeVar("Result")

_KEYWORDS = {
    "hidden_channels": "width",
    "hidden_dim": "width",
    "lr": "learning_rate",
    "max_epochs": "epochs",
    "modes1": "modes",
    "n_epochs": "epochs",
    "n_layers": "depth",
    "n_modes": "modes",
    "num_epochs": "epochs",
    "num_layers": "depth",
    "random_state": "seed",
    "verbose": "show_progress",
}
"""Keywords of other libraries, and ours."""
_FIT_OPTIONS = {
    "batch_size": "data=DataOptions(batch_size=...)",
    "callbacks": "run=RunOptions(callbacks=[...])",
    "checkpoint": "run=RunOptions(checkpoint=...)",
    "device": "run=RunOptions(device=...)",
    "loading": "data=DataOptions(workers=...)",
    "num_workers": "data=DataOptions(workers=...)",
    "unroll": "loss=Unroll(...)",
    "validation": "data=DataOptions(validation=...)",
}
"""Keywords that belong to the options objects of `pn.fit`."""
ATTRIBUTES = {
    "forward": "call the predictor: predictor(inputs)",
    "posterior": "call the predictor: predictor(inputs)",
    "predict": "call the predictor: predictor(inputs)",
    "covariance_matrix": "take u.covariance",
    "loc": "take u.mean",
    "sample": "take u.rsample(seed=0)",
    "std": "take u.standard_deviation",
    "stddev": "take u.standard_deviation",
    "to": "move what is taken from it: u.mean.to(device)",
}
"""Attributes of other libraries' predictors and distributions, and what to write."""


def checks_keywords(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function so that an unknown keyword is a KeywordError that names the one that was meant.

    Examples:
        >>> @checks_keywords
        ... def train(*, epochs=1):
        ...     return epochs
        >>> train(n_epochs=3)
        Traceback (most recent call last):
        ...
        probneural.errors.KeywordError: expected keywords of train; got 'n_epochs'; did you mean 'epochs'?
    """
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return function
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> Result:
        for name in options:
            if name not in parameters:
                raise KeywordError(expected=f"keywords of {owner}", got=repr(name), remedy=_meant(name, list(parameters)))
        return function(*arguments, **options)

    return checked


def _meant(name: str, names: list[str]) -> str:
    if name in _FIT_OPTIONS and {"data", "run"} <= set(names):
        return f"give {_FIT_OPTIONS[name]}, from pn.training"
    near = [_KEYWORDS[name]] if _KEYWORDS.get(name) in names else difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(one for one in names if one != 'self')}"


def missing_attribute(instance: Any, name: str) -> Any:
    """As `__getattr__` of a class: a MissingAttributeError for names of other libraries, else Python's own error.

    Raises:
        AttributeError: In any case.
    """
    if name in ATTRIBUTES and not hasattr(type(instance), name):
        raise MissingAttributeError(
            expected=f"an attribute of {type(instance).__name__}", got=repr(name), remedy=ATTRIBUTES[name]
        )
    return object.__getattribute__(instance, name)  # whose error names the attribute, within a property too
