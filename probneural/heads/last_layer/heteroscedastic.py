"""A second read-out for the covariance of the field, trained by its joint Gaussian density, and its predictor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import assign, check_flag, check_integer, check_module, check_positive, check_real, check_text
from probneural.contexts import undisturbed
from probneural.distributions import (
    DenseRoot,
    FeatureRoot,
    FieldDistribution,
    GaussianField,
    Latent,
    Predictor,
    PredictorTraits,
    Root,
)
from probneural.distributions.latent import digest
from probneural.distributions.predictors.base import with_discrepancy
from probneural.distributions.roots.base import square_root
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ReadoutError, ShapeError, TrainingError
from probneural.fields import Field
from probneural.grids import Grid, check_unmasked
from probneural.heads.last_layer.laplace import statistics
from probneural.heads.last_layer.readout import VERIFIED, Readout, find_readout
from probneural.heads.residuals import check_some
from probneural.heads.training_data import TrainingData, recorded, training_data
from probneural.linear_algebra.densities import LOG_TWO_PI
from probneural.pairs import Dataset
from probneural.randomness import check_seed, stream
from probneural.registry import stored

LEAST_VARIANCE = 1e-6
"""Least variance of the diagonal, in units of the mean square residual: the density of finite rank stays finite."""
_BATCH_ELEMENTS = 2**23
"""Feature values evaluated at once (32 MiB in float32)."""


@stored()
class HeteroscedasticPredictor(Predictor):
    """Gaussian fields whose covariance is a second read-out of the operator's last features, low rank plus diagonal.

    With features phi(x; a), the last of which is 1, and the unit s_c of a channel,

        u_c(x) = mean_c(x) + s_c sum over j of (F_cj . phi(x)) zeta_j + s_c (1e-6 + softplus(v_c . phi(x)))^1/2 e_c(x).

    Both parts are each function's own: data on one function say nothing about another. The diagonal e is independent from point
    to point, on every grid, so it averages out in integrals; `draw` and roll-outs leave it out, because it is another one on
    every grid.

    Attributes:
        readout: The predictor's own copy of the operator, split into features and last layer.
        variance_weights: v, `(c, f)`, dimensionless; float64.
        factor_weights: F, `(c, f, r)`, dimensionless; float64.
        unit: s, `(c,)`, in physical units; float64.
        report: `nats_per_value`, the mean log density of the training outputs, and `rank`.
    """

    def __init__(
        self,
        *,
        readout: Readout,
        variance_weights: Float64[Tensor, "c f"],
        factor_weights: Float64[Tensor, "c f r"],
        unit: Float64[Tensor, " c"],
        noise: Float64[Tensor, " c"],
        report: Mapping[str, float],
        domain: Grid,
        in_channels: int,
    ) -> None:
        like = next(readout.operator.parameters())
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=like))
        features = readout.weight.shape[1] + (0 if readout.has_bias else 1)
        wanted = (len(noise), features)
        if tuple(variance_weights.shape) != wanted or tuple(factor_weights.shape[:2]) != wanted or factor_weights.ndim != 3:
            raise ShapeError(
                expected=f"weights {wanted} and {(*wanted, 'r')}",
                got=f"{tuple(variance_weights.shape)} and {tuple(factor_weights.shape)}",
                remedy="fit the head",
            )
        self.readout = readout
        self.variance_weights = variance_weights
        self.factor_weights = factor_weights
        self.unit = unit
        self.report = dict(report)
        self._latent = Latent(id=f"heteroscedastic-{digest(variance_weights, factor_weights, unit)}", rank=0)

    @property
    def operator(self) -> nn.Module:
        """The predictor's own copy of the operator."""
        return self.readout.operator

    @property
    def rank(self) -> int:
        """Columns r of the low-rank part."""
        return self.factor_weights.shape[2]

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        mean, rows = self._evaluated(inputs, query)
        where = inputs.grid if query is None else query
        discrepancy: Root = DiagonalRoot(square_root(self._variance(rows)).to(mean))
        if self.rank:
            discrepancy = SideBySideRoot(self._low_rank(rows), discrepancy)
        nothing = DenseRoot(mean.new_zeros(*mean.shape[:2], where.size, 0))
        return GaussianField(mean, nothing, latent=self._latent, grid=where, discrepancy=discrepancy)

    def _evaluated(self, inputs: Field, query: Grid | None) -> tuple[Float[Tensor, "n c *grid"], Float[Tensor, "n p f"]]:
        """The operator's values and its features, with a constant."""
        check_some(inputs)
        where = inputs.grid if query is None else query
        step = max(1, _BATCH_ELEMENTS // (where.size * self.variance_weights.shape[1]))
        pieces = [slice(start, start + step) for start in range(0, len(inputs), step)]
        queries = [None if query is None else query.select(piece) for piece in pieces]
        parts = [self.readout.evaluate(inputs[piece], where) for piece, where in zip(pieces, queries, strict=True)]
        rows = torch.cat([with_constant(features, self.readout) for _, features in parts])
        return torch.cat([values for values, _ in parts]), rows

    def _low_rank(self, rows: Float[Tensor, "n p f"]) -> FeatureRoot:
        return FeatureRoot(rows, (self.unit[:, None, None] * self.factor_weights)[None])

    def _variance(self, rows: Float[Tensor, "n p f"]) -> Float[Tensor, "n c p"]:
        """The diagonal, in physical units squared."""
        return self.unit.square()[:, None] * diagonal(rows.to(torch.float64), self.variance_weights)


def diagonal(rows: Float64[Tensor, "n p f"], weights: Float64[Tensor, "c f"]) -> Float64[Tensor, "n c p"]:
    """The diagonal variances, in units of the mean square residual."""
    return LEAST_VARIANCE + nn.functional.softplus(torch.einsum("npf,cf->ncp", rows, weights))


def with_constant(rows: Float[Tensor, "n p f"], readout: Readout) -> Float[Tensor, "n p f2"]:
    """Features, the last of which is 1."""
    return rows if readout.has_bias else torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)


