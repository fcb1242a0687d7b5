"""A second read-out that gives the covariance of the field, trained by its joint Gaussian density."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import assign, check_flag, check_integer, check_module, check_positive, check_real, check_text
from probneural.contexts import undisturbed
from probneural.errors import ReadoutError, TrainingError
from probneural.fields import Field
from probneural.grids import Grid, check_unmasked
from probneural.heads.last_layer.heteroscedastic_predictor import HeteroscedasticPredictor, diagonal, with_constant
from probneural.heads.last_layer.laplace import statistics
from probneural.heads.last_layer.low_rank_density import log_density_per_value
from probneural.heads.last_layer.readout import VERIFIED, Readout, find_readout
from probneural.heads.training_data import TrainingData, recorded, training_data
from probneural.pairs import Dataset
from probneural.randomness import check_seed, stream

_KEPT_ELEMENTS = 2**25
"""Feature values kept over all epochs, at most (128 MiB in float32); more are evaluated again in each."""
_OPERATOR_RATE = 0.1
"""Learning rate of the operator's own weights, in that of the read-out's."""
_LEAST_UNIT = 1e-6
"""Least unit of residuals, in units of the outputs' standard deviation."""


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """A mean and a covariance, F F^T + D, both read off the last features: low rank plus diagonal, another one for each input.

    A second pointwise read-out gives r factors and a variance at every point and channel. Its weights maximise the joint
    Gaussian log density of the training outputs, all values of a function together, by Adam with a cosine schedule; the
    operator stays as it is, or with `trains_operator` goes on learning by the same density. What it states is what the
    training residuals are like, so it knows nothing of inputs unlike them, and an operator that has learned its training data
    by heart states too little: calibrate it on held-out fields, or fit it on pairs the operator has not seen. All scatter is in
    the field, so `noise` is 0.

    The rank decides what it can state. With `rank=0` the covariance is a diagonal, whose density cannot exceed that of
    independent values: on fields seen through a few sensors, that alone costs more than a nat per value. The study
    `benchmarks/studies/sampling.py` has the floor in closed form, and the gain of a rank.

    Args:
        rank: r, columns of the low-rank part, shared by all channels.
        readout: Name of the operator's last layer; found by itself where it can be.
        trains_operator: Whether the operator's weights are trained too, at a tenth of the learning rate, from those it has.
        beta: From 0 to 1. Log densities are weighted by the stated variance to this power (the geometric mean over a function,
            without gradient), so that functions with large errors keep their pull on the mean: with `trains_operator`, try 0.5
            where the mean gets worse. 0 is the density itself.
        epochs: Passes over the data.
        learning_rate: Of Adam, at the beginning.
        batch_size: Functions in a batch.
        seed: Names the initial factors and the order of batches.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Nix and Weigend (1994), Estimating the mean and variance of the target probability distribution; Monteiro et al. (2020),
        Stochastic segmentation networks (low rank plus diagonal); Seitzer et al. (2022), On the pitfalls of heteroscedastic
        uncertainty estimation with probabilistic neural networks (beta). Deviation: a weight per function, since its density is
        joint.

    Examples:
        >>> from probneural.pairs import FieldPairs
        >>> noisy = torch.randn(50, 1, 16, generator=torch.Generator().manual_seed(0))
        >>> grid = Grid.uniform((16,))
        >>> pairs = FieldPairs(Field(torch.ones(50, 1, 16), grid), Field(0.5 * noisy, grid))
        >>> predictor = HeteroscedasticGaussian(0, epochs=20).fit(nn.Sequential(nn.Conv1d(1, 1, 1)), pairs)
        >>> bool(predictor(pairs.inputs).variance.mean() > 0.2)
        True
    """

    rank: int = 8
    _: KW_ONLY
    readout: str | None = None
    trains_operator: bool = False
    beta: float = 0.0
    epochs: int = 100
    learning_rate: float = 1e-2
    batch_size: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(
            self,
            rank=check_integer(self.rank, "rank", least=0),
            trains_operator=check_flag(self.trains_operator, "trains_operator"),
            beta=check_real(self.beta, "beta", least=0.0, most=1.0),
            epochs=check_integer(self.epochs, "epochs"),
            learning_rate=check_positive(self.learning_rate, "learning_rate"),
            batch_size=check_integer(self.batch_size, "batch_size"),
            seed=check_seed(self.seed),
        )
        if self.readout is not None:
            check_text(self.readout, "readout")

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> HeteroscedasticPredictor:
        """Train the second read-out.

        Where torch.distributed is initialised, every process does all of it.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs, or others.

        Returns:
            A predictor with its own copy of the operator.

        Raises:
            ReadoutError: If the last layer is not pointwise and affine.
            TrainingError: If the density becomes NaN or infinite.
            DataError: If the data are not finite pairs.
            GridError: If the outputs have a mask.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        pairs = training_data(data, check_module(operator, "operator"), is_shared=False)
        check_unmasked(pairs.grid, "densities of whole functions")
        readout = find_readout(operator, pairs.evenly_spread(VERIFIED).inputs, self.readout, query=pairs.query)
        if readout.response is not None:
            raise ReadoutError(
                expected="a read-out whose outputs count alike everywhere",
                got="a factor that varies in space, as of boundary values that are kept",
                remedy="fit the operator without keeping boundary values, or LastLayerLaplace",
            )
        gram, _, residuals = statistics(readout, pairs)
        scale = pairs.output_units()[1]
        unit = torch.maximum((residuals.squares / pairs.functions).sqrt(), _LEAST_UNIT * scale)
        sizes = (gram.diagonal() / pairs.functions).sqrt()
        sizes = torch.where(sizes > 0, sizes, 1.0)
        if not readout.has_bias:
            sizes = torch.cat([sizes, sizes.new_ones(1)])
        source = _Source(readout, pairs, unit=unit, keeps=not self.trains_operator)
        weights = self._trained(source, sizes)
        variance_weights, factor_weights = (part.detach() for part in weights)
        readout.operator.requires_grad_(False)
        if self.trains_operator:  # its last layer may have moved
            readout = find_readout(readout.operator, pairs.evenly_spread(VERIFIED).inputs, readout.name, query=pairs.query)
        predictor = HeteroscedasticPredictor(
            readout=readout,
            variance_weights=variance_weights,
            factor_weights=factor_weights,
            unit=unit,
            noise=torch.zeros_like(scale),
            report={"nats_per_value": self._density(source, weights), "rank": float(self.rank)},
            domain=pairs.inputs.grid,
            in_channels=pairs.inputs.channels,
        )
        return predictor._with_discrepancy(pairs.pairs)

    @torch.enable_grad()
    def _trained(self, source: _Source, sizes: Float64[Tensor, " f"]) -> tuple[Tensor, Tensor]:
        """Weights of variances and factors, for features that are divided by their sizes while they are trained."""
        channels, features = len(source.unit), len(sizes)
        generator = stream(self.seed, "heteroscedastic factors")
        start = torch.randn(channels, features, self.rank, generator=generator, dtype=torch.float64, device="cpu")
        factors = (0.1 * start / math.sqrt(features * max(1, self.rank))).to(sizes.device).requires_grad_()
        variances = sizes.new_zeros(channels, features)
        variances[:, -1] = math.log(math.expm1(1.0))  # softplus of it is 1
        variances.requires_grad_()
        groups = [{"params": [variances, factors], "lr": self.learning_rate}]
        if self.trains_operator:
            own = list(source.readout.operator.requires_grad_(True).parameters())
            groups.append({"params": own, "lr": _OPERATOR_RATE * self.learning_rate})
        optimizer = torch.optim.Adam(groups)
        steps = self.epochs * -(-len(source) // self.batch_size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for epoch in range(self.epochs):
            order = torch.randperm(len(source), generator=stream(self.seed, "heteroscedastic batches", epoch))
            for rows in order.split(self.batch_size):
                optimizer.zero_grad(set_to_none=True)
                density, typical_variance = source.densities(rows, variances / sizes, factors / sizes[:, None])
                loss = -(typical_variance.detach() ** self.beta * density).mean()
                if not bool(torch.isfinite(loss)):
                    raise TrainingError(
                        expected="a finite density",
                        got=f"{float(loss.detach())} in epoch {epoch}",
                        remedy="lower the learning rate",
                    )
                loss.backward()
                optimizer.step()
                schedule.step()
        return (variances / sizes).detach(), (factors / sizes[:, None]).detach()

    @torch.no_grad()
    def _density(self, source: _Source, weights: tuple[Tensor, Tensor]) -> float:
        """Mean log density of the training outputs, per value, in physical units."""
        total = 0.0
        for rows in torch.arange(len(source)).split(self.batch_size):
            total += float(source.densities(rows, *weights)[0].sum())
        return total / len(source) - float(source.unit.log().mean())


class _Source:
    """Features and residuals, kept where they are few and stay the same.

    Args:
        readout: Of the operator.
        pairs: Training pairs.
        unit: Of residuals, `(c,)`, in physical units.
        keeps: Whether features stay the same over all epochs.
    """

    def __init__(self, readout: Readout, pairs: TrainingData, *, unit: Float64[Tensor, " c"], keeps: bool) -> None:
        self.readout, self.pairs, self.unit = readout, pairs, unit
        self._kept: tuple[Tensor, Tensor] | None = None
        values = len(pairs.pairs) * pairs.grid.size * readout.weight.shape[1]
        if keeps and values <= _KEPT_ELEMENTS:
            step = max(1, _KEPT_ELEMENTS // (16 * pairs.grid.size * readout.weight.shape[1]))
            with torch.no_grad():
                parts = [self._evaluated(batch.inputs, batch.outputs) for batch in pairs.batches(step)]
            self._kept = torch.cat([rows for rows, _ in parts]), torch.cat([residual for _, residual in parts])

    def __len__(self) -> int:
        return len(self.pairs.pairs)

    def densities(
        self, rows: Tensor, variances: Float64[Tensor, "c f"], factors: Float64[Tensor, "c f r"]
    ) -> tuple[Float64[Tensor, " b"], Float64[Tensor, " b"]]:
        """Log densities of some functions, per value and in units of the residuals, and geometric means of variances."""
        features, residual = self._of(rows)
        features = features.to(torch.float64)
        variance = diagonal(features, variances).flatten(1)
        columns = torch.einsum("npf,cfr->ncpr", features, factors).flatten(1, 2)
        typical_variance = (variance + columns.square().sum(-1)).log().mean(1).exp()
        return log_density_per_value(residual.flatten(1), variance, columns), typical_variance

    def _of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self._kept is not None:
            index = rows.to(self._kept[0].device)
            return self._kept[0][index], self._kept[1][index]
        batch = self.pairs.pairs[rows]
        return self._evaluated(batch.inputs, batch.outputs)

    def _evaluated(self, inputs: Field, outputs: Field) -> tuple[Float[Tensor, "n p f"], Float64[Tensor, "n c p"]]:
        query: Grid | None = self.pairs.query
        values, features = self.readout.evaluate(inputs, query)
        residual = (outputs.values.to(torch.float64) - values.to(torch.float64)).flatten(2) / self.unit[:, None]
        return with_constant(features, self.readout), residual
