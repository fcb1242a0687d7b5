"""What each structure promises beyond the contract: agreement with the dense posterior, bounds, evidence, draws."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from probneural.distributions import EmpiricalField
from probneural.errors import ArgumentError, EvidenceError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import Kronecker, Laplace, LowRank
from probneural.heads.evidence import LayeredEvidence
from probneural.heads.laplace.structures import Full
from probneural.pairs import FieldPairs
from tests.heads.cases import OperatorCase, fields, operator_case, structured
from tests.heads.test_head_contract import close
from tests.helpers import cross_covariance, normal, one_of_each

CASES = ["fno-1d", "fno-outputs", "fno-2d", "complex", "channels-last"]
EVERY = pytest.mark.parametrize("operator", one_of_each(CASES, lambda name: name == "complex"))
STRUCTURES = ["full", "low_rank", "kronecker", "diagonal"]


def given(case: OperatorCase) -> dict[str, object]:
    variance = case.data.outputs.values.var((0, *range(2, case.data.outputs.values.ndim)))
    return {"noise": variance / 50, "prior_precision": 2.0, "effective_observations": 4.0}


def make(structure: str, case: OperatorCase, *, rank: int | None = None, probes: int | None = None, **settings: object):
    return Laplace(structured(structure, rank=rank, probes=probes), **given(case), **settings).fit(case.operator, case.data)


@EVERY
def test_low_rank_of_all_directions_equals_the_dense_posterior(operator: str) -> None:
    case = operator_case(operator)
    dense, predictor = make("full", case), make("low_rank", case, rank=300)
    exact, field = dense(case.inputs), predictor(case.inputs)
    close(cross_covariance(field, field), cross_covariance(exact, exact), 1e-10)
    assert predictor.log_evidence == pytest.approx(dense.log_evidence, rel=1e-10)
    close(predictor.prior_precision, dense.prior_precision)
    close(predictor.noise, dense.noise)


@EVERY
def test_bounds_of_a_truncation_hold_and_close(operator: str) -> None:
    case = operator_case(operator)
    exact = make("full", case)(case.inputs).variance
    gaps = []
    for rank in (3, 8, 20):
        predictor = make("low_rank", case, rank=rank)
        lower, upper = predictor.variance_bounds(case.inputs)
        slack = 1e-9 * exact
        assert bool((lower <= exact + slack).all())
        assert bool((exact <= upper + slack).all())
        torch.testing.assert_close(upper, predictor(case.inputs).variance)
        gaps.append(float((upper - lower).sum()))
        assert predictor.report["rank"] == rank
        assert 0 < predictor.report["captured_energy"] <= 1
    assert gaps[2] < gaps[1] < gaps[0]


@pytest.mark.parametrize("operator", ["fno-1d", "complex"])
def test_growth_stops_where_the_next_direction_carries_less_than_the_prior(operator: str) -> None:
    case = operator_case(operator)
    predictor = make("low_rank", case)
    eigenvalues = torch.linalg.eigvalsh(torch.linalg.inv(make("full", case).weight_covariance) / 2.0).flip(0) - 1.0
    kept = int(predictor.report["rank"])
    assert kept >= int((eigenvalues > 1.0).sum())
    assert predictor.report["next_ratio"] < 1.0
    assert kept < len(eigenvalues)
    # an estimate of the next eigenvalue from above, by its residual
    assert float(eigenvalues[kept]) * (1 - 1e-6) <= predictor.report["next_ratio"] <= float(eigenvalues[kept]) + 1e-6


@pytest.mark.slow
def test_growth_takes_as_many_rounds_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from probneural.heads.laplace.structures import low_rank

    monkeypatch.setattr(low_rank, "LARGEST_ROWS", 0)
    monkeypatch.setattr(low_rank, "_FIRST_RANK", 2)
    predictor = make("low_rank", operator_case("fno-1d"))
    assert predictor.report["rank"] > 4
    assert predictor.report["next_ratio"] < 1.0


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("operator", ["fno-1d", "complex"])
def test_roots_and_their_transposes_are_adjoint(structure: str, operator: str) -> None:
    """<R xi, w> = <xi, R^T w>: draws use the one, variances the other."""
    weights = make(structure, operator_case(operator), rank=20).weights
    latents, vectors = normal(3, weights.rank, seed=1), normal(2, weights.size, seed=2)
    left = weights.product(latents) @ vectors.mT
    close(left, latents @ weights.transposed_product(vectors).mT, 1e-7)
    assert float(left.abs().min()) > 0


def test_a_truncated_evidence_lies_within_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probneural.heads.laplace.structures.low_rank.LARGEST_ROWS", 0)
    case = operator_case("fno-1d")
    exact = make("full", case).log_evidence
    predictor = make("low_rank", case, rank=5)
    assert predictor.log_evidence_error > 0
    assert abs(predictor.log_evidence - exact) <= 5 * predictor.log_evidence_error


@pytest.mark.parametrize("operator", ["fno-1d", "fno-2d", "complex"])
def test_a_truncation_learns_what_the_whole_curvature_teaches(operator: str) -> None:
    """The directions left out are counted: noise and prior are those of all eigenvalues."""
    case = operator_case(operator)
    full, truncated = (
        Laplace(structure, show_progress=False).fit(case.operator, case.data) for structure in (Full(), LowRank(rank=5))
    )
    assert truncated.noise.item() == pytest.approx(full.noise.item(), rel=0.01)
    close(truncated.prior_precision, full.prior_precision, 0.01)


@pytest.mark.parametrize("operator", ["fno-1d", "fno-outputs", "complex"])
def test_few_samples_are_projected(operator: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """All outputs give the dense posterior up to omitted directions, the leading ones an upper bound and a warning."""
    from probneural.heads.laplace.structures import low_rank

    monkeypatch.setattr(low_rank, "top_eigenpairs", None)
    case = operator_case(operator)
    exact = make("full", case)(case.inputs).variance
    predictor = make("low_rank", case)
    close(predictor(case.inputs).variance, exact, 0.01)
    assert predictor.report["next_ratio"] <= 0.01
    totals = {line.rsplit("/", 1)[-1].split()[0] for line in capfd.readouterr().err.splitlines() if "product" in line}
    assert len(totals) <= 1  # the bar's total does not grow
    monkeypatch.setattr(low_rank, "LARGEST_ROWS", 18)
    monkeypatch.setattr(low_rank, "_PROJECTIONS", 2)
    with pytest.warns(UserWarning, match="low rank stopped at"):
        truncated = make("low_rank", case)
    lower, upper = truncated.variance_bounds(case.inputs)
    assert bool((lower <= exact * (1 + 1e-6)).all())
    assert bool((exact <= upper * (1 + 1e-6)).all())
    assert float((upper / exact).sqrt().mean()) < 2.5
    assert abs(truncated.log_evidence - predictor.log_evidence) <= truncated.log_evidence_error


def test_growth_that_stops_too_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from probneural.heads.laplace.structures import low_rank

    monkeypatch.setattr(low_rank, "LARGEST_ROWS", 0)
    monkeypatch.setattr(low_rank, "LARGEST_RANK", 4)
    with pytest.warns(UserWarning, match="low rank stopped at 4 directions"):
        make("low_rank", operator_case("fno-1d"))


@pytest.mark.parametrize("structure", ["full", "low_rank", "kronecker", "diagonal"])
@pytest.mark.parametrize("operator", ["fno-1d", "channels-last"])
def test_one_prior_per_layer_raises_the_evidence(structure: str, operator: str) -> None:
    case = operator_case(operator)
    form = structured(structure, rank=300)
    shared = Laplace(form).fit(case.operator, case.data)
    layered = Laplace(form, prior_precision="per_layer").fit(case.operator, case.data)
    assert layered.log_evidence > shared.log_evidence
    assert len(layered.prior_precision.unique()) > 1
    if structure == "low_rank":
        dense = Laplace("full", prior_precision="per_layer").fit(case.operator, case.data)
        assert layered.log_evidence == pytest.approx(dense.log_evidence, rel=1e-6)
        close(layered(case.inputs).variance, dense(case.inputs).variance, 1e-3)


def test_evidence_gradients_equal_finite_differences() -> None:
    """At every layer and for the noise, through the determinant of a dense matrix and in closed form for a diagonal one."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(9, 9, generator=generator, dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    curvature = root @ root.mT

    def dense(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        return torch.linalg.slogdet(curvature * torch.exp(-log_noise) + log_priors.exp()[groups].diag())[1]

    evidence = LayeredEvidence(
        log_determinant=dense,
        names=["a", "b", "c"],
        sizes=torch.tensor([3.0, 2.0, 4.0], dtype=torch.float64),
        squared_norms=torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64),
        observations=20.0,
        residual_sum_of_squares=3.0,
    )
    point = (torch.tensor(-0.5, dtype=torch.float64), torch.tensor([0.1, -0.3, 0.7], dtype=torch.float64))
    assert torch.autograd.gradcheck(evidence.value, tuple(part.requires_grad_() for part in point))
    noise, priors = evidence.maximise(start=(1.0, 1.0))
    best = evidence.value(torch.tensor(noise, dtype=torch.float64).log(), priors.log())
    for step in (0.01, -0.01):
        assert evidence.value(torch.tensor(noise, dtype=torch.float64).log() + step, priors.log()) < best
        for layer in range(3):
            moved = priors.log() + step * torch.eye(3, dtype=torch.float64)[layer]
            assert evidence.value(torch.tensor(noise, dtype=torch.float64).log(), moved) < best


