"""Data of any scale: what scales with them does so to rounding, or a typed error says that the dtype does not hold it.

Scales are powers of two, by which multiplying is exact: what is computed in units of the data is then the same to the last
bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField
from probneural.errors import ConvergenceWarning, ProbneuralError
from probneural.fields import Field, power_of_two
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.training.callbacks import Progress
from tests.helpers import held_out, normal

GRID = Grid.uniform((16,))
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}


def pairs(dtype: torch.dtype, *, inputs: float = 1.0, outputs: float = 1.0, seed: int = 0, count: int = 12) -> FieldPairs:
    """Smooth functions and their squares, multiplied by two scales after they were rounded."""
    angle = 2 * torch.pi * GRID.points[:, 0]
    waves = torch.stack([torch.ones_like(angle), angle.sin(), angle.cos()])
    values = (normal(count, 3, seed=seed) @ waves)[:, None]

    def scaled(plain: Tensor, by: float) -> Field:
        rounded = plain.to(torch.float32).to(torch.float64) * by
        return Field(rounded.to(dtype), GRID)

    return FieldPairs(scaled(values, inputs), scaled(values.square(), outputs))


def operator(kind: str, dtype: torch.dtype) -> pn.operators.Operator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "FNO":
            return pn.operators.FNO(1, 1, modes=(3,), width=4, depth=1, projection=4).to(dtype)
        return pn.operators.DeepONet(1, 1, sensors=GRID, basis=3, layers=pn.operators.HiddenLayers(width=8, depth=1)).to(dtype)


def trained(kind: str, data: FieldPairs, dtype: torch.dtype) -> pn.operators.Operator:
    model = operator(kind, dtype)
    pn.fit(model, data, epochs=2, show_progress=False)
    return model


def moments(field: FieldDistribution, noise: Tensor | None = None) -> dict[str, tuple[Tensor, int]]:
    """What scales with the outputs, and with which power."""
    found = {"mean": (field.mean, 1), "standard deviation": (field.standard_deviation, 1)}
    if noise is not None:
        found["noise"] = (noise, 2)
    return found


def fitted(kind: str, data: FieldPairs, dtype: torch.dtype, **_: Any) -> dict[str, tuple[Tensor, int]]:
    model = operator(kind, dtype)
    history = pn.fit(model, data, epochs=2, show_progress=False)
    with torch.no_grad():
        return {"loss": (torch.tensor(history.train), 0), "values": (model(data.inputs.values.to(dtype)), 1)}


def regression(data: FieldPairs, dtype: torch.dtype, **_: Any) -> dict[str, tuple[Tensor, int]]:
    return {"values": (pn.operators.LinearRegression.fitted(data)(data.inputs.values).detach(), 1)}


def headed(make: Callable[..., Any], data: FieldPairs, dtype: torch.dtype, **settings: Any) -> dict[str, tuple[Tensor, int]]:
    predictor = make(**settings).fit(trained("FNO", data, dtype), data)
    return moments(predictor(data.inputs), predictor.noise)


def calibrated(data: FieldPairs, dtype: torch.dtype, **_: Any) -> dict[str, tuple[Tensor, int]]:
    predictor = pn.heads.LastLayerLaplace().fit(trained("FNO", data, dtype), data)
    scaled = pn.calibration.VarianceScale().fit(predictor, held_out(data))
    assert isinstance(scaled, ScaledPredictor)
    return {"scale": (scaled.scale, 0), "noise": (scaled.noise, 2)}


def scored(data: FieldPairs, dtype: torch.dtype, **_: Any) -> dict[str, tuple[Tensor, int]]:
    predictor = pn.heads.LastLayerLaplace().fit(trained("FNO", data, dtype), data)
    scores = pn.metrics.score(predictor(data.inputs), held_out(data).outputs, noise=predictor.noise)
    powers = {"relative_l2": 0, "rmse": 1, "crps": 1, "coverage": 0, "chi2": 0, "interval_width": 1, "sharpness": 1}
    return {name: (torch.tensor(getattr(scores, name), dtype=torch.float64), power) for name, power in powers.items()}


def distribution(data: FieldPairs, dtype: torch.dtype, scale: float) -> GaussianField:
    root = normal(12, 1, 16, 5, seed=3).to(torch.float32).to(torch.float64) * (0.1 * scale)
    return GaussianField(data.outputs.values.to(dtype), DenseRoot(root.to(dtype)), latent="xi", grid=GRID)


def conditioned(data: FieldPairs, dtype: torch.dtype, *, outputs: float, noise: float = 0.25) -> dict[str, tuple[Tensor, int]]:
    u, probe = distribution(data, dtype, outputs), pn.functionals.sensors(GRID, [[0.25]])
    observed = probe(data.outputs.values) + 0.01 * outputs
    return moments(u.condition(probe, observed, noise=noise * outputs * outputs))


def constrained(data: FieldPairs, dtype: torch.dtype, *, outputs: float) -> dict[str, tuple[Tensor, int]]:
    u, total = distribution(data, dtype, outputs), pn.functionals.integral(GRID)
    return moments(u.constrain(total, total(data.outputs.values) + 0.01 * outputs))


def members(data: FieldPairs, dtype: torch.dtype, *, outputs: float) -> dict[str, tuple[Tensor, int]]:
    offsets = normal(4, 12, 1, 16, seed=3).to(torch.float32).to(torch.float64) * outputs
    return moments(EmpiricalField((data.outputs.values.to(torch.float64) + offsets).to(dtype), grid=GRID))


def halve(model: torch.nn.Module, data: FieldPairs, *, seed: int) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.data.mul_(0.5 + 0.1 * (seed % 3 + number % 2))


ensemble = partial(pn.heads.DeepEnsemble, 2, train=halve, keeps_operator=True, show_progress=False)
CALLS: dict[str, Callable[..., dict[str, tuple[Tensor, int]]]] = {
    "fit FNO": partial(fitted, "FNO"),
    "fit DeepONet": partial(fitted, "DeepONet"),
    "LinearRegression": regression,
    "LastLayerLaplace": partial(headed, pn.heads.LastLayerLaplace),
    "full Laplace": partial(headed, partial(pn.heads.Laplace, "full", parameters=["readout"])),
    "diagonal Laplace": partial(headed, partial(pn.heads.Laplace, "diagonal")),
    "KernelOperator": partial(headed, partial(pn.heads.KernelOperator, "linear", iterations=1)),
    "DeepEnsemble": partial(headed, ensemble),
    "VarianceScale": calibrated,
    "score": scored,
    "condition": conditioned,
    "constrain": constrained,
    "members": members,
}
PHYSICAL = ("condition", "constrain", "members")
"""Calls that make their own distribution in units of the outputs."""


def called(name: str, dtype: torch.dtype, *, inputs: float = 1.0, outputs: float = 1.0, **settings: Any) -> Any:
    """The results of a call for data of two scales."""
    data = pairs(dtype, inputs=inputs, outputs=outputs)
    if name in PHYSICAL:
        settings["outputs"] = outputs
    return CALLS[name](data, dtype, **settings)


def mismatch(found: Any, usual: Any, *, outputs: float, dtype: torch.dtype) -> str | None:
    """What of the results does not scale, or is no number, in words."""
    for name, (values, power) in found.items():
        expected = usual[name][0].double()
        rescaled = values.double()
        for _ in range(power):  # the square of a scale may overflow where the number does not
            rescaled = rescaled / outputs
        if not bool(torch.isfinite(values).all()):
            return f"{name} is not finite"
        error = float((rescaled - expected).abs().max() / expected.abs().max())
        if error > TOLERANCE[dtype]:
            return f"{name} is off by {error:.1e}"
    return None


SINGLE, DOUBLE = torch.float32, torch.float64
HELD = {SINGLE: (-100, -40, 40, 100), DOUBLE: (-400, 400)}
"""Powers of two that scales may have where no squares are formed: 1e-30 to 1e30, and 1e-120 to 1e120."""
SQUARED = {SINGLE: (-40, 40), DOUBLE: (-400, 400)}
"""The same where they are."""
FORMS_SQUARES = ("full Laplace", "diagonal Laplace", "VarianceScale", "score")


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_outputs_of_any_scale(name: str, dtype: torch.dtype) -> None:
    usual = called(name, dtype)
    for power in (SQUARED if name in FORMS_SQUARES else HELD)[dtype]:
        outputs = 2.0**power
        results = called(name, dtype, outputs=outputs)
        assert mismatch(results, usual, outputs=outputs, dtype=dtype) is None, f"outputs of scale {outputs:.0e}"


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in PHYSICAL])
def test_inputs_of_any_scale(name: str, dtype: torch.dtype) -> None:
    usual = called(name, dtype)
    for power in HELD[dtype]:
        results = called(name, dtype, inputs=2.0**power)
        assert mismatch(results, usual, outputs=1.0, dtype=dtype) is None, f"inputs of scale {2.0**power:.0e}"


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_scales_beyond_the_dtype_are_told(name: str, dtype: torch.dtype) -> None:
    """Where the dtype ends, a call is right or a typed error, and never silent."""
    usual = called(name, dtype)
    for power in (-125, 122) if dtype == SINGLE else (-1021, -700, 700, 1018):  # 16 times the latter are still numbers
        outputs = 2.0**power
        try:
            results = called(name, dtype, outputs=outputs)
        except ProbneuralError:
            continue
        assert mismatch(results, usual, outputs=outputs, dtype=dtype) is None, f"outputs of scale {outputs:.0e}"


@pytest.mark.parametrize("scale", [1e-300, 1e-60, 1e60, 1e300])
def test_double_precision_data_beyond_a_single_precision_operator(scale: float) -> None:
    usual = pairs(SINGLE)
    predictor = pn.heads.LastLayerLaplace().fit(trained("FNO", usual, SINGLE), usual)
    with pytest.raises(ProbneuralError, match="float32"):
        predictor(pairs(DOUBLE, inputs=scale).inputs)
    with pytest.raises(ProbneuralError, match="float32"):
        pairs(DOUBLE, outputs=scale).to(SINGLE)


@pytest.mark.parametrize("name", ["LastLayerLaplace", "full Laplace", "diagonal Laplace"])
def test_noise_beyond_the_dtype_is_told(name: str) -> None:
    for noise in (1e-300, 1e300):
        with pytest.raises(ProbneuralError, match="float32"):
            called(name, SINGLE, noise=noise)
    results = called(name, DOUBLE, noise=1e-300)["standard deviation"][0]
    other = called(name, DOUBLE, noise=1e-298)["standard deviation"][0]
    assert torch.allclose(other, 10.0 * results, rtol=1e-3, atol=0.0)  # the data outweigh the prior by far
    assert bool((results > 0).all())


def test_observations_of_next_to_no_noise_are_exact_ones() -> None:
    """Their squares in units of the noise overflow, and need not be formed."""
    u = distribution(pairs(DOUBLE), DOUBLE, 1.0)[:1]
    probe = pn.functionals.sensors(GRID, [[0.25], [0.6]])
    observed = probe(u.mean) + 0.1
    exact, nearly = u.condition(probe, observed), u.condition(probe, observed, noise=1e-300)
    assert torch.allclose(exact.mean, nearly.mean, rtol=1e-12)
    assert torch.allclose(exact.variance, nearly.variance, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=["float32", "float64"])
def test_variances_that_the_dtype_does_not_hold(dtype: torch.dtype) -> None:
    power = 100 if dtype == SINGLE else 900
    for outputs in (2.0**-power, 2.0**power):
        data = pairs(dtype, outputs=outputs)
        for u, usual in (
            (distribution(data, dtype, outputs), distribution(pairs(dtype), dtype, 1.0)),
            (EmpiricalField(data.outputs.values[None] * torch.tensor([1.0, 2.0]).reshape(-1, 1, 1, 1), grid=GRID), None),
        ):
            with pytest.raises(ProbneuralError, match=f"variances that {dtype} holds.*read standard_deviation"):
                _ = u.variance
            if usual is not None:
                assert torch.equal(u.standard_deviation, usual.variance.sqrt() * outputs)


def test_channels_have_scales_of_their_own() -> None:
    usual = pairs(SINGLE)
    errors = []
    for scale in (1.0, 2.0**-100):
        values = torch.cat([usual.outputs.values, scale * usual.outputs.values.square()], dim=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = pn.operators.FNO(1, 2, modes=(3,), width=4, depth=1, projection=4)
        pn.fit(model, FieldPairs(usual.inputs, Field(values, GRID)), epochs=5, show_progress=False)
        with torch.no_grad():
            errors.append(pn.training.relative_l2(model(usual.inputs.values), values, grid=GRID))
    assert torch.equal(errors[0], errors[1])


def test_powers_of_two() -> None:
    sizes = torch.tensor([0.0, 1.0, 1.9, 2.0, 5e-324, 1.7e308, torch.inf, torch.nan], dtype=torch.float64)
    assert power_of_two(sizes).tolist() == [1.0, 1.0, 1.0, 2.0, 5e-324, 2.0**1023, 1.0, 1.0]
    single = torch.tensor([1e-45, 3e38, 1e-20])
    assert bool(((single / power_of_two(single) >= 1.0) & (single / power_of_two(single) < 2.0)).all())


class TestTrainingThatLeadsAway:
    def test_warns(self) -> None:
        with pytest.warns(ConvergenceWarning, match="ended at a loss of .*lower learning_rate"):
            pn.fit(operator("FNO", SINGLE), pairs(SINGLE), epochs=3, learning_rate=30.0, show_progress=False)

    def test_warns_of_a_loss_of_ones_own(self) -> None:
        def squares(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
            return (predicted - target).square().mean()

        with pytest.warns(ConvergenceWarning, match="having begun at"):
            pn.fit(operator("FNO", SINGLE), pairs(SINGLE), epochs=8, learning_rate=30.0, loss=squares, show_progress=False)

    @pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
    @pytest.mark.parametrize("kind", ["FNO", "DeepONet"])
    def test_is_silent_about_others(self, kind: str, again: bool) -> None:
        """A good fit that is trained on begins near zero, and a learning rate moves it a little."""
        model, data = operator(kind, SINGLE), pairs(SINGLE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for epochs in (40, 1, 3) if again else (1,):
                history = pn.fit(model, data, epochs=epochs, learning_rate=0.01, show_progress=False)
        assert history.epochs == epochs

    def test_a_resumed_training_remembers_where_it_began(self, tmp_path: Any) -> None:
        class KilledError(Exception):
            pass

        def kill(progress: Progress) -> None:
            if progress.epoch == 2:
                raise KilledError

        path = tmp_path / "run"
        settings: dict[str, Any] = {"epochs": 3, "learning_rate": 30.0, "show_progress": False}
        with pytest.raises(KilledError):
            pn.fit(
                operator("FNO", SINGLE),
                pairs(SINGLE),
                run=pn.training.RunOptions(checkpoint=path, callbacks=[pn.training.EachEpoch(kill)]),
                **settings,
            )
        with pytest.warns(ConvergenceWarning, match="having begun at"):
            pn.fit(operator("FNO", SINGLE), pairs(SINGLE), run=pn.training.RunOptions(checkpoint=path), **settings)
