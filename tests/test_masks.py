"""Masks: masked values change nothing, whatever they hold; and what is computed is that of the observed points alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probneural import functionals, metrics
from probneural.calibration import Novelty, PointwiseBand, ScaleMixture, SimultaneousBand, VarianceScale
from probneural.data import from_arrays
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.distributions.base import FieldDistribution
from probneural.errors import DataError, DataWarning, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import DeepEnsemble, KernelOperator, Laplace, LastLayerLaplace
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from probneural.training import losses
from probneural.training.trainer import fit
from tests.helpers import held_out, normal

DTYPE = torch.float64
GRID = Grid.uniform((6, 5), lengths=(1.0, 2.0), periodic=(True, False))
COUNT = 24
FILLS = (math.nan, 1e30, -7.0)


def _masks() -> tuple[Tensor, Tensor]:
    """Land, and gaps of each of some samples."""
    generator = torch.Generator().manual_seed(3)
    land = torch.rand(GRID.shape, generator=generator) > 0.3
    return land, torch.rand(COUNT, *GRID.shape, generator=generator) > 0.3


LAND, GAPS = _masks()
MASKS = (pytest.param(LAND, id="land"), pytest.param(GAPS, id="gaps"))


def _filled(values: Tensor, observed: Tensor, number: float) -> Tensor:
    return torch.where(observed if observed.ndim == values.ndim - 2 else observed[: len(values), None], values, number)


def _pairs(observed: Tensor, number: float, *, count: int = COUNT, seed: int = 0) -> FieldPairs:
    """Smooth inputs, and outputs with errors that no operator knows; both masked."""
    x, y = GRID.points.T
    phases = normal(count, 2, 1, seed=seed)
    smooth = (2 * math.pi * x + phases[:, :1]).cos() * (1 + 0.5 * phases[:, 1:] * y)
    inputs = smooth.unflatten(-1, GRID.shape)
    outputs = torch.cat([inputs.square(), inputs.sin()], 1) + 0.1 * normal(count, 2, *GRID.shape, seed=seed + 1)
    mask = observed if observed.ndim == 2 else observed[:count]
    grid = GRID.masked(mask)
    sides = (Field(_filled(part, mask, number), grid) for part in (inputs, outputs))
    return FieldPairs(next(sides), _poisoned(next(sides), 0.0 if math.isnan(number) else 1e5))


def _poisoned(field: Field, number: float) -> Field:
    """A field whose stored numbers at masked points are others, too: whoever uses them is found out."""
    held = field.grid.fill(field.values, number)
    poisoned = field[:]
    object.__setattr__(poisoned, "values", held)
    return poisoned


def _trained(model: nn.Module, data: FieldPairs) -> nn.Module:
    fit(model, data, epochs=1, seed=0)
    return model


def _operator(seed: int = 0) -> FNO:
    return FNO(1, 2, modes=(2, 2), width=4, depth=2, periodic=(True, False), seed=seed).double()


def _distribution(kind: str, count: int) -> FieldDistribution:
    shape = (count, 2, *GRID.shape)
    if kind == "gaussian":
        root = DenseRoot(0.3 * normal(count, 2 * GRID.size, 9, seed=6).unflatten(1, (2, GRID.size)))
        return GaussianField(normal(*shape, seed=5), root, latent="here", grid=GRID)
    return EmpiricalField(normal(12, *shape, seed=5), grid=GRID)


class TestField:
    @pytest.mark.parametrize("observed", MASKS)
    @pytest.mark.parametrize("number", FILLS)
    def test_masked_values_become_the_mean_of_the_others(self, observed: Tensor, number: float) -> None:
        values = normal(COUNT, 2, *GRID.shape)
        field = Field(_filled(values, observed, number), GRID.masked(observed))
        rows = observed.expand(COUNT, *GRID.shape)
        for sample, mask in enumerate(rows):
            for channel in range(2):
                held = field.values[sample, channel]
                assert torch.equal(held[mask], values[sample, channel][mask])
                torch.testing.assert_close(held[~mask], values[sample, channel][mask].mean().expand(int((~mask).sum())))

    def test_nan_elsewhere_is_refused_as_before(self) -> None:
        values = torch.full((2, 1, *GRID.shape), math.nan)
        field = Field(values, GRID.masked(LAND))
        with pytest.raises(DataError, match="NaN"):
            fit(FNO(1, 1, modes=(2, 2), width=4, depth=1), FieldPairs(field, field), epochs=1)

    def test_samples_take_their_masks_along(self) -> None:
        field = _pairs(GAPS, 0.0).outputs
        rows = torch.tensor([5, 2])
        assert field.grid.weights.shape == (COUNT, GRID.size)
        assert torch.equal(field[rows].grid.observed, GAPS[rows])
        assert torch.equal(field[-1].grid.observed, GAPS[-1:])
        assert torch.equal(Field.cat([field[:4], field[4:]]).values, field.values)
        assert Field.cat([field[:4], field[4:]]).grid == field.grid
        first, second = _pairs(GAPS, 0.0).split(10, seed=0)
        assert (len(first.outputs.grid.weights), len(second.outputs.grid.weights)) == (10, COUNT - 10)
        assert field.to(torch.float32).grid == field.grid

    def test_other_masks_are_other_grids_with_the_same_points(self) -> None:
        land, gaps = GRID.masked(LAND), GRID.masked(GAPS)
        assert land != GRID
        assert land != gaps
        assert land.has_points_of(gaps)
        assert land.unmasked == GRID
        assert GRID.masked(torch.ones(GRID.shape, dtype=torch.bool)) == GRID
        assert (land.shared, gaps.shared) == (land, GRID)
        assert "masked" in repr(gaps)

    @pytest.mark.parametrize(
        ("call", "kind"),
        [
            (lambda: GRID.masked(torch.ones(3, 3, dtype=torch.bool)), ShapeError),
            (lambda: GRID.masked(torch.ones(GRID.shape)), DataError),
            (lambda: GRID.masked(torch.zeros(GRID.shape, dtype=torch.bool)), DataError),
            (lambda: Field(torch.zeros(3, 1, *GRID.shape), GRID.masked(GAPS)), ShapeError),
            (lambda: GRID.masked(GAPS).mean_weights, GridError),
            (lambda: GRID.masked(LAND).resized((12, 10)), GridError),
            (lambda: _pairs(LAND, 0.0).inputs.resample(GRID.resized((12, 10))), GridError),
            (lambda: functionals.integral(GRID.masked(GAPS)), GridError),
            (lambda: functionals.sensors(GRID.masked(LAND), GRID.points[~LAND.flatten()][:1]), GridError),
            (lambda: functionals.derivative(GRID.masked(LAND)), GridError),
        ],
    )
    def test_what_takes_no_masks_says_so(self, call: Callable[[], object], kind: type[Exception]) -> None:
        with pytest.raises(kind):
            call()


def test_a_predictor_warns_of_points_without_training_values(tmp_path: Path) -> None:
    predictor = KernelOperator().fit(None, _pairs(LAND, math.nan))
    unmasked = Field(_pairs(LAND, 0.0).inputs.values, GRID)
    save(predictor, tmp_path / "model.pn")
    for one in (predictor, load(tmp_path / "model.pn")):
        with pytest.warns(DataWarning, match=f"no values at {int((~LAND).sum())} of 30 points"):
            one(unmasked)
        for inputs, query in ((_pairs(LAND, 0.0).inputs, None), (unmasked, GRID.masked(LAND))):
            assert one(inputs, query).grid.is_masked


class TestReading:
    """Arrays with NaN, or with a mask beside them."""

    @pytest.mark.parametrize("observed", MASKS)
    @pytest.mark.parametrize("kind", ["nan", "mask", "masked array"])
    def test_arrays_in_memory(self, observed: Tensor, kind: str) -> None:
        values = normal(COUNT, 2, *GRID.shape)
        missing = ~observed.expand(COUNT, *GRID.shape)
        hidden = _filled(values, observed, math.nan if kind == "nan" else -9.0).numpy()
        if kind == "masked array":
            hidden = np.ma.masked_array(hidden, missing[:, None].expand(COUNT, 2, *GRID.shape).numpy())
        mask = (~observed).numpy() if kind == "mask" else True
        pairs = FieldPairs.from_numpy(hidden, values.numpy(), grid=GRID, mask=(mask, None))
        assert pairs.inputs.grid == GRID.masked(observed)
        assert torch.equal(pairs.inputs.values, Field(values, GRID.masked(observed)).values)
        assert pairs.outputs.grid == GRID
        assert torch.equal(Field.from_numpy(hidden, grid=GRID, mask=mask).values, pairs.inputs.values)

    @pytest.mark.parametrize("observed", MASKS)
    def test_xarray_and_back(self, observed: Tensor) -> None:
        pairs = _pairs(observed, math.nan)
        dataset = pairs.to_xarray()
        assert bool(dataset["outputs"].isnull().any())
        back = FieldPairs.from_xarray(dataset, mask=True)
        assert back.outputs.grid == pairs.outputs.grid
        assert torch.equal(pairs.outputs.grid.fill(back.outputs.values), pairs.outputs.grid.fill(pairs.outputs.values))
        one = Field.from_xarray(pairs.inputs.to_xarray(), mask=True)
        assert one.grid == pairs.inputs.grid
        with pytest.raises(DataError, match="mask=True"):
            FieldPairs.from_xarray(dataset)

    @pytest.mark.parametrize("observed", MASKS)
    def test_arrays_read_by_rows(self, observed: Tensor) -> None:
        values = normal(COUNT, 2, *GRID.shape)
        hidden = _filled(values, observed, math.nan).numpy()
        mask = True if observed.ndim == 3 else (~observed).numpy()
        stored = from_arrays(hidden[:, :1], hidden, grid=GRID, mask=mask)
        expected = Field(values, GRID.masked(observed))
        rows = [4, 1, 7]
        assert torch.equal(stored[rows].outputs.values, expected[rows].values)
        assert torch.equal(stored[rows].outputs.grid.observed.expand(3, *GRID.shape), observed.expand(COUNT, *GRID.shape)[rows])
        assert stored.outputs.grid.unmasked == GRID
        in_memory = FieldPairs(Field(expected.values[:, :1], expected.grid), expected)
        heads = [LastLayerLaplace().fit(_operator(), data) for data in (stored, in_memory)]
        torch.testing.assert_close(heads[0].factor, heads[1].factor)
        with pytest.warns(DataWarning, match="trained the predictor"):
            scores = [metrics.score_pairs(heads[0], data, allow_training_data=True) for data in (stored, in_memory)]
        assert scores[0].nll == pytest.approx(scores[1].nll)
        histories = [fit(_operator(), data, epochs=1, seed=0) for data in (stored, in_memory)]
        assert histories[0].train == pytest.approx(histories[1].train)

    @pytest.mark.parametrize(
        ("call", "kind"),
        [
            (lambda: FieldPairs.from_numpy(NAN, NAN, grid=Grid.uniform(4)), DataError),
            (lambda: FieldPairs.from_numpy(NAN, NAN, grid=Grid.uniform(4), mask=np.zeros(4, bool)), DataError),
            (lambda: FieldPairs.from_numpy(NAN, NAN, grid=Grid.uniform(4), mask=np.zeros(4)), DataError),
            (lambda: FieldPairs.from_numpy(NAN, NAN, grid=Grid.uniform(4), mask=np.zeros(5, bool)), ShapeError),
            (lambda: FieldPairs.from_numpy(NAN * np.inf, NAN, grid=Grid.uniform(4), mask=True), DataError),
            (lambda: FieldPairs.from_numpy(NAN, NAN * np.nan, grid=Grid.uniform(4), mask=True), DataError),
            (lambda: from_arrays(NAN, NAN, periodic=True, mask=np.zeros((3, 4), bool)), ShapeError),
            (lambda: from_arrays(NAN, NAN, periodic=True, mask=np.zeros(4, bool) | (np.arange(4) < 1))[:], DataError),
            (lambda: from_arrays(NAN * np.nan, NAN, periodic=True, mask=True)[:], DataError),
            (lambda: from_arrays(NAN, NAN, periodic=True)[:], DataError),
        ],
    )
    def test_what_is_no_mask_is_refused(self, call: Callable[[], object], kind: type[Exception]) -> None:
        with pytest.raises(kind):
            call()


NAN = np.where(np.arange(12).reshape(3, 4) == 6, np.nan, 1.0 + np.arange(12).reshape(3, 4))


class TestLosses:
    @pytest.mark.parametrize("observed", MASKS)
    def test_masked_values_do_not_matter(self, observed: Tensor) -> None:
        loss = losses.RelativeL2()
        target = normal(COUNT, 2, *GRID.shape)
        predicted = normal(COUNT, 2, *GRID.shape, seed=1)
        grid = GRID.masked(observed)
        values = [
            loss(_filled(predicted, observed, number), _filled(target, observed, number), grid) for number in (0.0, *FILLS)
        ]
        assert all(torch.equal(value, values[0]) for value in values)
        dense = []
        for sample, mask in enumerate(observed.expand(COUNT, *GRID.shape)):
            inside = mask.flatten()
            points = Grid.scattered(GRID.points[inside], GRID.weights[inside])
            dense.append(loss(*(part[sample : sample + 1].flatten(2)[..., inside] for part in (predicted, target)), points))
        torch.testing.assert_close(values[0], torch.stack(dense).mean())


class TestFunctionals:
    def test_integrals_and_regions_are_those_of_the_observed_points(self) -> None:
        grid, inside = GRID.masked(LAND), LAND.flatten()
        points = Grid.scattered(GRID.points[inside], GRID.weights[inside])
        values = normal(3, 2, *GRID.shape)
        box = {"lower": [0.1, 0.3], "upper": [0.8, 1.6]}
        for make in (
            functionals.integral,
            functionals.average,
            lambda where: functionals.region(where, **box),
            lambda where: functionals.region(where, lambda at: at[:, 0] > 0.4, reduction="integral"),
        ):
            expected = make(points)(values.flatten(2)[..., inside])
            for number in (0.0, 1e30):
                torch.testing.assert_close(make(grid)(_filled(values, LAND, number)), expected)
        at = GRID.points[inside][2:3]
        torch.testing.assert_close(functionals.sensors(grid, at)(values), functionals.sensors(GRID, at)(values))
        expected = values.flatten(2)[..., inside].amax(-1, keepdim=True)
        assert torch.equal(functionals.maximum(grid)(values), expected)


class TestScores:
    @pytest.mark.parametrize("observed", MASKS)
    @pytest.mark.parametrize("kind", ["gaussian", "members"])
    def test_masked_values_do_not_matter(self, observed: Tensor, kind: str) -> None:
        u, truth = _distribution(kind, COUNT), normal(COUNT, 2, *GRID.shape, seed=9)
        grid = GRID.masked(observed)
        fields = [Field(_filled(truth, observed, number), grid) for number in (0.0, *FILLS)]
        scores = [metrics.score(u, field, noise=0.1, level=0.8) for field in [*fields, _poisoned(fields[0], 1e5)]]
        assert all(score == scores[0] for score in scores)

    def test_scores_are_those_of_the_observed_points(self) -> None:
        """With one mask, of a field of these points alone."""
        inside = LAND.flatten()
        points = Grid.scattered(GRID.points[inside], GRID.weights[inside])
        u, truth = _distribution("members", COUNT), normal(COUNT, 2, *GRID.shape, seed=9)
        assert isinstance(u, EmpiricalField)
        dense = metrics.score(
            EmpiricalField(u.samples.flatten(3)[..., inside], grid=points), Field(truth.flatten(2)[..., inside], points)
        )
        masked = metrics.score(u, Field(truth, GRID.masked(LAND)))
        for name, value in vars(dense).items():
            if isinstance(value, float):
                assert getattr(masked, name) == pytest.approx(value, rel=1e-9), name

    def test_each_sample_has_the_scores_of_its_points(self) -> None:
        u, truth = _distribution("gaussian", COUNT), normal(COUNT, 2, *GRID.shape, seed=9)
        together = metrics.compare(u, Field(truth, GRID.masked(GAPS)), noise=0.2)
        for name in ("nll", "joint_nll", "crps", "chi2", "coverage", "interval_width"):
            each = torch.cat(
                [
                    getattr(metrics, name)(metrics.compare(u[row], Field(truth[row : row + 1], GRID.masked(mask)), noise=0.2))
                    for row, mask in enumerate(GAPS)
                ]
            )
            torch.testing.assert_close(getattr(metrics, name)(together), each, msg=name)
        members = _distribution("members", COUNT)
        together = metrics.compare(members, Field(truth, GRID.masked(GAPS)))
        each = [
            metrics.energy_score(metrics.compare(members[row], Field(truth[row : row + 1], GRID.masked(mask))))
            for row, mask in enumerate(GAPS)
        ]
        torch.testing.assert_close(metrics.energy_score(together), torch.cat(each))

    def test_joint_density_of_observed_values(self) -> None:
        u, truth = _distribution("gaussian", 3), normal(3, 2, *GRID.shape, seed=9)
        found = metrics.joint_nll(metrics.compare(u, Field(truth, GRID.masked(GAPS[:3])), noise=0.2))
        for row in range(3):
            inside = GAPS[row].flatten().repeat(2)
            root = u.root.dense()[row].reshape(2 * GRID.size, -1)[inside]
            covariance = root @ root.T + 0.2 * torch.eye(len(root), dtype=DTYPE)
            normal_density = torch.distributions.MultivariateNormal(u.mean[row].flatten()[inside], covariance)
            expected = -normal_density.log_prob(truth[row].flatten()[inside]) / len(root)
            torch.testing.assert_close(found[row], expected)


class _Pointwise(nn.Module):
    """Values at a point follow from those at the point alone, so operators on all points and on some agree."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(1, 6), nn.Linear(6, 2)
        self.double()

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.first(values.movedim(1, -1)).tanh()).movedim(-1, 1)


