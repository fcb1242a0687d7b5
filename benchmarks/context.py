"""Operators that learn in context, compared with exact predictive distributions: divergence, code length, permutations."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

import probneural as pn
from benchmarks import sections
from probneural.randomness import stream, stream_seed

PAIRS = 8
"""Largest context N in training; contexts of up to 2N pairs are evaluated."""
MODES, RESOLUTION = 8, 16
VALUES = 2 * MODES - 1
TASKS, EPOCHS, BATCH_SIZE = 36_000, 3, 64
TESTS = 100
"""Operators on which predictions are evaluated, drawn apart from those of training."""
SHOWN = (0, 1, 2, 4, 8, 12, 16)
"""Context sizes in tables."""
PERMUTATIONS = (1, 2, 4, 8, 16)
REPETITIONS = 8
"""Independent averages over permutations, whose spread is measured."""
TOLERANCES = (0.05, 0.02, 0.01, 0.005)
DEPTH = 4
"""Layers of the operator whose predictions exit early."""
TARGETS = {"linear": 0.05, "heat": 0.1}
"""Largest divergence for n = 1 ... N, in nats per value."""
DOUBLE = torch.float64

Row = dict[str, Any]
_WAVENUMBERS = torch.arange(MODES, dtype=DOUBLE).repeat_interleave(2)
_KEPT = torch.arange(2 * MODES) != 1
"""All coefficients but that of the sine of frequency 0, which is zero."""


class Family(ABC):
    """One operator of a family; its functions are coefficients of 1, 0, sqrt(2) cos(2 pi k x), sqrt(2) sin(2 pi k x), k < 8.

    Inputs are independent normal coefficients of variance 1 / (1 + k)^2 (1 / (1 + k) for the heat equation).

    Args:
        seed: Seed of the operator.
    """

    noise: ClassVar[float]
    """Standard deviation of the noise of each output coefficient, in training and in tests."""
    power: ClassVar[float] = 1.0

    def __init__(self, seed: int) -> None:
        self.generator = stream(seed, "operators of a family")

    def sample(self, n: int, *, resolution: int, seed: int) -> pn.FieldPairs:
        """Draw pairs with noisy outputs, in single precision."""
        f, u = self.coefficients(n, stream(seed, "pairs of a family"))
        grid = pn.Grid.uniform(resolution)
        basis = pn.operators.InContextOperator(1, 1, modes=(MODES,)).basis(grid, domain=grid)
        return pn.FieldPairs(*(pn.Field((side @ basis)[:, None].float(), grid) for side in (f, u)))

    def coefficients(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Coefficients of n inputs and of their noisy outputs, `(n, 16)` each."""
        f = _normal(n, generator=generator) / (1.0 + _WAVENUMBERS) ** self.power
        return f, self.outputs(f, generator) * _KEPT

    @abstractmethod
    def outputs(self, f: Float64[Tensor, "n F"], generator: torch.Generator) -> Float64[Tensor, "n F"]:
        """Noisy outputs."""

    @classmethod
    @abstractmethod
    def predictive(
        cls, query: Float64[Tensor, " F"], f: Float64[Tensor, "n F"], u: Float64[Tensor, "n F"]
    ) -> tuple[Float64[Tensor, " F"], Float64[Tensor, "F F"]]:
        """Exact mean and covariance of a noisy output, given a context."""

    @classmethod
    def log_density(cls, query: Tensor, f: Tensor, u: Tensor, *, value: Tensor) -> Tensor:
        """Exact log density of a noisy output, in nats."""
        return _gaussian(*cls.predictive(query, f, u)).log_prob(value[_KEPT])


