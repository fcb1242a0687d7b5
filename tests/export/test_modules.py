"""Modules of plain tensors beside the predictors that they stand for; nothing is traced here."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import SimultaneousBand, VarianceScale, calibrate
from probneural.calibration.bands.conformal import Band
from probneural.calibration.calibrate import CalibratedPredictor
from probneural.calibration.variance.local_scale import VarianceCurve
from probneural.distributions import Predictor
from probneural.errors import UnsupportedError
from probneural.export.modules import BandMoments, moments
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.heads import cases
from tests.helpers import held_out, normal

FOREIGN = ("conv", "channels-last", "complex", "denormalised", "no-bias")
OPERATORS = ("fno-1d", "fno-outputs", "fno-ends", "fno-2d", "deeponet", "pod-deeponet", "regression", *FOREIGN)


def compare(predictor: Predictor, inputs: Field, query: Grid | None = None, *, tolerance: float = 1e-12) -> None:
    u = predictor(inputs, query)
    outputs = [u.mean, u.standard_deviation]
    if isinstance(predictor, CalibratedPredictor):
        band = predictor.band(inputs, query)
        outputs += [band.lower, band.upper]
    ones = torch.ones(predictor.out_channels, dtype=torch.float64)
    for units in (ones, 2.0 ** torch.arange(-3.0, predictor.out_channels - 3.0, dtype=torch.float64)):
        module = moments(predictor, inputs.grid, inputs.grid if query is None else query, units=units)
        for found, expected in zip(module(inputs.values), outputs, strict=True):
            assert found.shape == expected.shape
            scale = expected.abs().movedim(1, 0).flatten(1).amax(1)
            error = (found - expected).abs().movedim(1, 0).flatten(1).amax(1)
            assert bool((error <= tolerance * scale).all())
        assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("operator", OPERATORS)
def test_last_layers(operator: str) -> None:
    compare(cases.fitted("last-layer", operator), cases.operator_case(operator).inputs)


@pytest.mark.parametrize("operator", ["fno-2d", "deeponet", "conv"])
def test_queries(operator: str) -> None:
    inputs = cases.operator_case(operator).inputs
    compare(cases.fitted("last-layer", operator), inputs, inputs.grid.resized([size + 3 for size in inputs.grid.shape]))
    points = Grid.scattered(inputs.grid.points[:5] + 0.01, torch.ones(5))
    compare(cases.fitted("last-layer", operator), inputs, points)


def test_moved_means() -> None:
    case = cases.operator_case("fno-outputs")
    moved = LastLayerLaplace(moves_mean=True, noise=1e-4).fit(case.operator, case.data)
    assert moved.shift is not None
    compare(moved, case.inputs)
    compare(cases.fitted("last-layer", "fno-outputs").update(case.data[:2]), case.inputs)


@pytest.mark.parametrize("operator", ["fno-1d", "conv", "complex"])
def test_ensembles(operator: str) -> None:
    ensemble = cases.fitted("deep-ensemble", operator)
    compare(ensemble, cases.operator_case(operator).inputs)
    compare(cases.fitted("diagonal", operator).sampled(3, seed=1), cases.operator_case(operator).inputs)
    assert all(parameter.grad is None for parameter in ensemble.operator.parameters())


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize(("head", "operator"), [("last-layer", "fno-outputs"), ("deep-ensemble", "fno-1d")])
def test_scales(head: str, operator: str, noise: float, separate: bool) -> None:
    case = cases.operator_case(operator)
    scaled = VarianceScale(separate=separate, noise=noise).fit(cases.fitted(head, operator), held_out(case.data))
    compare(scaled, case.inputs)


def test_bands() -> None:
    case = cases.operator_case("fno-outputs")
    inputs, grid = case.inputs, case.inputs.grid
    pairs = cases.data_for(case.operator, cases.fields(grid, 40, 2, seed=11), seed=12)
    predictor = calibrate(cases.fitted("last-layer", "fno-outputs"), pairs)
    compare(predictor, inputs)
    compare(predictor, inputs, grid.resized([size + 2 for size in grid.shape]))
    band = Band(predictor.inner, quantile=2.0, method=SimultaneousBand(floor=1.0))  # the floor of 0.1 is reached nowhere
    units = torch.ones(2, dtype=torch.float64)
    module = BandMoments(band, moments(predictor.inner, grid, grid, units=units), grid, units=units)
    torch.testing.assert_close(module(inputs.values)[3], band(inputs).upper)


def test_local_scales_with_a_curve(tmp_path: Path) -> None:
    case = cases.operator_case("fno-1d")
    plain = cases.data_for(case.operator, cases.fields(cases.PERIODIC, 60, 1, seed=3), noise=0.0)
    sizes = torch.exp(torch.sin(2 * torch.pi * cases.PERIODIC.points[:, 0]))
    errors = sizes * normal(60, 1, cases.PERIODIC.size, seed=5)
    data = FieldPairs(plain.inputs, Field(plain.outputs.values + errors, cases.PERIODIC))
    scaled: Any = VarianceScale().fit(cases.fitted("last-layer", "fno-1d"), data)
    assert scaled.local is not None
    curve = VarianceCurve(knots=torch.tensor([[-3.0, 0.0, 2.0]]).double(), heights=torch.tensor([[0.5, -0.2, 0.3]]).double())
    parts = {name: getattr(scaled, name) for name in ("scale", "noise_scale", "decomposition", "noise", "calibrated_on")}
    bent = type(scaled)(scaled.inner, **parts, local=replace(scaled.local, curve=curve))
    assert float((bent(case.inputs).variance / scaled(case.inputs).variance - 1.0).abs().max()) > 0.05
    compare(bent, case.inputs)
    save(bent, tmp_path / "bent.safetensors")
    torch.testing.assert_close(load(tmp_path / "bent.safetensors")(case.inputs).variance, bent(case.inputs).variance)


def test_scales_without_a_discrepancy() -> None:
    case = cases.operator_case("fno-outputs")
    scaled: Any = VarianceScale().fit(cases.fitted("last-layer", "fno-outputs"), held_out(case.data))
    parts = replace(scaled.decomposition, process=None, root_fraction=torch.tensor([1.0, 0.5], dtype=torch.float64))
    bare = type(scaled)(
        scaled.inner,
        scaled.scale,
        noise_scale=scaled.noise_scale,
        decomposition=parts,
        noise=scaled.noise,
        calibrated_on=scaled.calibrated_on,
    )
    assert bare(case.inputs).discrepancy is None
    compare(bare, case.inputs)


def test_squares_stay_in_range() -> None:
    """Standard deviations of 1e-30, whose squares single precision does not hold."""
    case = cases.operator_case("fno-1d")
    inputs, outputs = case.data.inputs.to(torch.float32), case.data.outputs.values.float() * 1e-30
    operator = Tiny(copy.deepcopy(case.operator).float())
    data = FieldPairs(inputs, Field(outputs, case.data.outputs.grid))
    predictor = LastLayerLaplace(readout="operator.readout").fit(operator, data)
    deviation = predictor(inputs).standard_deviation
    assert 0.0 < float(deviation.amax()) < 1e-25
    module = moments(predictor, inputs.grid, inputs.grid, units=deviation.amax().double()[None])
    assert torch.allclose(module(inputs.values)[1], deviation, rtol=1e-4, atol=0.0)


class Tiny(nn.Module):
    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, values: Tensor) -> Tensor:
        return self.operator(values) * 1e-30


def test_all_layers_are_refused_by_name() -> None:
    predictor = cases.fitted("full", "fno-1d")
    grid = cases.PERIODIC
    for thing in (predictor, VarianceScale().fit(predictor, held_out(cases.operator_case("fno-1d").data))):
        with pytest.raises(UnsupportedError, match=r"derivatives in the operator's weights.*export predictor.sampled"):
            moments(thing, grid, grid, units=torch.ones(1, dtype=torch.float64))