def log_density_per_value(
    residual: Float64[Tensor, "n v"], variance: Float64[Tensor, "n v"], factors: Float64[Tensor, "n v r"]
) -> Float64[Tensor, " n"]:
    """Log density of N(0, F F^T + D) at a residual, divided by the number of values v, in nats.

    By the matrix determinant lemma and Woodbury's identity, with C = I + F^T D^-1 F of r x r:

        log det = log det D + log det C,        e^T (F F^T + D)^-1 e = e^T D^-1 e - b^T C^-1 b,  b = F^T D^-1 e.

    Args:
        residual: e.
        variance: The diagonal of D, positive, in the residual's units squared.
        factors: F, in the residual's units; r may be 0.

    Examples:
        >>> ones = torch.ones(1, 1, dtype=torch.float64)
        >>> density = log_density_per_value(ones, 3.0 * ones, ones[..., None])  # N(0, 4) at 1
        >>> round(float(density + 0.5 * (0.25 + LOG_TWO_PI)) / torch.tensor(2.0).log().item(), 6)
        -1.0
    """
    weighted = factors / variance[..., None]
    capacitance = factors.mT @ weighted
    capacitance = capacitance + torch.eye(factors.shape[2], dtype=factors.dtype, device=factors.device)
    triangle, _ = torch.linalg.cholesky_ex(capacitance)  # what overflows gives NaN, which the caller refuses
    along = torch.linalg.solve_triangular(triangle, (weighted.mT @ residual[..., None]), upper=False)[..., 0]
    log_determinant = variance.log().sum(1) + 2.0 * triangle.diagonal(dim1=1, dim2=2).log().sum(1)
    squares = (residual.square() / variance).sum(1) - along.square().sum(1)
    return -0.5 * ((squares + log_determinant) / residual.shape[1] + LOG_TWO_PI)


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
        return with_discrepancy(predictor, pairs.pairs)

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