class Linear(Family):
    """(a) u_k = l_k f_k + noise in complex coefficients, with independent normal l_k of variance 1 / (1 + k)."""

    noise = 0.1
    prior = 1.0 / (1.0 + _WAVENUMBERS) / torch.where(_WAVENUMBERS > 0, 2.0, 1.0)  # of real and imaginary part

    def outputs(self, f: Tensor, generator: torch.Generator) -> Tensor:
        symbol = _complex(_normal(generator=self.generator) * self.prior.sqrt())
        return _real(symbol * _complex(f)) + self.noise * _normal(len(f), generator=generator)

    @classmethod
    def predictive(cls, query: Tensor, f: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        # l_k ~ N(sum conj(f_k) u_k / s, noise^2 / s), s = sum |f_k|^2 + noise^2 / prior
        squares = _complex(f).abs().square().sum(0) + cls.noise**2 / cls.prior[::2]
        symbol = (_complex(f).conj() * _complex(u)).sum(0) / squares
        variance = cls.noise**2 * (1.0 + _complex(query).abs().square() / squares)
        return _real(symbol * _complex(query)), variance.repeat_interleave(2).diag()


class Process(Family):
    """(b) A Gaussian process over operators: covariance k(f, f') Q, noise covariance noise^2 Q."""

    noise = 0.1
    squared_length = float(VALUES)
    factor = torch.linalg.cholesky(0.5 * torch.eye(2 * MODES, dtype=DOUBLE) + 0.5) / (1.0 + _WAVENUMBERS)[:, None]

    @classmethod
    def kernel(cls, first: Tensor, second: Tensor) -> Tensor:
        """The kernel exp(-|z - z'|^2 / (2 * 15)), with z the inputs' coefficients in units of their standard deviations."""
        distances = torch.cdist(first * (1.0 + _WAVENUMBERS), second * (1.0 + _WAVENUMBERS))
        return torch.exp(-0.5 * distances.square() / cls.squared_length)

    def outputs(self, f: Tensor, generator: torch.Generator) -> Tensor:
        root = torch.linalg.cholesky(self.kernel(f, f) + self.noise**2 * torch.eye(len(f), dtype=DOUBLE))
        return root @ _normal(len(f), generator=generator, keeps_zero=False) @ self.factor.mT

    @classmethod
    def predictive(cls, query: Tensor, f: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        across = cls.kernel(query[None], f)
        gain = torch.linalg.solve(cls.kernel(f, f) + cls.noise**2 * torch.eye(len(f), dtype=DOUBLE), across.mT).mT
        variance = 1.0 + cls.noise**2 - (gain @ across.mT)[0, 0]
        return (gain @ u)[0], variance * cls.factor @ cls.factor.mT


class Heat(Family):
    """(c) The heat equation at time 1 with viscosity log-uniform in [0.001, 0.05]; exact by quadrature over the viscosity."""

    noise = 0.05
    power = 0.5
    logs = torch.linspace(math.log(0.001), math.log(0.05), 2001, dtype=DOUBLE)
    damping = torch.exp(-logs.exp()[:, None] * (2.0 * math.pi * _WAVENUMBERS) ** 2)

    def outputs(self, f: Tensor, generator: torch.Generator) -> Tensor:
        place = torch.rand((), generator=self.generator, dtype=DOUBLE)
        viscosity = torch.exp(self.logs[0] + (self.logs[-1] - self.logs[0]) * place)
        damped = f * torch.exp(-viscosity * (2.0 * math.pi * _WAVENUMBERS) ** 2)
        return damped + self.noise * _normal(len(f), generator=generator)

    @classmethod
    def _log_weights(cls, f: Tensor, u: Tensor) -> Tensor:
        squares = (u - cls.damping[:, None] * f).square().sum((1, 2))
        return torch.log_softmax(-0.5 * squares / cls.noise**2, 0)

    @classmethod
    def predictive(cls, query: Tensor, f: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        weights, means = cls._log_weights(f, u).exp(), cls.damping * query
        centred = (means - weights @ means) * weights.sqrt()[:, None]
        return weights @ means, centred.mT @ centred + cls.noise**2 * torch.eye(2 * MODES, dtype=DOUBLE)

    @classmethod
    def log_density(cls, query: Tensor, f: Tensor, u: Tensor, *, value: Tensor) -> Tensor:
        squares = (value - cls.damping * query)[:, _KEPT].square().sum(1) / cls.noise**2
        constant = VALUES * (math.log(cls.noise) + 0.5 * math.log(2.0 * math.pi))
        return torch.logsumexp(cls._log_weights(f, u) - 0.5 * squares, 0) - constant


FAMILIES: dict[str, type[Family]] = {"linear": Linear, "Gaussian process": Process, "heat": Heat}


def main(*, mode: str, output: Path, workers: int = 2) -> dict[str, Any]:
    """Train an operator for each family, and for the linear family an ordered one and one of four layers."""
    small = mode == "small"

    def run() -> tuple[list[list[Row]], list[Row]]:
        *families, (ordered,), (deep,) = sections.repeated(
            _worked, [[(name, small)] for name in (*FAMILIES, "ordered", "deep")], workers=workers
        )
        return [rows for (rows,) in families], ordered + deep

    return sections.write(
        "context",
        sections.made_of(
            run,
            {
                "summary": lambda results: [summary(rows) for rows in results[0]],
                "contexts": lambda results: [_shown(row) for rows in results[0] for row in rows if row["n"] in SHOWN],
                "permutations": lambda results: [row for row in results[1] if "tolerance" not in row],
                "adaptive": lambda results: [row for row in results[1] if "tolerance" in row and "layers" not in row],
                "layers": lambda results: [row for row in results[1] if "layers" in row],
            },
        ),
        mode=mode,
        output=output,
        notes=[
            f"{EPOCHS} epochs of {TASKS} tasks with n = 0 ... {PAIRS} pairs; {TESTS} other operators; nats per value. KL: of "
            "the model from the exact predictive distribution; of heat, from the Gaussian of its mean and covariance",
            "KL of the prior predictive: the same for the exact prediction without a context",
        ],
    )


def _worked(name: str, small: bool) -> list[Row]:
    """Train and evaluate, in a worker."""
    torch.set_num_threads(1)
    start = time.process_time()
    options = {"ordered": {"ordered": True}, "deep": {"depth": DEPTH}}.get(name, {})
    family = Linear if options else FAMILIES[name]
    operator = trained(family, tasks=90 if small else TASKS, epochs=1 if small else EPOCHS, **options)
    seconds, tests = time.process_time() - start, 1 if small else TESTS
    if options:
        return (permuted if operator.ordered else exited)(operator, tests=min(tests, 20))
    return [{"family": name, "seconds": seconds} | row for row in compared(operator, family, tests=tests)]


def trained(family: type[Family], *, tasks: int, epochs: int, **settings: Any) -> pn.operators.InContextOperator:
    """Train on tasks of a family."""
    data = pn.operators.context_tasks(family, tasks=tasks, pairs=PAIRS, resolution=RESOLUTION, seed=0)
    operator = pn.operators.InContextOperator(1, 1, modes=(MODES,), seed=0, **settings)
    options = pn.training.DataOptions(batch_size=BATCH_SIZE)
    pn.fit(operator, data, epochs=epochs, loss=operator.negative_log_density, data=options, show_progress=False)
    return operator


@torch.no_grad()
def compared(operator: pn.operators.InContextOperator, family: type[Family], *, tests: int) -> list[Row]:
    """Mean scores of predictions of pair n + 1 from the n pairs before it, n = 0 ... 2N."""
    generator = stream(0, "orders of a context")
    rows: list[list[list[float]]] = [[] for _ in range(2 * PAIRS + 1)]
    for test in range(tests):
        f, u = _test_pairs(family, test)
        for n, sums in enumerate(rows):
            context, value = (f[:n], u[:n]), u[n, _KEPT]
            exact, model = _gaussian(*family.predictive(f[n], *context)), _predicted(operator, f[n], *context)
            prior = _gaussian(*family.predictive(f[n], f[:0], u[:0]))
            order = torch.randperm(n, generator=generator)
            permuted = _predicted(operator, f[n], f[order], u[order])
            change = torch.linalg.norm(permuted.mean - model.mean) / torch.linalg.norm(model.mean)
            sums.append(
                [
                    float(kl_divergence(exact, model)) / VALUES,
                    float(kl_divergence(exact, prior)) / VALUES,
                    float(model.variance.mean()),
                    float(exact.variance.mean()),
                    -float(model.log_prob(value)) / VALUES,
                    -float(family.log_density(f[n], *context, value=u[n])) / VALUES,
                    float(change),
                ]
            )
    names = ("KL", "KL of the prior predictive", "sd", "exact sd", "log score", "exact log score", "invariance error")
    table = []
    for n, sums in enumerate(rows):
        values = torch.tensor(sums, dtype=DOUBLE)
        means = dict(zip(names, values.mean(0).tolist(), strict=True))
        roots = {name: math.sqrt(means[name]) for name in ("sd", "exact sd")}
        table.append({"n": n} | means | roots | {"invariance error": float(values[:, -1].max())})
    return table


def summary(rows: list[Row]) -> Row:
    """Largest divergences within and beyond the contexts of training, and code lengths of sequences of N pairs."""
    family, inside, beyond = rows[0]["family"], rows[1 : PAIRS + 1], rows[PAIRS + 1 :]
    largest = max(row["KL"] for row in inside)
    target = TARGETS.get(family)
    return {
        "family": family,
        "largest KL": largest,
        "target": target,
        "met": None if target is None else largest <= target,
        "largest KL beyond N": max(row["KL"] for row in beyond),
        "code length": sum(row["log score"] for row in rows[: PAIRS + 1]),
        "exact code length": sum(row["exact log score"] for row in rows[: PAIRS + 1]),
        "invariance error": max(row["invariance error"] for row in rows),
        "seconds": rows[0]["seconds"],
    }


def _shown(row: Row) -> Row:
    return {name: row[name] for name in ("family", "n", "KL", "KL of the prior predictive", "sd", "exact sd")}


@torch.no_grad()
def permuted(operator: pn.operators.InContextOperator, *, tests: int) -> list[Row]:
    """Spread of averages over k permutations, in predicted standard deviations, and the number that a tolerance takes."""
    generator = stream(0, "permutations of a benchmark")
    spread: dict[int, list[float]] = {k: [] for k in PERMUTATIONS}
    divergence: dict[int, list[float]] = {k: [] for k in PERMUTATIONS}
    most = PERMUTATIONS[-1] * REPETITIONS
    for test in range(tests):
        f, u = _test_pairs(Linear, test)
        exact = _gaussian(*Linear.predictive(f[-1], f[:PAIRS], u[:PAIRS]))
        orders = [torch.randperm(PAIRS, generator=generator) for _ in range(most)]
        models = [_predicted(operator, f[-1], f[order], u[order]) for order in orders]
        means, covariances = (torch.stack([getattr(one, name) for one in models]) for name in ("mean", "covariance_matrix"))
        scale = covariances.diagonal(dim1=1, dim2=2).mean()
        for k in PERMUTATIONS:
            averages = means.unflatten(0, (-1, k)).mean(1)
            spread[k].append(float(averages.var(0).mean() / scale))
            centred = means[:k] - averages[0]
            mixture = MultivariateNormal(averages[0], covariances[:k].mean(0) + centred.mT @ centred / k)
            divergence[k].append(float(kl_divergence(exact, mixture)) / VALUES)
    rows: list[Row] = []
    for k in PERMUTATIONS:
        deviation = math.sqrt(sum(spread[k]) / tests)
        first = math.sqrt(sum(spread[1]) / tests)
        rows.append({"k": k, "spread": deviation, "spread k^(1/2) / first": deviation * math.sqrt(k) / first})
        rows[-1]["KL"] = sum(divergence[k]) / tests
    return rows + [_adaptive(operator, tolerance, tests) for tolerance in TOLERANCES]


def _adaptive(operator: pn.operators.InContextOperator, tolerance: float, tests: int) -> Row:
    """Mean number of permutations until the standard error is below a tolerance, at most 64."""
    counts = []
    for test in range(tests):
        pairs = Linear(stream_seed(test, "test operators")).sample(PAIRS + 1, resolution=RESOLUTION, seed=test)
        predictor = pn.heads.InContext(64, tolerance=tolerance).fit(operator, pairs[:PAIRS])
        u = predictor(pairs[PAIRS:].inputs)
        assert isinstance(u, pn.distributions.GaussianField)
        columns = operator.rank + 2 * MODES + 1
        counts.append(int((u.root.dense() != 0).flatten(0, 2).any(0).reshape(-1, columns).any(1).sum()))
    return {"tolerance": tolerance, "permutations": sum(counts) / tests, "largest": max(counts)}


@torch.no_grad()
def exited(operator: pn.operators.InContextOperator, *, tests: int) -> list[Row]:
    """Mean number of layers that a tolerance takes with N pairs, and the divergence from the exact distribution."""
    rows, layers = [], [0]
    hooks = [block.register_forward_hook(lambda *_: layers.append(layers.pop() + 1)) for block in operator.across_modes]
    for tolerance in (0.0, *TOLERANCES):
        layers[0], divergence = 0, 0.0
        for test in range(tests):
            f, u = _test_pairs(Linear, test)
            model = _predicted(operator, f[-1], f[:PAIRS], u[:PAIRS], tolerance=tolerance)
            divergence += float(kl_divergence(_gaussian(*Linear.predictive(f[-1], f[:PAIRS], u[:PAIRS])), model)) / VALUES
        rows.append({"tolerance": tolerance, "layers": layers[0] / tests, "KL": divergence / tests})
    for hook in hooks:
        hook.remove()
    return rows


def _test_pairs(family: type[Family], test: int) -> tuple[Tensor, Tensor]:
    """2N + 1 pairs of a test operator."""
    return family(stream_seed(test, "test operators")).coefficients(2 * PAIRS + 1, stream(test, "test pairs"))


def _predicted(
    operator: pn.operators.InContextOperator, query: Tensor, f: Tensor, u: Tensor, *, tolerance: float = 0.0
) -> MultivariateNormal:
    """The operator's predictive distribution of a noisy output."""
    queries, inputs, outputs = (side.float()[:, None] for side in (query[None], f, u))
    mean, root = operator.predictive(queries, inputs=inputs, outputs=outputs, tolerance=tolerance)
    root = root[0, 0].to(DOUBLE)
    return _gaussian(mean[0, 0].to(DOUBLE), root @ root.mT)


def _gaussian(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean[_KEPT], covariance[_KEPT][:, _KEPT])


def _normal(*shape: int, generator: torch.Generator, keeps_zero: bool = True) -> Tensor:
    """Normal coefficients; that of the sine of frequency 0 is zero."""
    numbers = torch.randn(*shape, 2 * MODES, generator=generator, dtype=DOUBLE)
    return numbers * _KEPT if keeps_zero else numbers


def _complex(coefficients: Tensor) -> Tensor:
    cosine, sine = coefficients.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.complex(cosine, -sine)


def _real(coefficients: Tensor) -> Tensor:
    return torch.stack([coefficients.real, -coefficients.imag], -1).flatten(-2)