@pytest.mark.parametrize("structure", ["low_rank", "kronecker", "diagonal"])
def test_refinement_changes_no_posterior(structure: str) -> None:
    """Everything learned anew at 64 and 256 points: the standard deviation moves by .1 % at most."""
    case = operator_case("fno-1d")
    found = []
    for size in (64, 256):
        grid = Grid.uniform(size)
        inputs = fields(grid, 8, 1, seed=1)
        with torch.no_grad():
            values = evaluate(copy.deepcopy(case.operator).eval(), inputs) + 0.1 * fields(grid, 8, 1, seed=7).values
        head = Laplace(structured(structure, rank=300))
        predictor = head.fit(case.operator, FieldPairs(inputs, Field(values, grid)))
        found.append(predictor(case.inputs, case.inputs.grid).standard_deviation)
    close(found[0], found[1], 1e-3)


def test_weight_samples_follow_the_posterior() -> None:
    case = operator_case("complex")
    predictor = make("full", case)
    tight = Laplace("full", noise=1e-10, prior_precision=1e8).fit(case.operator, case.data)
    ensemble = tight.sampled(400, seed=0)
    field = ensemble(case.inputs)
    assert isinstance(field, EmpiricalField)
    assert field.samples.shape[0] == 400
    assert torch.equal(ensemble.effective_observations, tight.effective_observations)
    ratio = field.variance.sqrt() / tight(case.inputs).standard_deviation  # so narrow that the operator is linear
    assert float((ratio - 1).abs().max()) < 0.2
    assert not torch.equal(predictor.sampled(2, seed=0)(case.inputs).mean, predictor.sampled(2, seed=1)(case.inputs).mean)
    torch.testing.assert_close(
        predictor.sampled(2, seed=0)(case.inputs).mean, predictor.sampled(2, seed=0)(case.inputs).mean, rtol=1e-12, atol=1e-12
    )
    draw = ensemble.draw(0)(case.inputs.values)
    assert float((draw - field.samples).flatten(1).abs().amax(1).min()) < 1e-12 * float(draw.abs().max())


