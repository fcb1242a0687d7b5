"""The benchmark of draws and covariances: the exact side, what is made of results, and one small unit of each kind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks import kept_units, random_speed, sampling, sparse_sensors
from benchmarks.sampling_units import EXACT, LINEARISED, METHODS, RANKS, SCRATCH, SIZES, Unit

COMMIT = "0123456789ab"


def test_moments_are_those_of_the_draws() -> None:
    """4,000 draws: a mean is known to 1.6 % of a deviation, a variance to 2.2 %; five of each, of the largest variance."""
    spectrum = random_speed.coefficients(2, seed=0, part=0)
    mean, covariance = random_speed.moments(spectrum)
    drawn = random_speed.outputs(spectrum, 4000, seed=0, part=0)
    largest = covariance.diagonal(dim1=1, dim2=2).amax(1)
    assert bool(((drawn.mean(1) - mean).abs().amax(1) < 5 * (largest / 4000).sqrt()).all())
    found = torch.stack([torch.cov(one.mT) for one in drawn])
    assert bool(((found - covariance).abs().amax((1, 2)) < 5 * largest * math.sqrt(2 / 4000)).all())


def test_energy_distance_of_shifted_normals() -> None:
    """One value, N(0, 1) beside N(2, 1): 2 E|N(2, 2)| - 4 / sqrt(pi), with E|N(m, s^2)| in closed form; none from itself."""
    draws = torch.randn(3, 16, 600, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    apart = random_speed.energy_distance(draws[0], 2.0 + draws[1])
    z = 2.0 / math.sqrt(2.0)
    expected = 2 * (2.0 * math.erf(z / math.sqrt(2)) + 2.0 / math.sqrt(math.pi) * math.exp(-(z**2) / 2)) - 4 / math.sqrt(
        math.pi
    )
    assert float(apart.mean()) == pytest.approx(expected, rel=0.05)
    assert abs(float(random_speed.energy_distance(draws[0], draws[2]).mean())) < 5e-3
    assert random_speed.coverage(draws[0], draws[1]) == pytest.approx(0.9, abs=0.01)


def test_the_exact_posterior_of_sensors() -> None:
    """Least squares on many pairs finds gain and covariance; the stated posterior loses nothing, its diagonal the floor."""
    posterior = sparse_sensors.Posterior.of(0)
    pairs = posterior.pairs(4000, seed=0, part=0)
    seen, outputs = pairs.inputs.values[:, :, 0], pairs.outputs.values[:, 0]
    gain = torch.linalg.lstsq(seen, outputs).solution.mT
    assert float((gain - posterior.gain).abs().max()) < 0.06
    residual = outputs - seen @ posterior.gain.mT
    covariance = residual.mT @ residual / 4000
    assert float((covariance - posterior.covariance).abs().max()) < 5 * float(posterior.covariance.max()) * math.sqrt(2 / 4000)
    inputs = pairs.inputs[:5]
    mean = (inputs.values[:, :, 0] @ posterior.gain.mT)[:, None]
    grid = sparse_sensors.GRID
    for stated, lost in (
        (posterior.covariance, 0.0),
        (posterior.covariance.diagonal().diag(), posterior.floor_of_diagonals),
        (1.1 * posterior.covariance.diagonal().diag(), posterior.floor_of_diagonals + (math.log(1.1) + 1 / 1.1 - 1) / 2),
    ):
        root = torch.linalg.cholesky(stated).expand(5, 1, -1, -1)
        u = sparse_sensors.pn.distributions.GaussianField(
            mean, sparse_sensors.pn.distributions.DenseRoot(root), latent="xi", grid=grid
        )
        assert posterior.regret(u, inputs) == pytest.approx(lost, abs=1e-9)


def test_units_are_kept_and_shown(tmp_path: Path) -> None:
    todo = [unit for unit in sampling.units("small", seeds=1, commit=COMMIT) if unit.method in (0, EXACT, SCRATCH)]
    first = kept_units.spread(todo, tmp_path, workers=1)
    again = kept_units.spread(todo, tmp_path, workers=1)
    for unit in todo:
        assert again[unit] == first[unit] | {"resumed": True}
    assert len(list(tmp_path.glob("*.safetensors"))) == 1  # what a killed training goes on from
    assert len({unit.path(tmp_path) for unit in sampling.units("default", seeds=3, commit=COMMIT)}) == 33


def test_tables() -> None:
    found = {"energy_distance": 1.0, "coverage": 0.89, "sd_ratio": 1.0, "processor_seconds": 3.0}
    results: dict[Unit, sampling.Row] = {}
    for seed in range(2):
        for method in METHODS:
            distance = {LINEARISED: 4.0, EXACT: 2.0}.get(method, 1.0 + seed)
            results[Unit(method, SIZES["small"], seed, COMMIT)] = found | {"energy_distance": distance, "epochs": 2}
        for rank in RANKS:
            results[Unit(rank, SIZES["small"], seed, COMMIT)] = {"regret": 1.0 / (1 + rank), "floor": 0.9, "entropy": -3.0}
    rows = {row["method"]: row for row in sampling.advection(results)}
    assert (rows[SCRATCH]["energy_distance"], rows[SCRATCH]["energy_distance, range"]) == (1.5, "[1, 2]")
    assert [row["regret"] for row in sampling.sensors(results)] == [1 / (1 + rank) for rank in RANKS]
    first, second = sampling.shown(results)
    assert (first[f"{SCRATCH}: of the linearised"], second[f"{SCRATCH}: of the linearised"]) == (0.25, 0.5)
    assert first["of the exact Gaussian"] == 0.5
    assert first["diagonal over its floor"] == pytest.approx(0.1)
    assert first["rank 4 below the floor"] == pytest.approx(0.7)
