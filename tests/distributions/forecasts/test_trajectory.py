"""Trajectories of a random multiplier, whose powers have moments in closed form."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.special import roots_hermitenorm
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, PredictorTraits
from probneural.distributions.forecasts.members import StepInputs
from probneural.distributions.forecasts.trajectory import Trajectory
from probneural.distributions.latent import Seeds
from probneural.errors import ArgumentError, DataError, DataWarning, ForecastError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral, maximum, sensors
from probneural.grids import Grid
from tests.helpers import PerSetPredictor, normal

GRID = Grid.uniform(4)
MEAN, STD = 0.95, 0.06
"""Of the multiplier."""


class Multiplier(PerSetPredictor):
    """u -> l (u_1 + ... + u_h + rest), l ~ N(mean, std^2) the same at all points: h states and channels beside them."""

    def __init__(self, *, mean: float = MEAN, std: float = STD, in_channels: int = 1, grid: Grid = GRID) -> None:
        like = torch.empty(0, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=in_channels, noise=torch.tensor([0.25]), domain=grid, like=like))
        self.mean, self.std = mean, std
        self.evaluations = 0

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        assert query is None
        self.evaluations += 1
        total = inputs.values.sum(1, keepdim=True)
        root = DenseRoot(self.std * total.flatten(2)[..., None])
        return GaussianField(self.mean * total, root, latent="multiplier", grid=inputs.grid)

    def factor(self, seed: int) -> float:
        """The multiplier of a draw."""
        return self.mean + self.std * float(Seeds((seed,), "multiplier").latents(1))


def moment(power: int, *, mean: float = MEAN, std: float = STD) -> float:
    """E l^power, by Gauss-Hermite quadrature, exact for such powers."""
    points, weights = roots_hermitenorm(power // 2 + 1)
    return float((weights * (mean + std * points) ** power).sum() / math.sqrt(2 * math.pi))


def constant(value: float = 1.0, *, count: int = 1, channels: int = 1, grid: Grid = GRID) -> Field:
    return Field(torch.full((count, channels, *grid.shape), value, dtype=torch.float64), grid)


def rolled(*, steps: int = 4, members: int = 3, make: type[Multiplier] = Multiplier, **options: Any) -> Trajectory:
    start = options.pop("start", constant())
    predictor = make(in_channels=options.pop("in_channels", 1))
    inputs = {name: options.pop(name) for name in ("history", "parameters", "forcing") if name in options}
    options = {"inputs": StepInputs(**inputs), **options} if inputs else options
    return predictor.rollout(start, steps=steps, members=members, **{"seed": 0, **options})


class TestClosedForms:
    """Members are powers of l for kept draws, products of independent l for fresh ones."""

    COUNT = 400

    @pytest.mark.parametrize("draws", ["trajectory", "step"])
    @pytest.mark.parametrize("lead", [1, 10])
    def test_moments(self, draws: str, lead: int) -> None:
        states = rolled(steps=lead, members=self.COUNT, draws=draws).at(lead).samples[:, 0, 0, 0]

        def raw(power: int) -> float:
            return moment(lead * power) if draws == "trajectory" else moment(power) ** lead

        for power in (1, 2):
            error = math.sqrt((raw(2 * power) - raw(power) ** 2) / self.COUNT)
            assert abs(float((states**power).mean()) - raw(power)) <= 4 * error

    def test_shares_of_the_variance(self) -> None:
        """Of I l^n with I ~ N(2, 0.5^2): all parts are products of moments, and three members estimate them without bias."""
        root = DenseRoot(torch.full((1, 1, 4, 1), 0.5, dtype=torch.float64))
        initial = GaussianField(constant(2.0).values, root, latent="start", grid=GRID)
        spread = moment(4) - moment(2) ** 2
        expected = torch.tensor([0.25 * moment(2) ** 2, 4.0 * spread, 0.25 * spread, 0.3], dtype=torch.float64)
        found = []
        for seed in range(80):
            shares = rolled(steps=2, members=3, initial=initial, seed=seed).variance_shares(noise=0.3)
            parts = [shares.initial, shares.operator, shares.interaction, shares.noise]
            assert all(part.shape == (2, 1, 1) for part in parts)
            torch.testing.assert_close(shares.total, sum(parts))
            found.append(torch.stack([part[-1, 0, 0] for part in parts]))
        estimates = torch.stack(found)
        assert ((estimates.mean(0) - expected).abs() <= 4 * estimates.std(0) / math.sqrt(len(estimates)) + 1e-12).all()

    def test_shares_without_initial_uncertainty_are_the_operators(self) -> None:
        forecast = rolled(steps=2, members=5)
        shares = forecast.variance_shares(noise=torch.tensor([0.25]))
        expected = forecast.at(2).samples.var(0)[0, 0, 0]
        torch.testing.assert_close(shares.operator[1, 0, 0], expected)
        assert not shares.initial.any()
        assert not shares.interaction.any()
        assert (shares.noise == 0.25).all()
        assert "operator" in repr(shares)


class TestMembers:
    def test_fewer_steps_or_members_are_the_same_forecast(self) -> None:
        long, short = rolled(steps=6, members=5), rolled(steps=2, members=3)
        assert torch.equal(long.at(2).samples[:3], short.at(2).samples)
        assert not torch.equal(rolled(seed=1).at(2).samples, rolled().at(2).samples)

    def test_start_from_their_own_draws(self) -> None:
        root = DenseRoot(torch.full((1, 1, 4, 1), 0.5, dtype=torch.float64))
        initial = GaussianField(constant(2.0).values, root, latent="start", grid=GRID)
        forecast = rolled(members=400, initial=initial)
        assert len(forecast.at(0).samples.unique()) == 400
        assert abs(float(forecast.at(0).standard_deviation[0, 0, 0]) - 0.5) < 4 * 0.5 / math.sqrt(800)
        known = rolled(members=400)
        torch.testing.assert_close(forecast.at(3).samples, known.at(3).samples * forecast.at(0).samples)

    def test_history_is_stacked_earliest_first(self) -> None:
        """l = 1: Fibonacci numbers."""
        start = Field(torch.tensor([1.0, 2.0]).double().reshape(1, 2, 1).expand(1, 2, 4), GRID)
        forecast = Multiplier(std=0.0, mean=1.0, in_channels=2).rollout(start, steps=5, members=2, inputs=StepInputs(history=2))
        assert [forecast.at(lead).mean[0, 0, 0].item() for lead in range(6)] == [2.0, 3.0, 5.0, 8.0, 13.0, 21.0]

    def test_uncertain_histories(self) -> None:
        states = normal(3, 1, 2, 4, seed="histories")
        predictor = Multiplier(std=0.0, mean=1.0, in_channels=2)
        initial = EmpiricalField(states, grid=GRID)
        forecast = predictor.rollout(constant(channels=2), steps=2, members=3, inputs=StepInputs(history=2), initial=initial)
        assert torch.equal(forecast.at(0).samples, states[:, :, 1:])
        torch.testing.assert_close(forecast.at(2).samples, states[:, :, :1] + 2.0 * states[:, :, 1:])

    def test_other_errors_of_a_step_stay_what_they_are(self) -> None:
        class Refusing(Multiplier):
            def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
                if len(inputs) > 1:
                    raise DataError(expected="one", got="many", remedy="ask for one")
                return super()._field(inputs, query)

        with pytest.raises(DataError, match="expected one; got many"):
            rolled(make=Refusing).at(1)

    def test_channels_beside_the_state(self) -> None:
        """u_{l+1} = u_l + a + b + f_l, with a from the start, b a parameter, and f_l = 10 l."""
        start = torch.tensor([1.0, 0.5]).double().reshape(1, 2, 1).expand(2, 2, 4)
        predictor = Multiplier(std=0.0, mean=1.0, in_channels=4)
        asked: list[int] = []

        def forcing(lead: int) -> Tensor:
            asked.append(lead)
            return torch.full((1, 4), 10.0 * lead)

        parameters = constant(0.25, count=2)
        inputs = StepInputs(parameters=parameters, forcing=forcing)
        forecast = predictor.rollout(Field(start, GRID), steps=3, members=2, inputs=inputs)
        assert [forecast.at(lead).mean[1, 0, 0].item() for lead in range(4)] == [1.0, 1.75, 12.5, 33.25]
        assert asked == [0, 1, 2]
        whole = Field(torch.full((2, 1, 4), 3.0), GRID)
        inputs = StepInputs(parameters=parameters, forcing=lambda _: whole)
        same = predictor.rollout(Field(start, GRID), steps=1, members=2, inputs=inputs)
        assert same.at(1).mean[0, 0, 0].item() == 4.75


class TestMemory:
    @pytest.mark.parametrize("history", [1, 2])
    @pytest.mark.parametrize("leads", [0, 1, 2, 3, 7, 40])
    def test_any_budget_gives_the_same_states(self, history: int, leads: int) -> None:
        start = Field(normal(2, history, 4, seed="start"), GRID)
        options: dict[str, Any] = {"start": start, "steps": 23, "history": history, "in_channels": history, "draws": "step"}
        whole = rolled(**options)
        every = [whole.at(lead).samples for lead in range(24)]
        size = every[1].numel() * every[1].element_size()
        some = Trajectory(rolled(**options).ensemble, steps=23, budget=leads * size)
        for lead in (23, 5, 6, 7, 22, 1, 0, 12, 11, 10):
            assert torch.equal(some.at(lead).samples, every[lead])
        for (lead, first), (_, second) in zip(some.leads(), some.leads(), strict=True):
            assert torch.equal(first.samples, every[lead])
            assert torch.equal(second.samples, every[lead])
        assert some._kept.bytes <= (leads + 2 * history) * size
        assert whole._kept.bytes == (23 + history) * size

    @pytest.mark.filterwarnings("ignore:states of a roll-out reach")
    def test_many_steps_in_constant_memory(self) -> None:
        forecast = Trajectory(rolled(steps=300, members=32).ensemble, steps=300, budget=20 * 32 * 4 * 8)
        largest = 0
        for _lead, _u in forecast.leads():
            largest = max(largest, forecast._kept.bytes)
        assert largest <= 22 * 32 * 4 * 8
        predictor = forecast.ensemble.predictor
        assert isinstance(predictor, Multiplier)
        assert predictor.evaluations == 300
        forecast.at(287)
        assert predictor.evaluations <= 300 + 15  # from the nearest of 20 windows

    def test_what_is_kept_is_not_computed_again(self) -> None:
        forecast = rolled(steps=6)
        predictor = forecast.ensemble.predictor
        assert isinstance(predictor, Multiplier)
        forecast.at(4)
        assert predictor.evaluations == 4
        assert [lead for lead, _ in forecast.leads()] == [1, 2, 3, 4, 5, 6]
        assert predictor.evaluations == 6

    def test_no_gradients_are_kept_and_inference_mode_is_left(self) -> None:
        start = Field(constant().values.requires_grad_(), GRID)
        initial = EmpiricalField(normal(5, 1, 1, 4, seed="graph").requires_grad_(), grid=GRID)
        for options in ({}, {"initial": initial}):
            assert not rolled(start=start, **options).at(0).samples.requires_grad
        with torch.inference_mode():
            forecast = rolled(start=start)
            samples = forecast.at(2).samples
        assert not samples.requires_grad
        assert not samples.is_inference()


class TestFunctionals:
    TOTAL = integral(GRID)

    def test_integral_over_space_and_time(self) -> None:
        forecast = rolled()
        weights = [0.05, 0.1, 0.1, 0.1, 0.05]
        u = forecast.apply(self.TOTAL, leads=range(5), weights=weights)
        expected = sum(w * forecast.at(lead).samples.mean((1, 2, 3)) for lead, w in enumerate(weights))
        torch.testing.assert_close(u.samples[:, 0, 0, 0], expected)
        assert u.labels == self.TOTAL.labels
        two = forecast.apply(self.TOTAL, leads=[1, 2], weights=[[1.0, 0.0], [1.0, -1.0]])
        states = torch.stack([forecast.at(lead).samples.mean((1, 2, 3)) for lead in (1, 2)], -1)
        torch.testing.assert_close(two.samples[:, 0, 0], torch.stack([states[:, 0], states[:, 0] - states[:, 1]], -1))

    def test_one_functional_per_lead(self) -> None:
        start = Field(normal(1, 1, 4, seed="moving"), GRID)
        forecast = rolled(start=start)
        moving = [sensors(GRID, [[0.25 * (lead - 1)]]) for lead in range(1, 5)]
        u = forecast.apply(moving)
        expected = torch.stack([forecast.at(lead).samples[:, 0, 0, lead - 1] for lead in range(1, 5)], -1)
        torch.testing.assert_close(u.samples[:, 0, 0], expected)

    def test_nonlinear_ones(self) -> None:
        forecast = rolled(start=Field(normal(2, 1, 4, seed="maximum"), GRID))
        u = forecast.apply_by_draws(maximum(GRID), leads=[1, 4])
        expected = torch.stack([forecast.at(lead).samples.amax(-1) for lead in (1, 4)], -1)
        assert torch.equal(u.samples, expected)


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_states_of_1e30_give_one_warning_that_names_the_lead(draws: str) -> None:
    forecast = Multiplier(mean=1e8, std=0.0).rollout(constant(), steps=12, members=2, draws=draws, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sizes = [float(u.samples.abs().max()) for _, u in forecast.leads()]
    first = next(lead for lead, size in enumerate(sizes, start=1) if size > 1e30)
    assert [str(one.message).partition(":")[0] for one in caught] == [
        f"states of a roll-out reach {sizes[first - 1]:.1g} at lead {first}"
    ]
    assert caught[0].category is DataWarning


@pytest.mark.filterwarnings("ignore:states of a roll-out reach")
class TestBlowUp:
    def test_names_lead_and_members_and_keeps_earlier_leads(self) -> None:
        forecast = Multiplier(mean=0.0, std=1e60).rollout(constant(), steps=20, members=3, seed=0)
        reached: list[int] = []

        def run() -> None:
            for lead, u in forecast.leads():
                assert torch.isfinite(u.samples).all()
                reached.append(lead)

        with pytest.raises(
            ForecastError, match=r"finite states at lead \d+; got NaN or infinite ones of \d of 3 members"
        ) as caught:
            run()
        error = caught.value
        assert error.lead == reached[-1] + 1 >= 5
        factors = torch.tensor([Multiplier(mean=0.0, std=1e60).factor(seed) for seed in forecast.ensemble.seeds(1)]).double()
        blown_up = ~torch.isfinite(factors**error.lead)
        assert error.members == tuple(torch.nonzero(blown_up).flatten().tolist())
        assert torch.isfinite(forecast.at(reached[-1]).samples).all()
        with pytest.raises(ForecastError, match=f"lead {error.lead}"):
            forecast.at(20)
        again = copy.copy(error)  # by the same way as between processes
        assert (str(again), again.lead, again.members) == (str(error), error.lead, error.members)


@pytest.mark.bad_input
class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"history": 0}, ArgumentError, "as history"),
            ({"history": 2}, ShapeError, "1 input channels: 2 states of 1"),
            ({"start": constant(channels=2)}, ShapeError, "a start of 2"),
            ({"in_channels": 2}, ShapeError, "a start of 1 and 0 parameters"),
            ({"parameters": constant()}, ShapeError, "a start of 1 and 1 parameters"),
            ({"parameters": constant(count=2), "in_channels": 2}, ShapeError, "1 samples of parameters"),
            (
                {"parameters": constant(grid=Grid.uniform(5)), "in_channels": 2},
                GridError,
                "parameters on the grid of the start",
            ),
            ({"parameters": 1.0, "in_channels": 2}, DataError, "a Field as parameters"),
            ({"forcing": constant(), "in_channels": 2}, ArgumentError, "a callable as forcing"),
            ({"initial": constant()}, DataError, "a FieldDistribution as initial"),
            (
                {"initial": EmpiricalField(torch.zeros(3, 2, 1, 4), grid=GRID)},
                ShapeError,
                "1 samples of initial",
            ),
            ({"start": constant(math.nan)}, DataError, "start"),
            ({"start": constant(grid=Grid.uniform(4, lengths=2.0))}, GridError, "domain of the training inputs"),
        ],
    )
    def test_of_roll_outs(self, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            rolled(**dict(options))

    def test_of_the_noise(self) -> None:
        with pytest.raises(ArgumentError, match="noise"):
            rolled().variance_shares(noise=-1.0)
        with pytest.raises(ShapeError, match=r"noise of shape \(\) or \(1,\)"):
            rolled().variance_shares(noise=torch.ones(2))

    @pytest.mark.parametrize(
        ("forcing", "error", "match"),
        [
            (lambda lead: torch.zeros(2, 4), ShapeError, r"forcing of shape \(1, 4\)"),
            (lambda lead: lead, DataError, "a Tensor as forcing"),
            (lambda lead: torch.full((1, 4), math.inf), DataError, "forcing at lead 0"),
        ],
    )
    def test_of_forcings(self, forcing: Callable[[int], Any], error: type[Exception], match: str) -> None:
        forecast = rolled(in_channels=2, forcing=forcing)
        with pytest.raises(error, match=match):
            forecast.at(1)

    def test_of_leads_and_weights(self) -> None:
        forecast, total = rolled(), integral(GRID)
        for lead in (-1, 5, 1.0):
            with pytest.raises(ArgumentError, match="lead"):
                forecast.at(lead)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="a sequence as leads"):
            forecast.apply(total, leads=3)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="one lead or more"):
            forecast.apply(total, leads=[])
        with pytest.raises(ArgumentError, match=r"weights of shape \(4,\) or \(k, 4\)"):
            forecast.apply(total, weights=[1.0])
        with pytest.raises(ArgumentError, match="one functional per lead"):
            forecast.apply([total])
        for weights in (None, [1.0, 1.0, 1.0]):
            with pytest.raises(ArgumentError, match="one functional per lead"):
                forecast.apply([total] * 3, leads=[1, 2], weights=weights)
        with pytest.raises(ShapeError, match=r"numbers at each lead of shape \(3, 1, 1, 1\)"):
            forecast.apply([total, sensors(GRID, [[0.0], [0.5]])], leads=[1, 2])
        with pytest.raises(GridError):
            forecast.apply(integral(Grid.uniform(5)))
        with pytest.raises(ArgumentError, match="2 or more members"):
            rolled(members=1).variance_shares()


def test_prints() -> None:
    assert "3 members, draws='trajectory'" in repr(rolled())


def test_a_copy_of_one_that_was_used_gives_the_same_states() -> None:
    forecast = rolled()
    before = forecast.at(1)
    for copied in (copy.deepcopy(forecast), pickle.loads(pickle.dumps(forecast))):  # noqa: S301
        assert torch.equal(copied.at(4).samples, rolled().at(4).samples)
        assert torch.equal(copied.at(1).samples, before.samples)


def test_no_function_is_refused() -> None:
    with pytest.raises(DataError, match="a start of at least one sample"):
        rolled(start=constant(count=2)[:0])
