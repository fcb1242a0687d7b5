"""Threads that share operators and predictors: every head fits and predicts what it does alone, and stays what it was."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.curvature import CurvatureProblem, ParameterVector, QuadratureGaussian, gauss_newton_vector_product
from probneural.curvature.products.linearisation import Linearisation, gauss_newton_term
from probneural.distributions import Predictor
from probneural.fields import Field
from probneural.heads import BayesianOperator, KernelOperator
from probneural.heads.kernel.gaussian_processes import KERNELS, Covariance
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from probneural.training import DataOptions
from probneural.training import fit as train
from tests.heads.cases import ALL_HEADS, PERIODIC, _built, data_for, fields

Work = Callable[[], tuple[Tensor, ...]]


class Interrupted(nn.Module):
    """An operator that lets other threads run in the middle of each evaluation, with dropout and complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 3, 3, padding=1, padding_mode="circular")
        self.spectral = nn.Parameter(torch.randn(3, 3, 3, dtype=torch.complex128))
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Conv1d(3, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(values))
        time.sleep(1e-4)
        spectrum = torch.fft.rfft(hidden, norm="forward")[..., :3]
        hidden = hidden + torch.fft.irfft(torch.einsum("nik,iok->nok", spectrum, self.spectral), n=values.shape[-1])
        hidden = self.dropout(hidden)
        time.sleep(1e-4)
        outputs = self.last(hidden)
        time.sleep(1e-4)
        return outputs


_REPEATED = (
    "last-layer-given",
    "full-given",
    "low-rank-grown",
    "kronecker",
    "laplace-ensemble",
    "in-context",
    "in-context-permuted",
)
"""Other settings of the same evaluation, heads made of others here, or of other operators."""
HEADS = {name: head for name, head in ALL_HEADS.items() if name not in _REPEATED} | {
    "kernel": KernelOperator("rational_quadratic", input_components=3, output_components=2, groups=1, iterations=2),
}
HEAD = pytest.mark.parametrize("head", HEADS)
pytestmark = pytest.mark.filterwarnings("ignore:the variational posterior has not converged")


@pytest.fixture(autouse=True)
def _eager_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@cache
def operator() -> nn.Module:
    return _built(Interrupted)  # in training mode: members of an ensemble are trained with dropout


@cache
def data(seed: int) -> FieldPairs:
    return data_for(copy.deepcopy(operator()).eval(), fields(PERIODIC, 6, 1, seed=seed), seed=seed + 10)


@cache
def fitted(head: str) -> Predictor:
    return fit(head, data(0))


def fit(head: str, pairs: FieldPairs) -> Predictor:
    if isinstance(HEADS[head], BayesianOperator):
        pytest.importorskip("pyro")
    return HEADS[head].fit(operator(), pairs)


def prediction(predictor: Predictor, inputs: Field) -> tuple[Tensor, ...]:
    field = predictor(inputs)
    return field.mean, field.variance, field.rsample((2,), seed=1)


def together(works: list[Work]) -> list[tuple[Tensor, ...]]:
    """Start all at once in threads, and return what they do or raise what one of them raised."""
    barrier = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = works[number]()
        except BaseException as error:  # noqa: BLE001 (raised below)
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def check(works: list[Work], *, repetitions: int = 1) -> None:
    """Compare what threads find with what one finds; transforms of other alignment and evidence's optima round differently."""
    alone = [work() for work in works]
    for _ in range(repetitions):
        for found, expected in zip(together(works), alone, strict=True):
            for left, right in zip(found, expected, strict=True):
                torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6 * float(right.abs().max()))


@HEAD
def test_threads_share_a_predictor(head: str) -> None:
    predictor = fitted(head)
    inputs = [fields(PERIODIC, count, 1, seed=90 + count) for count in (1, 2, 2)]
    check([lambda own=own: prediction(predictor, own) for own in inputs], repetitions=2)


@HEAD
def test_threads_fit_the_same_operator(head: str) -> None:
    query = fields(PERIODIC, 2, 1, seed=99)

    def work(seed: int) -> tuple[Tensor, ...]:
        predictor = fit(head, data(seed))
        return predictor.noise, *prediction(predictor, query)[:2]

    fitted(head)
    check([lambda: work(0), lambda: work(1)])
    assert not any(hasattr(module, "_forward_hooks") and module._forward_hooks for module in operator().modules())


@HEAD
def test_copies_and_files_while_another_thread_predicts(head: str, tmp_path: Path) -> None:
    predictor, query = fitted(head), fields(PERIODIC, 2, 1, seed=99)
    expected = prediction(predictor, query)
    done, path = threading.Event(), tmp_path / "predictor.safetensors"

    def keep_predicting() -> tuple[Tensor, ...]:
        while not done.is_set():
            prediction(predictor, query)
        return ()

    def keep_copying() -> tuple[Tensor, ...]:
        try:
            made = [copy.deepcopy(predictor), copy.deepcopy(predictor), pickle.loads(pickle.dumps(predictor))]  # noqa: S301 (our own)
            save(predictor, path)
            made.append(load(path, operator=operator()))
            return tuple(part for copied in made for part in prediction(copied, query))
        finally:
            done.set()

    copies = together([keep_copying, keep_predicting])[0]
    for found, wanted in zip(copies, itertools.cycle(expected), strict=False):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10 * float(wanted.abs().max()))
    for parameter in operator().parameters():
        assert type(parameter) is nn.Parameter


def test_threads_train() -> None:
    """Dropout draws from a generator that all threads have in common."""

    def work(seed: int) -> tuple[Tensor, ...]:
        copied = copy.deepcopy(operator())
        train(copied, data(seed), epochs=3, seed=seed, data=DataOptions(batch_size=3))
        return tuple(parameter.detach() for parameter in copied.parameters())

    check([lambda: work(0), lambda: work(1)])


@pytest.mark.parametrize("kernel", KERNELS)
def test_threads_evaluate_kernels(kernel: str) -> None:
    points = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    covariances = [Covariance(kernel, number * ones, ones, number * ones[0]) for number in (0.1, 1.0, 10.0)]
    check([lambda own=own: tuple(own(points, points[:9]) for _ in range(100)) for own in covariances])


def test_threads_trace_products() -> None:
    """Tracing patches `nn.Module` for the whole process."""
    call = nn.Module.__call__
    layout = ParameterVector.of(operator())
    vectors = torch.randn(2, layout.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    likelihood = QuadratureGaussian.of(PERIODIC, torch.ones(1, dtype=torch.float64))
    still = copy.deepcopy(operator()).eval()
    problems = [CurvatureProblem(still, data(seed).inputs, layout=layout, likelihood=likelihood) for seed in (0, 1)]
    made = [Linearisation(problem, problem.parameters, term=gauss_newton_term) for problem in problems]
    products = together([lambda own=own: (own.product(vectors),) for own in made])
    for problem, own, (product,) in zip(problems, made, products, strict=True):
        assert own.is_traced
        expected = gauss_newton_vector_product(problem, problem.parameters, vectors)
        torch.testing.assert_close(product, expected, rtol=1e-10, atol=1e-10)
    assert nn.Module.__call__ is call
