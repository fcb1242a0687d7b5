"""Design problems, ways to choose designs, and runs that go on where they were cut off."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from botorch.exceptions import ModelFittingError
from botorch.models import HigherOrderGP
from botorch.models.higher_order_gp import FlattenedStandardize
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning

from benchmarks import bo, bo_methods, bo_problems, kept_units, tables
from benchmarks.bo_higher_order import SingleDesignHigherOrderGP
from probneural.errors import DataError
from probneural.randomness import stream


def _losses(problem: bo_problems.DesignProblem, designs: torch.Tensor) -> torch.Tensor:
    return problem.loss(problem.read(problem.simulate(designs).outputs))


def test_concentrations_are_the_formula() -> None:
    mass, diffusivity, place, moment = 8.3, 0.05, 1.1, 30.2
    values = bo_problems.concentration(torch.tensor([mass, diffusivity, place, moment], dtype=torch.double))
    for row, s in enumerate((0.0, 1.0, 2.5)):
        for column, t in enumerate((15.0, 30.0, 45.0, 60.0)):
            value = mass / math.sqrt(4 * math.pi * diffusivity * t) * math.exp(-(s**2) / (4 * diffusivity * t))
            if t > moment:
                age = t - moment
                spread = 4 * diffusivity * age
                value += mass / math.sqrt(math.pi * spread) * math.exp(-((s - place) ** 2) / spread)
            assert values[row, column].item() == pytest.approx(value, rel=1e-13)


def test_random_designs_reach_what_papers_report() -> None:
    """A misfit between (12,) and (12, 1), or the factor sqrt(4 pi), would be off by far: papers have .37."""
    problem = bo_problems.make("environmental model", seed=0)
    designs = torch.rand(400 * 35, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    best = _losses(problem, designs).reshape(400, 35).amin(1)
    assert 0.33 < float(best.median()) < 0.41


def test_the_spill_of_the_papers_is_the_optimum() -> None:
    problem = bo_problems.make("environmental model", seed=3)
    centre = torch.full((1, 4), 0.5, dtype=torch.double)
    assert _losses(problem, centre).item() < 1e-24
    design = torch.rand(3, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1)).requires_grad_()
    _losses(problem, design).sum().backward()
    assert design.grad is not None
    assert bool(torch.isfinite(design.grad).all())


@pytest.mark.parametrize("name", [name for name in bo_problems.names() if "target" in name])
def test_hidden_targets_are_reached_and_differ(name: str) -> None:
    first, second = (bo_problems.make(name, seed=seed) for seed in (0, 1))
    hidden = bo_problems._hidden(first.dimension, 0)[None]
    assert _losses(first, hidden).item() < 1e-20
    assert _losses(second, hidden).item() > 1e-3


def test_functionals_of_the_flow() -> None:
    dissipation, peak = (bo_problems.make(name, seed=0) for name in ("burgers dissipation", "darcy peak pressure"))
    designs = torch.rand(2, 6, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    states = dissipation.simulate(designs).outputs.values[:, 0].numpy()
    wavenumbers = 2 * math.pi * numpy.fft.fftfreq(32, 1 / 32)
    wavenumbers[16] = 0.0  # a derivative of the sawtooth wave is zero at the nodes
    power = numpy.abs(numpy.fft.fft(states) * wavenumbers / 32) ** 2  # Parseval
    assert (-_losses(dissipation, designs)).tolist() == pytest.approx(power.sum(1).tolist(), rel=1e-10)
    pressures = peak.simulate(designs).outputs.values
    assert _losses(peak, designs).tolist() == pressures.amax((1, 2)).tolist()


def test_the_reference_is_better_than_random_designs() -> None:
    problem = bo_problems.make("darcy peak pressure", seed=0)
    best, near = bo_problems.reference(problem, starts=3, steps=30)
    designs = torch.rand(256, 6, generator=stream(0, "reference designs"), dtype=torch.double)
    assert best < float(_losses(problem, designs).min())
    assert near == pytest.approx(0.01 * (float(_losses(problem, designs).mean()) - best))
    assert bo_problems.reference(bo_problems.make("environmental model", seed=0)) == (0.0, 6e-6)


@pytest.mark.parametrize("method", bo_methods.names())
def test_every_method_begins_alike_and_chooses_in_the_cube(method: str) -> None:
    problem = bo_problems.make("environmental model", seed=0)
    before = torch.random.get_rng_state()
    result = bo_methods.run(method, problem, seed=4, budget=bo_methods.SMALL, evaluations=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(result["losses"]) == 6
    designs = torch.rand(5, 4, generator=stream(4, "initial designs"), dtype=torch.double)
    assert result["losses"][:5] == _losses(problem, designs).tolist()
    assert math.isfinite(result["losses"][5])


def _history(problem: bo_problems.DesignProblem, count: int) -> bo_methods.History:
    designs = torch.rand(count, problem.dimension, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    pairs = problem.simulate(designs)
    return bo_methods.History(designs, pairs, problem.read(pairs.outputs), 0)


def _covariance(left: torch.Tensor, right: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """BoTorch's default kernel: squared exponential, of unit variance."""
    return torch.exp(-0.5 * ((left / lengths)[..., :, None, :] - (right / lengths)[..., None, :, :]).square().sum(-1))