def test_projections_replace_exact_curvature() -> None:
    """Estimated curvature: repeatable, and close to the exact one."""
    case = operator_case("fno-outputs")
    exact, estimated = make("kronecker", case), make("kronecker", case, probes=40)
    ratio = estimated(case.inputs).standard_deviation / exact(case.inputs).standard_deviation
    assert float((ratio - 1).abs().mean()) < 0.3
    assert torch.equal(make("kronecker", case, probes=40)(case.inputs).variance, estimated(case.inputs).variance)
    assert not torch.equal(exact(case.inputs).variance, estimated(case.inputs).variance)


@pytest.mark.bad_input
def test_errors() -> None:
    case = operator_case("fno-1d")
    for rank in (0, 1.5):
        with pytest.raises(ArgumentError, match="an integer of at least 1"):
            LowRank(rank=rank)
    with pytest.raises(ArgumentError, match="an integer of at least 1"):
        Kronecker(probes=0)
    with pytest.raises(ArgumentError, match="prior_precision among per_layer"):
        Laplace(prior_precision="per_tensor")
    with pytest.raises(UnsupportedError, match="a low-rank structure, which leaves directions out"):
        make("diagonal", case).variance_bounds(case.inputs)
    named = {name: -1.0 if name == "lift.bias" else 1.0 for name, _ in case.operator.named_parameters()}
    with pytest.raises(ArgumentError, match="prior_precision > 0"):
        Laplace(structure="kronecker", prior_precision=named).fit(case.operator, case.data)


def test_kronecker_refuses_priors_that_have_no_such_product() -> None:
    case = operator_case("fno-1d")
    prior = {name: torch.ones_like(parameter) for name, parameter in case.operator.named_parameters()}
    name = next(name for name in prior if name.startswith("spectral"))
    prior[name][..., 1] = 1.0 / 0.7**2
    with pytest.raises(UnsupportedError, match=rf"different ones in {name}.*structure 'full' or 'low_rank'"):
        Laplace(structure="kronecker", noise=0.01, prior_precision=prior).fit(case.operator, case.data)


@pytest.mark.bad_input
def test_a_layer_of_zeros_has_no_evidence() -> None:
    case = operator_case("channels-last")
    with torch.no_grad():
        module = type(case.operator)().to(torch.float64)
        module.layers[0].bias.zero_()
    with pytest.raises(EvidenceError, match="layers.0.bias that are not all zero"):
        Laplace("diagonal", prior_precision="per_layer").fit(module, case.data)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.project = nn.Linear(1, 4), nn.Linear(4, 1)
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.project(self.layer(self.lift(values.mT))).mT


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.project = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, values: Tensor) -> Tensor:
        return self.project(self.layer(values.mT)[0]).mT


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    ("module", "dtype", "tolerance"), [(Attention, torch.float64, 1e-6), (Recurrence, torch.float32, 1e-3)]
)
def test_modules_whose_fused_operations_lack_derivatives_have_all_posteriors(
    module: type[nn.Module], dtype: torch.dtype, tolerance: float
) -> None:
    """Of LSTMs, those in single precision are fused."""
    torch.manual_seed(0)
    operator, inputs = module().to(dtype), fields(Grid.uniform(8), 6, 1, seed=4).to(dtype)
    data = FieldPairs(inputs, Field(inputs.values.cumsum(2) / 4.0, inputs.grid))
    settings = {"noise": 0.1, "prior_precision": 1.0, "effective_observations": 4.0, "show_progress": False}
    flags = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    exact = Laplace("full", **settings).fit(operator, data)(inputs).variance
    close(Laplace(LowRank(rank=300), **settings).fit(operator, data)(inputs).variance, exact, tolerance)
    assert flags == (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled)
