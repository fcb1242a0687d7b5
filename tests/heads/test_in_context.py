"""Contexts of predictors: conditioning adds pairs, permutations are averaged as a mixture, other operators are refused."""

from __future__ import annotations

import pytest
import torch

from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import integral, sensors
from probneural.heads import InContext
from tests.heads.cases import PERIODIC, fields, fitted, operator_case, small_fno


def test_conditioning_on_whole_outputs_is_a_larger_context() -> None:
    case = operator_case("in-context-ordered")
    head, fine = InContext(2, seed=3), PERIODIC.resized(24)
    predictor = head.fit(case.operator, case.data[:4])
    outputs = fields(fine, 6, 1, seed=2).values[4:]  # the same functions on another grid
    probe = sensors(fine, fine.points)
    larger = predictor.condition(case.data.inputs[4:], probe, values=probe(outputs))
    expected = head.fit(case.operator, case.data)(case.inputs)
    u = larger(case.inputs)
    assert isinstance(u, GaussianField)
    torch.testing.assert_close(u.mean, expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(u.variance, expected.variance, rtol=1e-9, atol=1e-9)
    assert float((u.mean - predictor(case.inputs).mean).abs().max()) > 1e-3
    for functional, noise in ((integral(fine), 0.0), (sensors(fine, fine.points.flip(0)), 0.0), (probe, 0.1)):
        with pytest.raises(UnsupportedError, match="whole outputs"):
            predictor.condition(case.data.inputs[4:], functional, values=functional(outputs), noise=noise)
    with pytest.raises(ShapeError, match="values"):
        predictor.condition(case.data.inputs[4:], probe, values=probe(outputs)[:1])


def test_permutations_are_averaged_as_a_mixture() -> None:
    case = operator_case("in-context-ordered")
    orders = [torch.arange(6), *(order for order in _orders(3))]
    parts = [InContext().fit(case.operator, case.data[order])(case.inputs) for order in orders]
    means = torch.stack([part.mean for part in parts])
    u = InContext(4).fit(case.operator, case.data)(case.inputs)
    torch.testing.assert_close(u.mean, means.mean(0), rtol=1e-9, atol=1e-12)
    variance = torch.stack([part.variance for part in parts]).mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(u.variance, variance, rtol=1e-9, atol=1e-12)
    assert float(means.var(0).max()) > 1e-6
    # a tolerance ends the average after two, or after all
    for tolerance, count in ((1e3, 2), (1e-9, 4)):
        adaptive = InContext(4, tolerance=tolerance).fit(case.operator, case.data)(case.inputs)
        torch.testing.assert_close(adaptive.mean, means[:count].mean(0), rtol=1e-9, atol=1e-12)
        assert isinstance(adaptive, GaussianField)
        assert adaptive.latent.rank == u.latent.rank


def _orders(count: int) -> list[torch.Tensor]:
    """The permutations that seed 0 draws."""
    from probneural.randomness import stream

    generator = stream(0, "permutations of a context")
    return [torch.randperm(6, generator=generator) for _ in range(count)]


def test_other_operators_and_settings_are_refused() -> None:
    case = operator_case("in-context")
    with pytest.raises(ArgumentError, match="train pn.operators.InContextOperator"):
        InContext().fit(small_fno()(), case.data)
    with pytest.raises(ArgumentError, match="ordered=True"):
        InContext(2).fit(case.operator, case.data)
    u = fitted("in-context", "in-context")(Field(case.inputs.values, PERIODIC), PERIODIC.resized(30))
    assert u.mean.shape == (2, 1, 30)
