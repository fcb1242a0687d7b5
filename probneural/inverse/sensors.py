"""Sensor placement: places whose observations are most informative about outputs, or about the inputs behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_choice, check_finite, check_instance, check_integer, check_variances
from probneural.contexts import without_gradients
from probneural.distributions import FieldDistribution
from probneural.errors import ArgumentError, ShapeError
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.inverse.model import GaussianNumbers

_TARGETS = ("outputs", "inputs")


@dataclass(frozen=True, eq=False)
class SensorPlacement:
    """Chosen sensors.

    Attributes:
        indices: Rows of the functional, in the order of choice, `(count,)`.
        information: Information gain of the first 1, 2, ... of them, `(count,)`, in nats.
    """

    indices: Int64[Tensor, " count"]
    information: Float64[Tensor, " count"]


@without_gradients()
def place_sensors(
    outputs: FieldDistribution,
    functional: Functional,
    *,
    count: int,
    noise: float | Float[Tensor, "..."],
    about: str = "outputs",
) -> SensorPlacement:
    """Choose sensors one after the other, each of the largest expected information gain.

    Sensor j observes row j of A in all channels, with noise of variance N. For a sample's output u of covariance C, the
    expected information gain of the sensors S about u is

        I(S) = 1/2 log det(I + N_S^(-1/2) A_S C A_S^T N_S^(-1/2)),

    averaged over the samples. It is submodular: the greedy choice has at least 1 - 1/e = 0.63 of the largest gain.
    With `about="inputs"` the samples are equally probable inputs, such as predictions for draws from a prior or posterior, and
    the gain is that about which of them is true,

        I(S) = 1/2 log det(N_S + A_S (mean of C + covariance of the means) A_S^T) - mean of 1/2 log det(N_S + A_S C A_S^T),

    with the mixture of all samples taken as Gaussian, which gives an upper bound.

    Args:
        outputs: Predicted outputs of n samples, Gaussian; ensembles and mixtures by mean and covariance. The `outputs` of an
            [`InversePosterior`][probneural.inverse.InversePosterior] give the sensors that add most to its data.
        functional: A, a row for each candidate.
        count: Number of sensors.
        noise: Variance of the noise, positive: a number, one per row, or `(c, m)`; in the outputs' units squared.
        about: `"outputs"` or `"inputs"`.

    Returns:
        `indices` of rows in the order of choice, and the `information` of the first 1, 2, ... of them in nats, `(count,)` each.

    Raises:
        ArgumentError: If `count` is not between 1 and the number of rows, noise is not positive, or one sample is no choice.
        DataError: If predictions are not finite.
        ShapeError: If the noise does not fit the functional.
        UnsupportedError: If the outputs have no Gaussian that matches them.

    Reference:
        Krause, Singh and Guestrin (2008), Near-optimal sensor placements in Gaussian processes (greedy choice); deviation: the
        gain about the whole output in place of that about the places without sensors.

    Examples:
        >>> import probneural as pn
        >>> grid = pn.Grid.uniform((3,))
        >>> root = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.5]]).reshape(1, 1, 3, 2)
        >>> field = pn.distributions.GaussianField(
        ...     torch.zeros(1, 1, 3), pn.distributions.DenseRoot(root), latent="xi", grid=grid
        ... )
        >>> place_sensors(field, pn.functionals.sensors(grid, grid.points), count=2, noise=0.1).indices.tolist()
        [0, 2]
    """
    check_instance(outputs, FieldDistribution, "outputs", remedy="call a predictor")
    size = check_functional(functional).size
    count = check_integer(count, "count", most=size, remedy="choose no more sensors than the functional has rows")
    check_choice(about, _TARGETS, "about")
    channels = outputs.mean.shape[1]
    numbers = GaussianNumbers.of(outputs.apply(functional))  # roots of a functional's values have no white part
    check_finite(torch.stack([numbers.mean.abs().sum(), numbers.root.abs().sum()]), "predictions", remedy="check the predictor")
    scale = _variances(noise, channels, size).rsqrt()
    # F = N^(-1/2) A C^(1/2), `(n, m, c, k)`
    rows = _by_sensor(numbers.root * scale[:, None], channels)
    terms = [(1.0, rows)]
    if about == "inputs":
        n = len(rows)
        if n < 2:
            raise ArgumentError(expected="two samples or more", got=str(n), remedy="predict the outputs of draws of the input")
        means = _by_sensor((numbers.mean - numbers.mean.mean(0)) * scale, channels)
        columns = torch.cat([means[..., None], rows], dim=-1) / math.sqrt(n)
        terms = [(1.0, columns.permute(1, 2, 0, 3).flatten(2)[None]), (-1.0, rows)]
    indices, gains, free = [], [], torch.ones(size, dtype=torch.bool)
    for _ in range(count):
        gain = torch.stack([weight * _gains(rows).mean(0) for weight, rows in terms]).sum(0)
        index = int(torch.where(free, gain, -math.inf).argmax())
        terms = [(weight, _conditioned(rows, index)) for weight, rows in terms]
        free[index] = False
        indices.append(index)
        gains.append(gain[index])
    return SensorPlacement(torch.tensor(indices), torch.stack(gains).cumsum(0))


def _gains(rows: Float64[Tensor, "n m c k"]) -> Float64[Tensor, "n m"]:
    """Gain of each sensor, 1/2 log det(I + F_j F_j^T)."""
    if rows.shape[2] == 1:
        return 0.5 * torch.log1p(rows.square().sum(-1))[..., 0]
    return 0.5 * torch.logdet(torch.eye(rows.shape[2], dtype=rows.dtype) + rows @ rows.mT)


def _conditioned(rows: Float64[Tensor, "n m c k"], index: int) -> Float64[Tensor, "n m c k"]:
    """Rows given the observation of sensor j, F (I + F_j^T F_j)^(-1/2): no variance cancels."""
    _, values, directions = torch.linalg.svd(rows[:, index], full_matrices=False)
    # (I + F_j^T F_j)^(-1/2) = I + V ((1 + s²)^(-1/2) - 1) V^T
    change = (1.0 + values.square()).rsqrt() - 1.0
    along = rows @ directions.mT[:, None]
    return rows + (along * change[:, None, None]) @ directions[:, None]


def _by_sensor(numbers: Float64[Tensor, "n q *k"], channels: int) -> Float64[Tensor, "n m c *k"]:
    return numbers.unflatten(1, (channels, -1)).transpose(1, 2)


def _variances(noise: object, channels: int, size: int) -> Float64[Tensor, " q"]:
    """The noise of each number, channel by channel."""
    variance = check_variances(noise, "noise", positive=True)
    if tuple(variance.shape) not in {(), (size,), (channels, size)}:
        raise ShapeError(
            expected=f"noise as a number, or of shape ({size},) or ({channels}, {size})",
            got=str(tuple(variance.shape)),
            remedy="give one variance per sensor",
        )
    return variance.expand(channels, size).reshape(-1)
