"""Units of the sampling benchmark: one method on one draw of the data, kept in a file when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import environment, kept_units, random_speed
from benchmarks.studies import sparse_sensors
from probneural.distributions import EmpiricalField, GaussianField
from probneural.randomness import stream_seed

EXACT = "Gaussian of exact mean and covariance"
LINEARISED = "last-layer Laplace, calibrated"
SCRATCH = "energy score, from scratch"
TUNED = "energy score, fine-tuned"
WITH_ADAMW = {"energy score, from scratch, AdamW": SCRATCH, "energy score, fine-tuned, AdamW": TUNED}
"""What the trainings by the score come to with AdamW for all weights."""
POINTWISE = "CRPS, from scratch"
METHODS = (EXACT, LINEARISED, SCRATCH, TUNED, *WITH_ADAMW, POINTWISE)
RANKS = (0, 2, 4, 8)
LEVEL = 0.9


@dataclass(frozen=True)
class Sizes:
    """How large a run is.

    Attributes:
        pairs: Training pairs.
        epochs: Of a training from scratch, and of the deterministic operator; fine-tuning has half as many.
        held_out: Functions that variances are scaled on, and functions that are scored.
        draws: Of a method, and exact ones, per function.
        sensor_pairs: Training pairs of the sparse-sensor problem.
        sensor_epochs: Of the second read-out.
        width: Channels of the FNO.
    """

    pairs: int = 5000
    epochs: int = 24
    held_out: int = 200
    draws: int = 400
    sensor_pairs: int = 2000
    sensor_epochs: int = 40
    width: int = 24


SIZES = {
    "default": Sizes(),
    "small": Sizes(pairs=40, epochs=2, held_out=10, draws=20, sensor_pairs=60, sensor_epochs=4, width=4),
}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One method on random-speed advection, or one rank on sparse sensors.

    Attributes:
        method: One of `METHODS`, or a rank.
        sizes: How large.
        seed: Of data, weights and draws.
        commit: Of the code.
    """

    method: str | int
    sizes: Sizes
    seed: int
    commit: str

    @property
    def name(self) -> str:
        """For readers of the progress."""
        method = f"rank {self.method}" if isinstance(self.method, int) else self.method
        return f"{method}, seed {self.seed}"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train and score; a training that was killed goes on from its checkpoint where the commit is clean."""
        return self._sensors(self.method) if isinstance(self.method, int) else self._advection(folder)

    def _advection(self, folder: Path) -> dict[str, Any]:
        spectrum = random_speed.coefficients(self.sizes.held_out, seed=self.seed, part=2)
        inputs = pn.Field(random_speed.functions(spectrum)[:, None].float(), random_speed.GRID)
        exact = random_speed.outputs(spectrum, self.sizes.draws, seed=self.seed, part=3)
        found: dict[str, Any] = {}
        if self.method == EXACT:
            mean, covariance = random_speed.moments(spectrum)
            stated = random_speed.gaussian_draws(mean, covariance, count=self.sizes.draws, seed=self.seed)
        else:
            predictor, found["epochs"] = self._trained(folder)
            u = predictor(inputs)
            stated = _draws(u, self.sizes.draws, seed=self.seed)
        found["energy_distance"] = float(random_speed.energy_distance(stated, exact).mean())
        found["coverage"] = random_speed.coverage(stated, exact, level=LEVEL)
        found["sd_ratio"] = float((stated.var(1) / exact.var(1)).mean().sqrt())
        return found

    def _trained(self, folder: Path) -> tuple[pn.distributions.Predictor, int]:
        """The method's predictor, and the epochs of its own training."""
        train = random_speed.pairs(self.sizes.pairs, seed=self.seed, part=0)
        head = pn.heads.NoiseConditioning(self.sizes.draws, seed=self.seed)
        training = WITH_ADAMW.get(str(self.method), self.method)
        operator = self._fno()
        if training in (LINEARISED, TUNED):
            self._fit(operator, train, folder, "deterministic", epochs=self.sizes.epochs)
            if training == LINEARISED:
                held_out = random_speed.pairs(self.sizes.held_out, seed=self.seed, part=1)
                raw = pn.heads.LastLayerLaplace().fit(operator, train)
                return pn.calibration.VarianceScale().fit(raw, held_out), self.sizes.epochs
        conditioned = pn.operators.NoiseConditionedOperator(
            operator, layers=["spectral"], noise=pn.operators.NoiseField(2), samples=4, seed=self._seed(1)
        )
        epochs = self.sizes.epochs // 2 if training == TUNED else self.sizes.epochs
        loss = pn.training.CRPS(4) if training == POINTWISE else pn.training.EnergyScore(4)
        optimization = pn.training.Optimization(optimizer="adamw") if self.method in WITH_ADAMW else None
        self._fit(conditioned, train, folder, str(self.method), epochs=epochs, loss=loss, optimization=optimization)
        return head.fit(conditioned, train), epochs

    def _fno(self) -> pn.operators.FNO:
        modes = random_speed.MODES + 1
        return pn.operators.FNO(1, 1, modes=(modes,), width=self.sizes.width, depth=2, seed=self._seed(0))

    def _fit(self, operator: torch.nn.Module, train: pn.FieldPairs, folder: Path, name: str, **settings: Any) -> None:
        """Train, with a checkpoint that belongs to this commit."""
        fit: Callable[..., object] = partial(pn.fit, operator, train, seed=self._seed(2), show_progress=False, **settings)
        if not environment.is_clean(self.commit):
            fit()
            return
        folder.mkdir(parents=True, exist_ok=True)
        kept = environment.file_name(
            f"{name}, seed {self.seed}", self.sizes, self.seed, self.commit, name, suffix=".safetensors"
        )
        fit(run=pn.training.RunOptions(checkpoint=folder / kept))

    def _seed(self, number: int) -> int:
        return stream_seed(self.seed, "sampling training", number)

    def _sensors(self, rank: int) -> dict[str, Any]:
        posterior = sparse_sensors.Posterior.of(self.seed)
        train = posterior.pairs(self.sizes.sensor_pairs, seed=self.seed, part=0)
        test = posterior.pairs(self.sizes.held_out, seed=self.seed, part=1)
        operator = sparse_sensors.Interpolation.fitted(train)
        head = pn.heads.HeteroscedasticGaussian(rank, epochs=self.sizes.sensor_epochs, seed=self.seed)
        u = head.fit(operator, train)(test.inputs)
        assert isinstance(u, GaussianField)
        return {
            "entropy": posterior.entropy,
            "floor": posterior.floor_of_diagonals,
            "regret": posterior.regret(u, test.inputs),
        }


def _draws(u: pn.distributions.FieldDistribution, count: int, *, seed: int) -> Tensor:
    """Draws of each function, `(n, s, p)`, float64: the members themselves, where there are members."""
    if isinstance(u, EmpiricalField):
        return u.samples[:, :, 0].movedim(0, 1).double()
    return u.rsample((count,), seed=stream_seed(seed, "sampling training", 3))[:, :, 0].movedim(0, 1).double()
