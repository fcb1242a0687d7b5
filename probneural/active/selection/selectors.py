"""Choose from a pool which input functions to simulate next: the interface, and rules that look at one function at a time.

Those that look at a whole batch at once are in `greedy_selectors` and `latent_selectors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from probneural.active.selection.candidates import Candidates, candidates
from probneural.active.selection.pool_features import integrated_variances
from probneural.checks import assign, check_real
from probneural.contexts import Undisturbed
from probneural.distributions import Predictor
from probneural.fields import Field
from probneural.grids import Grid, check_grid
from probneural.randomness import check_seed, stream


@dataclass(frozen=True, eq=False)
class Request:
    """What a rule is asked: the arguments of [`Selector.select`][probneural.active.Selector.select], checked.

    Attributes:
        predictor: What is known so far.
        pool: Input functions to choose from.
        count: How many.
        seed: Of ties, of draws, and of sketches.
        labelled: Input functions whose outputs are known, or None.
        query: Where predictions are evaluated, or None for the pool's grid.
        eligible: Which functions may be chosen, and the order of ties.
    """

    predictor: Predictor
    pool: Field
    _: KW_ONLY
    count: int
    seed: int
    labelled: Field | None
    query: Grid | None
    eligible: Candidates


class Selector(Undisturbed, ABC):
    """A rule that chooses input functions from a pool; abstract.

    All rules share these habits. A function of the pool that equals a labelled one is never chosen, and copies, bit for bit,
    within the pool only when nothing else is left. Equal scores, zeros everywhere among them, are taken in an order that the
    seed decides. The same arguments give the same choice.

    A rule of one's own is a subclass that defines `_choose`, for a `Request` whose arguments have
    been checked.
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
            predictor: What is known so far: any fitted head, or a calibrated one. Rules on inputs alone do not call it.
            pool: Input functions to choose from, `(n, c, *grid)`.
            count: How many.
            seed: Of ties, of draws, and of sketches.
            labelled: Input functions whose outputs are known, on any grid. A function of the pool counts as labelled where its
                difference from one, on the coarser of the two grids, has a root mean square of at most 1e-6 of its own.
            query: Where predictions are evaluated; the pool's grid by default.

        Returns:
            Indices into the pool, distinct, in the order of choice, on the CPU.

        Raises:
            DataError: If pool or labelled are no fields or not finite, predicted variances are not, the pool is empty or fully
                labelled, or `predictor` is asked and is no predictor.
            ShapeError: If labelled functions do not have the pool's channels.
            GridError: If labelled functions live on a grid that cannot be compared with the pool's, or `query` is no grid.
            ArgumentError: If `count` is no integer, or not between 1 and the number of functions that are not labelled.
        """
        seed = check_seed(seed)
        if query is not None:
            check_grid(query, "query")
        eligible = candidates(pool, count, seed=seed, labelled=labelled)
        return self._choose(Request(predictor, pool, count=count, seed=seed, labelled=labelled, query=query, eligible=eligible))

    @abstractmethod
    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        """Choose, for arguments that were checked: what a rule of one's own defines.

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
        return request.eligible.shuffled()[: request.count]


@dataclass(frozen=True)
class StochasticSelection(Selector):
    """Draw functions one after another, without replacement, with probability proportional to score^power.

    The score of a sample a is its integrated variance

        score(a) = sum over c of the average over the domain of Var u_c(a, x) / scale_c^2,

    with scale_c^2 the channel's variance over pool and domain, see
    `integrated_variances`, so that no channel's unit or zero point matters. The
    noise is left out: it is no reason to look. Power 0 is random choice, and a large power takes the largest scores. Samples
    without any variance come after all others.

    Args:
        power: Exponent of the score, dimensionless, not negative; 1/2 is proportional to standard deviations.

    Raises:
        ArgumentError: If the power is negative or not finite.

    Reference:
        Kirsch et al. (2021), Stochastic batch acquisition: a simple baseline for deep active learning (power acquisition),
        drawn by the Gumbel-top-k trick of Kool et al. (2019).
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        """Check the power."""
        assign(self, power=check_real(self.power, "power", least=0.0))

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
