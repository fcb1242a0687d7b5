"""Bands that control a loss of the user's choice, in expectation or with high probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.bands.conformal import conformal_scores
from probneural.calibration.bands.shapes import (
    FLOOR,
    BandField,
    BandMethod,
    FittedBand,
    Modulation,
    check_modulation,
    local_scale,
)
from probneural.calibration.predictions import (
    check_new,
    distributions,
    group_means,
    group_numbers,
    moments,
    number_of,
    warn_of_training_pairs,
)
from probneural.checks import assign, check_callable, check_instance, check_integer, check_real, real_tensor
from probneural.contexts import undisturbed
from probneural.distributions.base import check_values
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError, DataError
from probneural.fields import Field
from probneural.pairs import Dataset

BandLoss = Callable[[BandField, Field], Tensor]
"""From bands around n functions, and the truth, to n numbers between 0 and 1."""


def fraction_outside(bands: BandField, truth: Field) -> Float64[Tensor, " n"]:
    """The fraction of the domain on which the truth lies outside, averaged over channels, `(n,)`, dimensionless.

    Examples:
        >>> from probneural.grids import Grid
        >>> grid = Grid.uniform((4,))
        >>> bands = BandField(torch.zeros(1, 1, 4).double(), torch.ones(1, 1, 4).double(), grid=grid)
        >>> fraction_outside(bands, Field(torch.tensor([[[0.0, 0.5, -2.0, 1.0]]]), grid)).item()
        0.25
    """
    check_instance(bands, BandField, "bands", remedy="call a fitted band: band(inputs)")
    return 1.0 - bands.fraction_inside(truth).mean(1)


_CANDIDATES, _PASSES = 48, 3
"""Widths that are tried at once, and how often the best interval is divided again: the width is found to 1e-4 of itself."""
_RANGE, _ABOVE = 1e-4, 2.0
"""The first widths, as multiples of the one that holds every calibration function."""
_ROUNDING = 1e-9
"""By how much a loss may leave [0, 1], or grow with the band."""


@dataclass(frozen=True)
class RiskControl(BandMethod):
    """The narrowest band mean ± q scale(x) whose risk, the expected loss of a new function, is kept below a level.

    The loss is a function of band and truth, between 0 and 1, that does not grow as the band widens: the fraction of the domain
    outside, for example. q is the least width at which a bound of the risk, from n calibration losses
    of mean R̂(q), is at most `level`. What is stated, for any predictor:

    * With δ, high probability: P(risk <= level) >= 1 - δ over calibration sets of independent pairs. The bound is that of
      Hoeffding and Bentkus: min(exp(-n h(R̂, level)), e P(Binomial(n, level) <= ⌈n R̂⌉)) <= δ, where h is the relative entropy of
      two Bernoulli variables. The least n is ln δ / ln(1 - level), 22 at .1 and .1.
    * With `delta=None`, in expectation: E loss <= level over calibration set and new pair, which are exchangeable. The bound is
      (n R̂ + 1)/(n + 1); the least n is 1/level - 1. Given one calibration set the risk may be higher.

    Of pairs with groups, such as windows of trajectories, losses are the means of each group, and n is the number of groups.

    A loss of 0 or 1, whether the function leaves the band, makes the second a split conformal band of probability 1 - level.

    Args:
        loss: Takes bands around n functions and the true field, and returns `(n,)` numbers between 0 and 1; for example
            [`fraction_outside`][probneural.calibration.fraction_outside].
        level: Largest acceptable risk, between 0 and 1; dimensionless.
        delta: Probability of a calibration set whose band has a larger risk, between 0 and 1; None to control the risk on
            average over calibration sets.
        modulation: As in [`SimultaneousBand`][probneural.calibration.SimultaneousBand].
        floor: Likewise.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Bates, Angelopoulos, Lei, Malik and Jordan (2021), Distribution-free, risk-controlling prediction sets, theorem 1 and
        section 3.1; Angelopoulos, Bates, Fisch, Lei and Schuster (2024), Conformal risk control, theorem 1 (in expectation).
    """

    loss: BandLoss
    level: float = 0.1
    _: KW_ONLY
    delta: float | None = 0.1
    modulation: Modulation = "std"
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Validate."""
        remedy = "give a function of bands and truth: pn.calibration.fraction_outside"
        assign(
            self,
            loss=check_callable(self.loss, "loss", remedy=remedy),
            level=check_real(self.level, "level", above=0.0, below=1.0),
            delta=None if self.delta is None else check_real(self.delta, "delta", above=0.0, below=1.0),
        )
        check_modulation(self.modulation, self.floor)

    @undisturbed()
    @torch.no_grad()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> RiskBand:
        """Find the width on fields that neither training nor scaling has used; they are predicted a few times.

        Whether the loss is bounded and does not grow is checked at the widths that are tried.

        Args:
            predictor: What any head or calibrator returned.
            calibration: Held-out pairs.
            allow_training_data: Whether pairs that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few fields for level and δ, the loss grows with the band, no width is enough,
                or the predictor was trained or scaled on some of the fields.
            DataError: If a value is not finite, or a loss is not between 0 and 1.
            ShapeError: If the outputs do not have the predictor's channels, or losses are not one per function.
        """
        check_new(predictor, calibration, allow_training_data=allow_training_data)
        scores = conformal_scores(predictor, calibration, modulation=self.modulation, floor=self.floor).values
        self._check_count(number_of(group_numbers(calibration)))
        step = (_ABOVE / _RANGE) ** (1.0 / (_CANDIDATES - 1))
        widths = [0.0, *(_largest(scores) * _RANGE * step**number for number in range(_CANDIDATES))]
        return RiskBand(predictor, quantile=self._narrowest(predictor, calibration, widths), method=self)

    def controls(self, risk: float, *, count: int) -> bool:
        """Whether the bound of the risk is at most the level, given the mean of so many calibration losses.

        Examples:
            >>> from probneural.calibration import fraction_outside
            >>> control = RiskControl(fraction_outside, 0.1, delta=0.1)
            >>> control.controls(0.0, count=21), control.controls(0.0, count=22), control.controls(0.05, count=22)
            (False, True, False)
        """
        risk, count = check_real(risk, "risk", least=0.0, most=1.0), check_integer(count, "count")
        if self.delta is None:
            return (count * risk + 1.0) / (count + 1.0) <= self.level + _ROUNDING
        return hoeffding_bentkus(risk, level=self.level, count=count) <= self.delta

    def _check_count(self, count: int) -> None:
        if self.controls(0.0, count=count):
            return
        enough = 1.0 / self.level - 1.0 if self.delta is None else math.log(self.delta) / math.log1p(-self.level)
        stated = f"a risk of {self.level:g}" + ("" if self.delta is None else f" with probability {1.0 - self.delta:g}")
        raise CalibrationError(
            expected=f"at least {math.ceil(enough - 1e-9)} calibration fields for {stated}",
            got=str(count),
            remedy="hold out more fields, or raise the level",
        )

    def _narrowest(self, predictor: Predictor, calibration: Dataset, widths: list[float]) -> float:
        groups = group_numbers(calibration)
        for _ in range(_PASSES):
            losses = torch.cat(list(_losses(self, predictor, calibration, widths=widths)), dim=1)
            losses = torch.stack([group_means(loss, groups) for loss in losses.cpu()])
            grown = float(losses.diff(dim=0).max())
            if grown > _ROUNDING:
                raise CalibrationError(
                    expected="a loss that does not grow as the band widens",
                    got=f"one that grows by {grown:.3g}",
                    remedy="count what the band misses, not how wide it is",
                )
            means = losses.mean(1).clamp(0.0, 1.0).tolist()  # but for rounding they are there
            enough = [number for number, mean in enumerate(means) if self.controls(mean, count=losses.shape[1])]
            if not enough:
                raise CalibrationError(
                    expected=f"a band of risk {self.level:g}, however wide",
                    got=f"a mean loss of {means[-1]:.3g} at twice the width that holds all functions",
                    remedy="choose a loss that is 0 where the band holds the truth, or a higher level",
                )
            if enough[0] == 0:
                return widths[0]
            low, high = widths[enough[0] - 1], widths[enough[0]]
            widths = [low + (high - low) * step / _CANDIDATES for step in range(_CANDIDATES + 1)]
        return high


