"""Ensemble Kalman filters and smoothers: observations in time, taken in by the members of a roll-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import (
    assign,
    check_callable,
    check_choice,
    check_finite,
    check_instance,
    check_integer,
    check_positive,
    check_real,
    check_sequence,
    check_variances,
    real_tensor,
)
from probneural.contexts import undisturbed
from probneural.distributions import EmpiricalField, FieldDistribution, Predictor
from probneural.distributions.base import check_values, noise_variance
from probneural.distributions.members import Forcing, members_of
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field, check_field
from probneural.forecasts.localisation import taper
from probneural.forecasts.updates import KINDS, ObservedNumbers, update
from probneural.functionals import Functional, check_functional
from probneural.grids import Grid
from probneural.randomness import check_seed, stream, stream_seed

Step = Callable[[Tensor], Tensor]
"""Leads from states `(n, c, *grid)` to the next ones: an operator, a solver, or any other function."""