def test_fixed_noise_is_the_least_noise() -> None:
    """What a process leaves of its data is noise times (K + noise I)^-1 y; GPyTorch raises fixed noise to 1e-6 by default."""
    problem = bo_problems.make("environmental model", seed=0)
    history = _history(problem, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalWarning)  # GPyTorch's, where it raises noise
        model, _, _ = bo_methods._processes(problem, history, bo_methods.Budget(), learns_noise=False)
    kernels = _covariance(history.designs, history.designs, model.covar_module.lengthscale.detach())
    scale = history.observations.std(0)
    standardised = (
        (history.observations - history.observations.mean(0)) / scale - model.mean_module.constant[:, None].mT.detach()
    ).mT
    weights = torch.linalg.solve(kernels + bo_methods.MIN_NOISE * torch.eye(9, dtype=torch.double), standardised[..., None])
    with torch.no_grad():
        left = (history.observations - model.posterior(history.designs).mean) / scale
    torch.testing.assert_close(left.mT, bo_methods.MIN_NOISE * weights[..., 0], rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("name", ["environmental model", "darcy peak pressure"])
def test_higher_order_posteriors_are_exact(name: str) -> None:
    """Against BoTorch's own mean and variances, and, for covariances, which it does not give, against dense algebra."""
    problem = bo_problems.make(name, seed=0)
    history = _history(problem, 6)
    torch.manual_seed(0)
    outcomes = FlattenedStandardize(torch.Size(problem.shape))
    model = HigherOrderGP(history.designs, history.observations.unflatten(1, problem.shape), outcome_transform=outcomes).eval()
    designs = torch.rand(3, 1, problem.dimension, dtype=torch.double)
    closed = SingleDesignHigherOrderGP(model).posterior(designs)
    with torch.no_grad():
        theirs = model.posterior(designs)
    torch.testing.assert_close(closed.mean, theirs.mean.reshape(3, 1, -1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(closed.variance, theirs.variance.reshape(3, 1, -1), rtol=1e-9, atol=0)

    size = math.prod(problem.shape)
    axes = [kernel(latent).to_dense() for kernel, latent in zip(model.covar_modules[1:], model.latent_parameters, strict=True)]
    between = axes[0] if len(axes) == 1 else torch.kron(*axes)
    lengths = model.covar_modules[0].lengthscale
    cross = torch.kron(_covariance(designs[0], history.designs, lengths), between)
    seen = torch.kron(_covariance(history.designs, history.designs, lengths), between)
    seen = seen + model.likelihood.noise * torch.eye(len(seen), dtype=torch.double)
    covariance = (between - cross @ torch.linalg.solve(seen, cross.mT)) * outcomes.stdvs.square()
    draws = closed.rsample_from_base_samples(torch.Size([size]), torch.eye(size, dtype=torch.double)[:, None].expand(-1, 3, -1))
    root = (draws - closed.mean)[:, 0, 0]
    torch.testing.assert_close(root.mT @ root, covariance, rtol=1e-8, atol=1e-10)


def _results() -> dict[bo.Unit, dict[str, Any]]:
    times = {"fit_seconds": 0.5, "choice_seconds": 0.25}
    tail = {0: [1e-7] * 30, 1: [1e-3] * 30, 2: [5e-6] * 30}
    return {
        bo.Unit("environmental model", "random", seed, False): {"losses": [1.0] * 5 + tail[seed], **times} for seed in range(3)
    }


def test_a_table_and_a_figure() -> None:
    (row,) = bo.summary("environmental model", _results())
    assert row["seeds"] == 3
    assert row["start"] == 1.0
    assert row["end"] == pytest.approx(5e-6)
    assert row["upper"] == pytest.approx((1e-3 + 5e-6) / 2)
    assert (row["to target"], row["reached"]) == (6, 2)
    curves = bo.trajectories("environmental model", _results())
    assert curves["random"]["median"] == pytest.approx([1.0] * 5 + [5e-6] * 30)
    assert bo.figure({"environmental model": curves}).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "error",
    [
        DataError(expected="numbers", got="none", remedy="find some"),
        RuntimeError("singular"),
        NotPSDError("no"),
        ModelFittingError("no"),
    ],
)
def test_a_run_that_fails_says_why_and_ends_no_other(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = bo_methods.run

    def run(method: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        if method == "Sobol":
            raise error
        return original(method, *arguments, **options)

    monkeypatch.setattr(bo_methods, "run", run)
    todo = [bo.Unit("environmental model", method, 0, True, commit="0123456789ab") for method in ("Sobol", "random")]
    results = kept_units.spread(todo, tmp_path, workers=1)
    (note,) = bo.failures(results)
    assert note.startswith(f"failed: environmental model, Sobol, seed 0: {type(error).__name__}: ")
    random, sobol = bo.summary("environmental model", results)
    assert (random["seeds"], random["failed"]) == (1, 0)
    assert sobol == {"method": "Sobol", "seeds": 0, "reached": 0, "failed": 1}
    assert list(bo.trajectories("environmental model", results)) == ["random"]


def test_one_problem_is_run_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bo.environment, "commit", lambda: "0123456789ab")
    monkeypatch.setitem(bo.METHODS, "environmental hidden target", ("random", "Sobol"))
    problem = "environmental hidden"
    written = bo.main(mode="small", output=tmp_path, workers=1, problem=problem)
    assert written["command"] == 'python -m benchmarks bo --small --problem "environmental hidden"'
    assert [row["method"] for row in written["sections"]["environmental hidden target"]] == ["random", "Sobol"]
    assert not [note for note in written["notes"] if "earlier run" in note]
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        f"bo-environmental-hidden{end}" for end in ("-curves.json", ".json", ".png")
    ]
    again = bo.main(mode="small", output=tmp_path, workers=1, problem=problem)
    assert again["sections"] == written["sections"]
    assert [note for note in again["notes"] if note.startswith("2 of 2 units were finished by an earlier run")]


@pytest.mark.parametrize("problem", bo_problems.names())
def test_committed_results_are_those_of_the_command(problem: str) -> None:
    results = json.loads((tables.RESULTS / f"bo-{problem.replace(' ', '-')}.json").read_text())
    assert results["command"] == f'python -m benchmarks bo --problem "{problem}"'
    runs = Counter(unit.method for unit in bo.units(small=False) if unit.problem == problem)
    assert {row["method"]: row["seeds"] + row["failed"] for row in results["sections"][problem]} == runs