class RiskBand(FittedBand[RiskControl]):
    """A band whose risk is controlled, from [`RiskControl`][probneural.calibration.RiskControl]; call it on inputs.

    Its level is the largest risk that is stated.

    Args:
        predictor: The predictor it belongs to.
        quantile: Half width in units of the local scale.
        method: Loss, level and δ it was calibrated with.
    """

    def risk(self, pairs: Dataset) -> float:
        """The mean loss of new functions, some of which are predicted at a time; dimensionless.

        Raises:
            CalibrationError: If there are no pairs.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.

        Warns:
            DataWarning: If some pairs trained the predictor.
        """
        losses = list(_losses(self.method, self.predictor, pairs, widths=[self.quantile]))
        warn_of_training_pairs(self.predictor, pairs, purpose="coverage")
        if not losses:
            raise CalibrationError(expected="at least one pair", got="none", remedy="hold out some fields")
        return float(torch.cat(losses, dim=1).mean())


def _losses(
    method: RiskControl, predictor: Predictor, pairs: Dataset, *, widths: Sequence[float]
) -> Iterator[Float64[Tensor, "widths n"]]:
    """Losses at every width, of some functions at a time."""
    for u, truth, grid in distributions(predictor, pairs):
        predicted, field = moments(u, predictor.noise), Field(truth, grid)
        scale = local_scale(predicted, predictor, modulation=method.modulation, floor=method.floor)
        bands = (BandField(mean=predicted.mean, half_width=width * scale, grid=u.grid) for width in widths)
        yield torch.stack([checked_losses(method.loss(band, field), len(truth)) for band in bands])


