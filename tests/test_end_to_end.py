"""Claims about the whole chain, on a real trained operator in float64: problem, operator, head, calibration, BoTorch."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from torch import Tensor

import probneural as pn

BURGERS = pn.problems.Burgers(viscosity=0.1, random_field=pn.problems.GaussianRandomField(1, 12), design_dim=4)


@pytest.fixture(scope="module")
def predictor() -> pn.distributions.Predictor:
    train = BURGERS.sample(128, resolution=64, seed=0, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operator = pn.operators.FNO(1, 1, modes=(8,), width=12, depth=2, projection=16).double()
    pn.fit(operator, train, epochs=8, seed=0, show_progress=False)
    fitted = pn.heads.LastLayerLaplace().fit(operator, train)
    calibration = BURGERS.sample(64, resolution=64, seed=1, dtype=torch.float64)
    return pn.calibration.VarianceScale().fit(fitted, calibration)


@pytest.fixture(scope="module")
def held_out() -> pn.FieldPairs:
    return BURGERS.sample(32, resolution=128, seed=2, dtype=torch.float64)


def largest(values: Tensor) -> float:
    return float(values.abs().max())


class TestPhysics:
    def test_constrained_fields_obey_their_constraints_and_stay_accurate(
        self, predictor: pn.distributions.Predictor, held_out: pn.FieldPairs
    ) -> None:
        grid = held_out.outputs.grid
        ends = pn.functionals.sensors(grid, [[0.0], [0.5]])
        constraint = pn.functionals.stack([pn.functionals.integral(grid), ends])
        truth = constraint(held_out.outputs.values)
        u = predictor(held_out.inputs)
        v = u.constrain(constraint, truth)
        assert largest(constraint(u.mean) - truth) > 1e-6  # there was something to mend
        assert largest(constraint(v.mean) - truth) <= 1e-10
        assert largest(constraint(v.rsample((100,), seed=0)) - truth) <= 1e-10
        before = pn.metrics.score(u, held_out.outputs, noise=predictor.noise).relative_l2
        after = pn.metrics.score(v, held_out.outputs, noise=predictor.noise).relative_l2
        assert before is not None
        assert after is not None
        assert after <= 1.1 * before


class TestBoTorch:
    @pytest.fixture
    def model(self, predictor: pn.distributions.Predictor) -> pn.active.OperatorModel:
        grid = pn.Grid.uniform((64,))
        probe = pn.functionals.sensors(grid, [[0.3]])
        return pn.active.OperatorModel(predictor, encode=lambda design: BURGERS.encode(design, grid=grid), functional=probe)

    def test_the_acquisition_gradient_is_that_of_finite_differences(self, model: pn.active.OperatorModel) -> None:
        generator = torch.Generator().manual_seed(0)
        design = 0.2 + 0.6 * torch.rand(1, 2, 4, generator=generator, dtype=torch.double)
        acquisition = qLogExpectedImprovement(model, best_f=float(model.posterior(design).mean.max()))
        moving = design.clone().requires_grad_()
        gradient = torch.autograd.grad(acquisition(moving).sum(), moving)[0]
        step = 1e-6  # log EI bends sharply where the sd is small: the error falls as the square of the step
        for place in [(0, 0, 0), (0, 0, 3), (0, 1, 1)]:
            moved = torch.zeros_like(design)
            moved[place] = step
            with torch.no_grad():
                slope = float((acquisition(design + moved) - acquisition(design - moved)) / (2 * step))
            assert float(gradient[place]) == pytest.approx(slope, rel=1e-6, abs=1e-6)

    def test_equal_designs_in_six_slots_score_identically(self, model: pn.active.OperatorModel) -> None:
        design = torch.full((1, 1, 4), 0.4, dtype=torch.double)
        acquisition = qLogExpectedImprovement(model, best_f=0.0)
        scores = acquisition(design.expand(6, 1, 4))
        assert float(scores.max() - scores.min()) <= 1e-12
