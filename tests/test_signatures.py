"""What callers may write without a name: at most two positional arguments, of functions, methods and constructors."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import probneural

ROOMS = ("problems", "operators", "training", "plots", "metrics", "calibration")
"""Subpackages in which every public callable keeps the rule; elsewhere, those that the package exports."""

FIXED = (torch.autograd.Function, nn.Module)
"""Base classes whose methods are called by PyTorch, which decides on their arguments."""

LOSS = "losses are called as loss(predicted, target, grid), as PyTorch's are with two arguments"
PRODUCT = "a product reads as the mathematics does: of which matrix, where, with what vector"

EXCEPTIONS = {
    "probneural.active.botorch_models.model.OperatorModel.fantasize": "the signature is BoTorch's",
    "probneural.active.botorch_models.model.OperatorModel.posterior": "the signature is BoTorch's",
    "probneural.curvature.products.functions.fisher_vector_product": PRODUCT,
    "probneural.curvature.products.functions.gauss_newton_vector_product": PRODUCT,
    "probneural.curvature.products.functions.hessian_vector_product": PRODUCT,
    "probneural.curvature.products.functions.jacobian_vector_product": PRODUCT,
    "probneural.curvature.products.functions.vector_jacobian_product": PRODUCT,
    "probneural.operators.in_context.InContextOperator.negative_log_density": LOSS,
    "probneural.physics.residual.Residual.__call__": LOSS,
    "probneural.physics.residual.Residual.terms": LOSS,
    "probneural.training.losses.BalancedLoss.terms": LOSS,
    "probneural.training.losses.RelativeL2.__call__": LOSS,
    "probneural.training.losses.WeightedSum.__call__": LOSS,
}
"""Public callables with three positional arguments or more, and the reason for each."""

LARGE_CONSTRUCTORS = {
    "probneural.active.loop.optimizer.Optimizer": "the loop's parts, as ActiveLearner, and what is optimised",
    "probneural.calibration.variance.local_scale.LocalScale": "made by a fit and by `load`: its arguments are the file's",
    "probneural.heads.last_layer.laplace.LastLayerPredictor": "made by a fit and by `load`: its arguments are the file's",
    "probneural.heads.weight_problem.WeightProblem": "the data, scales and precisions of a fit, which only heads build",
    "probneural.inverse.model.InverseModel": "the parts of Bayes' rule, and how uncertainty enters: a contract of the design",
    "probneural.inverse.posterior.InversePosterior": "a record with one field per result of a solver, which only solvers build",
    "probneural.inverse.problem.InverseProblem": "as InverseModel",
    "probneural.metrics.lead_table.LeadScores": "a record with one field per kind of score, which only `score_by_lead` builds",
    "probneural.metrics.scores.Scores": "a record with one field per score, which only `score` builds",
    "probneural.operators.fno.FNO": "the seven sizes of the architecture as the field names them, the embedding and the seed",
    "probneural.pairs.provenance.TrainingRecord": "made by training and by `load`: its arguments are what a file holds",
    "probneural.runs.config.Data": "a section of the configuration file: one field per setting",
    "probneural.runs.config.Training": "likewise",
}
"""Classes of the package, internal ones too, whose constructors take more than eight arguments; the reason for each."""


def modules() -> Iterator[Any]:
    for module in pkgutil.walk_packages(probneural.__path__, "probneural."):
        yield importlib.import_module(module.name)


def public() -> Iterator[tuple[str, Any]]:
    """Public functions and classes of the rooms, and what other subpackages export, by qualified name; each once."""
    seen: set[int] = set()
    for module in modules():
        room = module.__name__.split(".")[1]
        names = [name for name in vars(module) if not name.startswith("_")] if room in ROOMS else getattr(module, "__all__", ())
        for name in names:
            thing = getattr(module, name)
            home = getattr(thing, "__module__", "")
            ours = home == module.__name__ if room in ROOMS else home.startswith("probneural.")
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and ours and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{thing.__module__}.{thing.__qualname__}", thing


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, constructors, and methods that the class itself defines."""
    for name, thing in public():
        if inspect.isfunction(thing):
            yield name, thing
            continue
        if not issubclass(thing, torch.autograd.Function) and not issubclass(thing, tuple | Exception):
            yield name, thing
        inherited = {member for base in FIXED if issubclass(thing, base) for member in dir(base)}
        for member, value in vars(thing).items():
            is_public = member == "__call__" or not (member.startswith("_") or member in inherited)
            if is_public and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)):
                yield f"{name}.{member}", getattr(thing, member)


def positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]
    return names[1:] if names[:1] == ["self"] else names


def test_at_most_two_arguments_are_positional() -> None:
    many = {name: positional(function) for name, function in callables()}
    many = {name: arguments for name, arguments in many.items() if len(arguments) > 2}
    assert {name: arguments for name, arguments in many.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - many.keys() == set()


def test_constructors_take_at_most_eight_arguments() -> None:
    classes = {thing for module in modules() for thing in vars(module).values() if type(thing) in (type, ABCMeta)}
    large = {
        f"{thing.__module__}.{thing.__qualname__}"
        for thing in classes
        if thing.__module__.startswith("probneural.") and not issubclass(thing, tuple | Exception | torch.autograd.Function)
        if thing.__module__ != "probneural.command_line"  # which makes them of those of probneural.runs.config
        if len(inspect.signature(thing).parameters) > 8
    }
    assert large - LARGE_CONSTRUCTORS.keys() == set()
    assert LARGE_CONSTRUCTORS.keys() - large == set()


def test_the_rule_is_seen() -> None:
    def three(first: int, second: int, third: int) -> None: ...

    def two(first: int, second: int, *, third: int) -> None: ...

    assert positional(three) == ["first", "second", "third"]
    assert positional(two) == ["first", "second"]
