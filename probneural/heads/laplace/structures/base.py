"""Base class of structures: forms of the weights' covariance that can be fitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from probneural.checks import assign, check_integer
from probneural.heads.weight_posterior import WeightPosterior
from probneural.heads.weight_problem import WeightProblem


class Structure(ABC):
    """What `Laplace` assumes of the weights' covariance; abstract.

    Attributes:
        name: Shorthand for the structure with its defaults.
        is_sum: Whether it follows from sums over functions, of which several processes take a part each.
    """

    name: ClassVar[str]
    is_sum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check numbers that may be left out."""
        for name in ("probes", "rank"):
            if getattr(self, name, None) is not None:
                assign(self, **{name: check_integer(getattr(self, name), name)})

    @abstractmethod
    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Fit the covariance, and what hyper-parameters are not given.

        Args:
            problem: The operator's weights, its residuals and what is given.
            seed: Random seed of starts and projections.
            show_progress: Whether to show progress bars.

        Raises:
            UnsupportedError: If the structure does not suit the number of parameters or the prior.
            EvidenceError: If the evidence determines no noise or prior.
        """