class TestHeads:
    def test_a_last_layer_learns_from_the_observed_points(self) -> None:
        """With one mask, as from data of these points alone."""
        inside = LAND.flatten()
        points = Grid.scattered(GRID.points[inside], GRID.weights[inside])
        masked = _pairs(LAND, math.nan)
        dense = FieldPairs(
            *(Field(side.values.flatten(2)[..., inside].contiguous(), points) for side in (masked.inputs, masked.outputs))
        )
        head, operator = LastLayerLaplace(), _Pointwise()
        found, expected = head.fit(operator, masked), head.fit(operator, dense)
        torch.testing.assert_close(found.noise, expected.noise)
        torch.testing.assert_close(found.effective_observations, expected.effective_observations)
        torch.testing.assert_close(found.factor, expected.factor)

    @pytest.mark.parametrize("observed", MASKS)
    def test_end_to_end(self, observed: Tensor) -> None:
        """Training, a head, scales, bands and scores are the same whatever masked values hold."""
        results = []
        for number in FILLS[:2]:
            train, scaling, conformal = (_pairs(observed, number, seed=seed) for seed in (0, 10, 20))
            operator = _operator()
            history = fit(operator, train, epochs=2, seed=0)
            predictor = LastLayerLaplace().fit(operator, train)
            scaled = VarianceScale().fit(predictor, scaling)
            mixed = ScaleMixture().fit(scaled, scaling)
            bands = [method.fit(mixed, conformal) for method in (SimultaneousBand(0.8), PointwiseBand(0.8, delta=0.2))]
            test = _pairs(observed, number, seed=30)
            u = mixed(test.inputs)
            assert u.grid == test.inputs.grid.shared
            inside = [band(test.inputs).contains(test.outputs) for band in bands]
            results.append(
                {
                    "loss": history.train[-1],
                    "factor": predictor.factor,
                    "noise": predictor.noise,
                    "scale": scaled.scale,
                    "quantiles": [band.quantile for band in bands],
                    "coverage": [band.coverage(test) for band in bands],
                    "inside": torch.stack(inside),
                    "mean": u.mean,
                    "variance": u.variance,
                    "scores": metrics.score_pairs(mixed, test),
                }
            )
        for name, value in results[0].items():
            numbers = vars(value) if name == "scores" else {name: value}
            others = vars(results[1][name]) if name == "scores" else results[1]
            for key, number in numbers.items():
                if not isinstance(number, str | dict | None):
                    torch.testing.assert_close(torch.as_tensor(number), torch.as_tensor(others[key]), msg=key)

    @pytest.mark.parametrize(
        ("head", "takes_gaps"),
        [
            (
                DeepEnsemble(members=2, build=_operator, train=lambda model, data, seed: _trained(model, data)),
                True,
            ),
            (LastLayerLaplace(moves_mean=True), True),
            (Laplace(structure="diagonal"), False),
            (Laplace(structure="low_rank"), False),
            (KernelOperator(), False),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_other_heads(self, head: Laplace, takes_gaps: bool, tmp_path: Path) -> None:
        """Outputs at masked points do not matter; a head that takes no masks of single samples says so."""
        predictions = []
        for number in (math.nan, 1.0):
            data = _pairs(LAND, number)
            predictor = head.fit(_operator(), data)
            predictions.append(predictor(data.inputs))
        first, second = predictions
        assert first.grid == GRID.masked(LAND)
        torch.testing.assert_close(first.mean, second.mean)
        torch.testing.assert_close(first.variance, second.variance, rtol=1e-4, atol=1e-7)  # Krylov spaces amplify rounding
        save(predictor, tmp_path / "predictor")
        again = load(tmp_path / "predictor")(data.inputs)
        assert torch.equal(again.mean, second.mean)
        assert again.grid == second.grid
        gaps = _pairs(GAPS, 1.0)
        if takes_gaps:
            assert head.fit(_operator(), gaps)(gaps.inputs).grid == GRID
        else:
            with pytest.raises(GridError, match="sample to sample"):
                head.fit(_operator(), gaps)

    @pytest.mark.parametrize("observed", MASKS)
    def test_novelty_and_roll_outs_take_masks(self, observed: Tensor) -> None:
        data = _pairs(observed, math.nan)
        predictor = LastLayerLaplace().fit(_operator(), data)
        assert Novelty().fit(predictor, held_out(data))(data.inputs).isfinite().all()
        states = FieldPairs(data.inputs, Field(data.outputs.values[:, :1], data.outputs.grid))
        operator = FNO(1, 1, modes=(2, 2), width=4, depth=1, periodic=(True, False), seed=0).double()
        step = LastLayerLaplace().fit(operator, states)
        forecast = step.rollout(states.inputs[:2], steps=2, members=2, seed=0)
        assert forecast.at(2).mean.isfinite().all()

    def test_residuals_without_correlation_are_as_many_as_points(self) -> None:
        from tests.heads.cases import estimate_effective_observations

        noise = normal(400, 1, *GRID.shape)
        grid = GRID.masked(LAND)
        counted = float(estimate_effective_observations(noise, grid=grid))
        inside = LAND.flatten()
        points = Grid.scattered(GRID.points[inside], GRID.weights[inside])
        assert counted == pytest.approx(float(estimate_effective_observations(noise.flatten(2)[..., inside], grid=points)))

    def test_residuals_of_one_shape_are_one_observation_with_any_masks(self) -> None:
        from tests.heads.cases import estimate_effective_observations

        gaps = torch.rand(400, *GRID.shape, generator=torch.Generator().manual_seed(0)) > 0.3
        shape = normal(400, 1, 1, 1).expand(400, 1, *GRID.shape)
        assert float(estimate_effective_observations(shape, grid=GRID.masked(gaps))) == pytest.approx(1.0, abs=0.05)
