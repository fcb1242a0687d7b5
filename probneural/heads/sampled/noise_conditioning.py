"""Operators that are conditioned on noise: their predictions are draws of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import assign, check_callable, check_integer, check_module, check_variances
from probneural.contexts import undisturbed
from probneural.distributions import EmpiricalField, FieldDistribution, Predictor, PredictorTraits
from probneural.distributions.empirical import LazyEmpiricalField
from probneural.distributions.latent import draw_keys
from probneural.errors import ArgumentError, ShapeError, TrainingError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads.residuals import NOISE_FLOOR, check_some, given_noise
from probneural.heads.training_data import TrainingData, owned, recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.pairs import Dataset
from probneural.randomness import check_seed, seeded, stream
from probneural.registry import stored

_BATCH_POINTS = 2**16
"""Members times functions times grid points evaluated at once."""


@dataclass(frozen=True)
class NoiseConditioning:
    """An operator with noise as a second input, trained by a proper score: each draw of the noise is a draw of the output.

    The prediction is the empirical field of its members, one draw of the noise each, the same for all inputs; `draw(seed)` is
    a fresh one. Unlike a posterior of weights it can be of any form, with several modes for example, and it states what varies
    in the data for one and the same input. It knows nothing of how few the data are: trained on some hundred functions, its
    spread is too small, on held-out functions and more so under a shift. Calibrate it.

    The operator is a [`NoiseConditionedOperator`][probneural.operators.NoiseConditionedOperator], or any module that has
    `noise_size`, a number, and `conditioned(values, noise, grid=..., query=...)`, which maps inputs `(n, c, *grid)` and
    standard normal coefficients `(n, noise_size)` to `(n, c', *query)`. It is taken as trained, or trained here by `train`.

    Args:
        members: Draws in a prediction. Below 100, intervals are those of the Gaussian with their mean and variance.
        condition: Makes such an operator of (a copy of) the one that is given, a deterministic one for example:
            `lambda fno: NoiseConditionedOperator(fno, layers=["spectral"])`. By default it is one already.
        train: Trains a copy in place, called as `train(operator, data, seed=seed)`: `functools.partial(pn.fit, epochs=25,
            loss=pn.training.CRPS(2))`. By default the operator is taken as trained.
        noise: Variance of the measurement noise that the draws do not hold, in physical units squared: a number, or one per
            channel; by default none (1e-12 of the outputs' variance). What is smooth in the data is in the draws.
        seed: Names the members and the training.

    Raises:
        ArgumentError: If a setting is out of range, or there is `condition` without `train`.

    Reference:
        Lang et al. (2024), AIFS-CRPS; Alet et al. (2025), Skillful joint probabilistic weather forecasting from marginals;
        Bülte, Scholl & Kutyniok (2025), Probabilistic neural operators for functional uncertainty quantification. Pacchiardi et
        al. (2024), Probabilistic forecasting with generative networks via scoring rule minimization.

    Examples:
        >>> class Shifted(nn.Module):
        ...     noise_size = 1
        ...
        ...     def conditioned(self, values, noise, *, grid=None, query=None):
        ...         return values + noise[:, :, None]
        >>> fields = Field(torch.zeros(4, 1, 8), Grid.uniform((8,)))
        >>> from probneural.pairs import FieldPairs
        >>> predictor = NoiseConditioning(1000).fit(Shifted(), FieldPairs(fields, fields))
        >>> round(float(predictor(fields).variance.mean()), 1)
        1.0
    """

    members: int = 128
    _: KW_ONLY
    condition: Callable[[nn.Module], nn.Module] | None = None
    train: Callable[..., object] | None = None
    noise: float | Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, members=check_integer(self.members, "members", least=2, most=2**20), seed=check_seed(self.seed))
        if self.noise is not None:
            check_variances(self.noise, "noise", positive=True)
        if self.condition is not None:
            check_callable(self.condition, "condition", remedy="give a function from an operator to a conditioned one")
            if self.train is None:
                raise ArgumentError(
                    expected="train= beside condition=",
                    got="None, so that noise would have no effect",
                    remedy="give train=functools.partial(pn.fit, epochs=25, loss=pn.training.CRPS(2))",
                )
        if self.train is not None:
            check_callable(self.train, "train", remedy="give functools.partial(pn.fit, loss=pn.training.CRPS(2))")

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> NoiseConditionedPredictor:
        """Take the operator over, or train a copy, and draw the noise of the members.

        Where torch.distributed is initialised, every process calls it with the same data; training is then what `train` makes
        of it.

        Args:
            operator: Conditioned on noise, or what `condition` takes; neither it nor the data are changed.
            data: Training pairs. Without `train`, they give units and grid only.

        Returns:
            A predictor of empirical fields, with its own copy of the operator.

        Raises:
            ArgumentError: If the operator is not conditioned on noise.
            TrainingError: If training leaves values that are not finite, or draws that do not vary.
            DataError: If the data are not finite pairs.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        copied = copy.deepcopy(check_module(operator, "operator"))
        for parameter in copied.parameters():
            parameter.grad = None
        given = training_data(data, copied, is_shared=False)
        if self.condition is not None:
            copied = check_module(self.condition(copied), "what condition returns")
        size = _noise_size(copied)
        if self.train is not None:
            _check_outputs(copied, given, size)  # outputs that do not fit cost no training
            pairs = owned(given)
            with torch.enable_grad(), seeded(self.seed, "noise-conditioned training", devices=[given.inputs.device]):
                self.train(copied, pairs, seed=self.seed)
            if not all(bool(torch.isfinite(value).all()) for value in copied.state_dict().values()):
                raise TrainingError(
                    expected="finite weights after training", got="NaN or infinite ones", remedy="lower the learning rate"
                )
        units = given.output_units()[1].square()
        noise = given_noise(self.noise, len(units), dtype=given.inputs.dtype)
        predictor = NoiseConditionedPredictor(
            operator=copied.eval().requires_grad_(False),
            latents=_drawn(self.members, size, self.seed).to(given.inputs.device, given.inputs.dtype),
            noise=NOISE_FLOOR * units if noise is None else noise.to(units),
            domain=given.inputs.grid,
            in_channels=given.inputs.channels,
        )
        _check_outputs(predictor.operator, given, size)
        _check_varies(predictor, given)
        return predictor


@stored()
class NoiseConditionedPredictor(Predictor):
    """What `NoiseConditioning` fits.

    Attributes:
        operator: The predictor's own copy, conditioned on noise.
        latents: Coefficients of the members' noise, `(s, z)`, standard normal.
    """

    def __init__(
        self,
        *,
        operator: nn.Module,
        latents: Float[Tensor, "s z"],
        noise: Float64[Tensor, " c"],
        domain: Grid,
        in_channels: int,
    ) -> None:
        if latents.ndim != 2 or latents.shape[1] != _noise_size(operator):
            raise ShapeError(
                expected=f"noise of shape (s, {_noise_size(operator)})", got=str(tuple(latents.shape)), remedy="fit the head"
            )
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=latents))
        self.operator = operator
        self.latents = latents

    @property
    def members(self) -> int:
        """Number of draws s in a prediction."""
        return len(self.latents)

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> EmpiricalField:
        check_some(inputs)
        return LazyEmpiricalField(
            lambda: self._samples(inputs, query, self.latents),
            draw=lambda seeds, each: self._draws(inputs, query, seeds, each=each),
            size=(self.members, len(inputs)),
            grid=inputs.grid if query is None else query,
            like=self.latents,
            source=self._key,
        )

    def _samples(self, inputs: Field, query: Grid | None, latents: Tensor) -> Float[Tensor, "s n c *grid"]:
        """Draws at several noise vectors, each the same for all inputs, in parts of bounded memory."""
        points = max(inputs.grid.size, inputs.grid.size if query is None else query.size)
        step = min(max(1, _BATCH_POINTS // points), len(inputs))
        width = max(1, _BATCH_POINTS // (points * step))
        starts = range(0, len(inputs), step)
        parts = [
            torch.cat([self._products(inputs[start : start + step], query, some) for some in latents.split(width)])
            for start in starts
        ]
        return torch.cat(parts, dim=1)

    def _products(self, inputs: Field, query: Grid | None, latents: Tensor) -> Float[Tensor, "s n c *grid"]:
        """All inputs at all noise vectors, in one call of the operator."""
        repeated = Field(inputs.values.repeat(len(latents), 1, *(1,) * len(inputs.grid.shape)), inputs.grid)
        outputs = evaluate(_AtNoise(self.operator, latents.repeat_interleave(len(inputs), 0)), repeated, query)
        return outputs.unflatten(0, (len(latents), len(inputs)))

    def _draws(self, inputs: Field, query: Grid | None, seeds: tuple[int, ...], *, each: bool) -> Float[Tensor, "..."]:
        """Fresh noise for each seed, the same for all inputs."""
        size, keys = self.latents.shape[1], draw_keys(self._key)
        noise = {seed: _drawn(1, size, seed, 0, *keys) for seed in dict.fromkeys(seeds)}
        latents = torch.cat([noise[seed] for seed in seeds]).to(self.latents)
        if not each:
            return self._samples(inputs, query, latents)
        step = max(1, _BATCH_POINTS // max(inputs.grid.size, inputs.grid.size if query is None else query.size))
        starts = range(0, len(inputs), step)
        parts = [
            evaluate(_AtNoise(self.operator, latents[start : start + step]), inputs[start : start + step], query)
            for start in starts
        ]
        return torch.cat(parts)


class _AtNoise(nn.Module):
    """A conditioned operator at given noise, one row for each function."""

    def __init__(self, operator: nn.Module, noise: Float[Tensor, "n z"]) -> None:
        super().__init__()
        self.operator = operator
        self.noise = noise

    def forward(self, values: Tensor, *, grid: Grid | None = None, query: Grid | None = None) -> Tensor:
        conditioned: Callable[..., Tensor] = self.operator.conditioned  # type: ignore[assignment]
        return conditioned(values, self.noise, grid=grid, query=query)


def _drawn(count: int, size: int, seed: int, *indices: int) -> Float64[Tensor, "s z"]:
    """Standard normal noise, on the CPU."""
    generator = stream(seed, "operator noise", *indices)
    return torch.randn(count, size, generator=generator, dtype=torch.float64, device="cpu")


def _noise_size(operator: nn.Module) -> int:
    """Coefficients of a draw of the noise, or an ArgumentError if the operator takes none."""
    size: Any = getattr(operator, "noise_size", None)
    if size is None or not callable(getattr(operator, "conditioned", None)):
        raise ArgumentError(
            expected="an operator that is conditioned on noise",
            got=type(operator).__name__,
            remedy="wrap it: pn.operators.NoiseConditionedOperator(operator, layers=[...]), and train it by pn.fit; "
            "or give condition= and train=",
        )
    return check_integer(size, "noise_size")


@torch.no_grad()
def _check_outputs(operator: nn.Module, data: TrainingData, size: int) -> None:
    """Raise a ShapeError unless outputs are of the data's shape."""
    some = data.some(1)
    noise = torch.zeros(1, size, dtype=some.inputs.dtype, device=some.inputs.device)
    residuals_of(_AtNoise(copy.deepcopy(operator).eval(), noise), some, data.query)


@torch.no_grad()
def _check_varies(predictor: NoiseConditionedPredictor, data: TrainingData) -> None:
    """Raise a TrainingError unless outputs vary with the noise."""
    inputs = data.some(1).inputs
    noise = predictor.latents[:2, None]
    first, second = (evaluate(_AtNoise(predictor.operator, one), inputs, data.query) for one in noise)
    if torch.equal(first, second):
        raise TrainingError(
            expected="draws that vary with the noise",
            got="equal ones",
            remedy="train the operator by CRPS or EnergyScore before, or give train=",
        )
