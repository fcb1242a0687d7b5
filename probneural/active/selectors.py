"""Selection rules: choose from a pool which input functions to simulate next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.checks import check_count, check_finite, check_instance, check_integer, check_least
from probneural.contexts import Undisturbed, undisturbed
from probneural.distributions import Predictor
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid
from probneural.randomness import check_seed, stream
from probneural.settings import NotNegative, Settings

_CHUNK_VALUES = 2**16
"""Output values predicted at once; heads hold up to some hundred numbers for each."""
_SAME = 1e-6
"""Functions closer than this fraction of their size are one: above rounding in single precision."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The functions of a pool that may be chosen.

    A simulator gives a function's copy the same answer, so copies are selected last.

    Args:
        fresh: Indices of functions that are not labelled, without copies of each other, ascending.
        shuffled: All of them in a seeded random order, copies last.
    """

    fresh: Int64[Tensor, " a"]
    shuffled: Int64[Tensor, " b"]

    def completed(self, chosen: list[int], count: int) -> Int64[Tensor, " count"]:
        """`count` indices: the chosen ones, then the others in the random order, copies last."""
        return torch.tensor(list(dict.fromkeys(chosen + self.shuffled.tolist()))[:count], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Request:
    """Checked arguments of [`Selector.select`][probneural.active.Selector.select].

    Attributes:
        predictor: The current predictor.
        pool: Input functions to choose from.
        count: Number of functions to select.
        seed: Seed of ties and draws.
        labelled: Input functions whose outputs are known, or None.
        query: Grid of the predictions, or None for the pool's grid.
        eligible: Candidates, and the order of ties.
    """

    predictor: Predictor
    pool: Field
    _: KW_ONLY
    count: int
    seed: int
    labelled: Field | None
    query: Grid | None
    eligible: Candidates


class Selector(Settings, Undisturbed, ABC):
    """A rule that chooses input functions from a pool; abstract.

    All rules share these habits. A function of the pool that equals a labelled one is never chosen, and copies, bit for bit,
    within the pool only when nothing else is left. Equal scores, zeros everywhere among them, are taken in an order that the
    seed decides. The same arguments give the same choice.

    A new rule is a subclass that defines `_choose` for a `Request` of checked arguments.
    """

    def select(
        self,
        predictor: Predictor,
        pool: Field,
        *,
        count: int,
        seed: int,
        labelled: Field | None = None,
        query: Grid | None = None,
    ) -> Int64[Tensor, " count"]:
        """Choose `count` functions.

        Args:
            predictor: Any fitted head, or a calibrated one. Rules on inputs alone do not call it.
            pool: Input functions to choose from, `(n, c, *grid)`.
            count: Number of functions to select.
            seed: Seed of ties and draws.
            labelled: Input functions whose outputs are known, on any grid. A function of the pool counts as labelled where its
                difference from one, on the coarser of the two grids, has a root mean square of at most 1e-6 of its own.
            query: Grid of the predictions; the pool's grid by default.

        Returns:
            Indices into the pool, distinct, in the order of choice, on the CPU.

        Raises:
            DataError: If pool or labelled are no fields or not finite, predicted variances are not, the pool is empty or fully
                labelled, or `predictor` is asked and is no predictor.
            ShapeError: If labelled functions do not have the pool's channels.
            GridError: If labelled functions live on a grid that cannot be compared with the pool's, or `query` is not a grid.
            ArgumentError: If `count` is not an integer, or not between 1 and the number of functions that are not labelled.
        """
        seed = check_seed(seed)
        if query is not None:
            check_grid(query, "query")
        eligible = candidates(pool, count, seed=seed, labelled=labelled)
        return self._choose(Request(predictor, pool, count=count, seed=seed, labelled=labelled, query=query, eligible=eligible))

    @abstractmethod
    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        """Choose for checked arguments; a subclass defines this.

        Returns:
            `request.count` distinct indices of functions that may be chosen, `(count,)`, in the order of choice.
        """


@dataclass(frozen=True)
class RandomSelection(Selector):
    """Every function is equally likely: the baseline.

    Examples:
        >>> import probneural as pn
        >>> pairs = pn.problems.Heat(dimension=1).sample(20, resolution=64, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> chosen = RandomSelection().select(predictor, pairs.inputs, count=20, seed=0)
        >>> sorted(chosen.tolist()) == list(range(20))
        True
    """

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        return request.eligible.shuffled[: request.count]


@dataclass(frozen=True)
class StochasticSelection(Selector):
    """Draw functions one after another, without replacement, with probability proportional to score^power.

    The score of a sample a is its integrated variance

        score(a) = sum over c of the average over the domain of Var u_c(a, x) / scale_c^2,

    with scale_c^2 the channel's variance over pool and domain, see
    `integrated_variances`, so that no channel's unit or zero point matters. The noise does not count.
    Power 0 is random choice, and a large power takes the largest scores. Samples without any variance come after all others.

    Args:
        power: Exponent of the score, dimensionless, not negative; 1/2 is proportional to standard deviations.

    Raises:
        ArgumentError: If the power is negative or not finite.

    Reference:
        Kirsch et al. (2021), Stochastic batch acquisition: a simple baseline for deep active learning (power acquisition),
        drawn by the Gumbel-top-k trick of Kool et al. (2019).
    """

    power: NotNegative = 1.0

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        eligible = request.eligible
        scores = integrated_variances(request.predictor, request.pool, query=request.query)[eligible.fresh]
        generator = stream(request.seed, "stochastic selection")
        gumbel = -torch.empty(len(request.pool), dtype=torch.float64).exponential_(generator=generator).log()[eligible.fresh]
        keys = self.power * scores.log() + gumbel if self.power > 0 else gumbel
        keys = torch.where((scores > 0) | (self.power == 0), keys, -torch.inf)
        ranked = eligible.fresh[keys.argsort(descending=True, stable=True)]
        positive = int(torch.isfinite(keys).sum())
        return eligible.completed(ranked[:positive].tolist(), request.count)


@undisturbed()
def integrated_variances(predictor: Predictor, pool: Field, *, query: Grid | None = None) -> Float64[Tensor, " n"]:
    """Variance of each predicted function, averaged over the domain and summed over channels in units of their variation.

    sum over c of (1/|D|) integral Var u_c(a, x) dx / scale_c², with scale_c² the channel's variance over the pool and the
    domain: the mean square deviation of the predicted means from their average, and the average posterior variance. Neither
    unit nor zero point of a channel matters, and no channel adds more than one to the pool's average. A channel that is
    constant and certain adds nothing.

    Args:
        predictor: Any predictor.
        pool: Input functions, at least one.
        query: Grid of the predictions; the pool's grid by default.

    Returns:
        `(n,)`, dimensionless, on the CPU.

    Raises:
        DataError: If `predictor` is not a predictor, or a mean or a variance not finite.
    """
    check_instance(predictor, Predictor, "predictor", remedy="fit a head, or calibrate one")
    grid = pool.grid if query is None else query
    mean_weights = grid.mean_weights
    step = max(1, _CHUNK_VALUES // (predictor.out_channels * grid.size))
    # Filled in place: lists of small tensors, allocated among large ones that are freed, fragment the heap by gigabytes.
    variances = torch.empty(len(pool), predictor.out_channels, dtype=torch.float64)
    averages, spreads = torch.empty_like(variances), torch.empty_like(variances)
    for start in range(0, len(pool), step):
        index = slice(start, start + step)
        field = predictor(Field(pool.values[index].detach(), pool.grid), query)
        mean, variance = (part.detach().flatten(2).to("cpu", torch.float64) for part in (field.mean, field.variance))
        check_finite(variance, "predicted variances")
        check_finite(mean, "predicted means")
        variances[index] = variance @ mean_weights
        averages[index] = mean @ mean_weights
        # Centred sample by sample: a large offset of a channel cancels before it is squared.
        spreads[index] = (mean - averages[index][..., None]).square() @ mean_weights
    # scale_c² = Var over samples of the average + mean over samples of (spread + posterior variance)
    squared_scales = averages.var(0, correction=0) + spreads.mean(0) + variances.mean(0)
    squared_scales = torch.where(squared_scales > 0, squared_scales, torch.ones_like(squared_scales))
    return (variances / squared_scales).sum(1)


def candidates(pool: Field, count: int, *, seed: int, labelled: Field | None) -> Candidates:
    """Return the candidates, and check the arguments that all selectors have.

    Args:
        pool: Input functions.
        count: Number of functions to select.
        seed: Seed of the random order.
        labelled: Input functions whose outputs are known. Those of the pool that equal one cannot be chosen: whose difference,
            on the coarser of the two grids, has a root mean square of at most 1e-6 of the function's.

    Raises:
        DataError: If pool or labelled are no fields, or not finite, or nothing is left to choose.
        ShapeError: If their channels differ.
        GridError: If labelled functions live on a grid that cannot be compared with the pool's.
        ArgumentError: If `count` is not an integer, or not between 1 and the number of functions that are not labelled.
    """
    check_field(pool, "pool")
    check_finite(pool.values, "pool functions")
    if labelled is not None:
        check_field(labelled, "labelled")
        check_finite(labelled.values, "labelled functions")
        remedy = "use one layout for both"
        check_count(labelled.channels, pool.channels, "channels of labelled functions, as in the pool", remedy=remedy)
    check_least(len(pool), 1, "functions in the pool", remedy="draw a pool")
    is_labelled = [False] * len(pool) if labelled is None or not len(labelled) else _is_labelled(pool, labelled).tolist()
    fresh: list[int] = []
    spare: list[int] = []
    digests = set()
    for index, digest in enumerate(_digests(pool)):
        if not is_labelled[index]:
            (spare if digest in digests else fresh).append(index)
            digests.add(digest)
    total = len(fresh) + len(spare)
    check_least(total, 1, "unlabelled functions in the pool", remedy="draw a larger pool")
    count = check_integer(count, "count", most=total, remedy="choose fewer unlabelled functions, or draw a larger pool")
    order = torch.randperm(len(pool), generator=stream(seed, "ties")).argsort().tolist()
    shuffled = sorted(fresh, key=order.__getitem__) + sorted(spare, key=order.__getitem__)
    return Candidates(torch.tensor(fresh, dtype=torch.int64), torch.tensor(shuffled, dtype=torch.int64))


def _is_labelled(pool: Field, labelled: Field) -> Bool[Tensor, " n"]:
    """Mask of the functions of the pool that equal a labelled one.

    They are compared on the coarser grid: a function that was labelled on it may have lost what the finer one resolves.
    Channels count in units of their root mean square, and each function's tolerance is relative to its own.
    """
    grid = pool.grid if pool.grid.size <= labelled.grid.size else labelled.grid
    ours, theirs = (
        Field(field.values.detach().to("cpu", torch.float64), field.grid).resample(grid).values.flatten(2)
        for field in (pool, labelled)
    )
    scales = ours.square().mean((0, 2)).sqrt()
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))[:, None]
    ours, theirs = (ours / scales).flatten(1), (theirs / scales).flatten(1)
    sizes, others = ours.square().sum(1), theirs.square().sum(1)
    # Products cancel to about 1e-15 of the squared sizes, well below the squared tolerance of 1e-12.
    return torch.stack(
        [(size + others - 2 * (theirs @ row) <= _SAME**2 * size).any() for row, size in zip(ours, sizes, strict=True)]
    )


def _digests(field: Field) -> list[bytes]:
    """A key per function, equal where functions are equal bit for bit."""
    values = field.values.detach().to("cpu").flatten(1) + 0.0  # -0.0 becomes 0.0
    return [row.numpy().tobytes() for row in values]