def hoeffding_bentkus(risk: float, *, level: float, count: int) -> float:
    """A p-value of the hypothesis that the risk is at least `level`, given the mean of independent losses in [0, 1].

    Args:
        risk: The mean.
        level: The hypothesis.
        count: Number of losses.

    Examples:
        >>> round(hoeffding_bentkus(0.0, level=0.1, count=10), 9), round(0.9**10, 9)  # no loss in ten
        (0.34867844, 0.34867844)
        >>> hoeffding_bentkus(0.2, level=0.1, count=10)
        1.0
    """
    from scipy.stats import binom  # loads much of SciPy

    if risk >= level:
        return 1.0
    entropy = (risk * math.log(risk / level) if risk > 0 else 0.0) + (1.0 - risk) * math.log((1.0 - risk) / (1.0 - level))
    bentkus = math.e * float(binom.cdf(math.ceil(count * risk - _ROUNDING), count, level))
    return min(1.0, math.exp(-count * entropy), bentkus)


def checked_losses(losses: object, count: int) -> Float64[Tensor, " n"]:
    """Return what a loss gave, in float64.

    Raises:
        DataError: If they are no numbers between 0 and 1.
        ShapeError: If they are not one per function.
    """
    values = real_tensor(losses, "losses", dtype=torch.float64).detach()
    check_values(values, (count,), "losses")
    if not bool(((values >= -_ROUNDING) & (values <= 1.0 + _ROUNDING)).all()):
        raise DataError(
            expected="losses between 0 and 1",
            got=f"{float(values.min()):.4g} to {float(values.max()):.4g}",
            remedy="divide the loss by its largest value",
        )
    return values


def _largest(scores: Float64[Tensor, " n"]) -> float:
    """The width that holds every function that some width holds; 1 if that is none at all."""
    finite = scores[torch.isfinite(scores)]
    return float(finite.max()) or 1.0 if len(finite) else 1.0
