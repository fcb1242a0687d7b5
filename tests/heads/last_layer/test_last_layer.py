"""The last-layer posterior against dense linear algebra, and what counts as a read-out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.distributions import FeatureRoot, GaussianField
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.errors import EvidenceError, ReadoutError
from probneural.fields import Field, evaluate
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.heads import Laplace, LastLayerLaplace
from probneural.heads.last_layer.readout import find_readout
from probneural.operators import FNO, DeepONet
from probneural.pairs import FieldPairs
from tests.curvature.cases import Sizes
from tests.heads.cases import (
    ENDS,
    PERIODIC,
    BranchTrunk,
    ConvStack,
    data_for,
    fields,
    operator_case,
    operator_cases,
    to_dtype,
)
from tests.helpers import cross_covariance, normal

F64 = torch.float64


def features_of(operator: nn.Module, layer: str, inputs: Field) -> Tensor:
    """Phi with the constant last, `(n, p, f)`, caught by a hook of the test's own."""
    caught = []
    handle = operator.get_submodule(layer).register_forward_hook(lambda module, arguments, output: caught.append(arguments[0]))
    with torch.no_grad():
        evaluate(operator, inputs)
    handle.remove()
    rows = caught[0].flatten(2).mT
    return torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)


@dataclass
class Dense:
    """Everything about one channel of a last-layer posterior in physical units, without tricks."""

    phi: Tensor
    weights: Tensor
    residuals: Tensor
    grid: Grid
    count: float

    def curvature(self, noise: float) -> Tensor:
        share = self.grid.weights / self.grid.volume
        return self.count / noise * torch.einsum("npf,p,npg->fg", self.phi, share, self.phi)

    def covariance(self, noise: float, prior: Tensor) -> Tensor:
        return torch.linalg.inv(self.curvature(noise) + prior.diag())

    def evidence(self, noise: float, prior: Tensor) -> float:
        share = self.grid.weights / self.grid.volume
        observations = self.count * len(self.phi)
        misfit = float((self.residuals.square() @ share).sum()) * self.count / noise
        penalty = float((prior * self.weights.square()).sum())
        shrinkage = torch.linalg.slogdet(self.curvature(noise) + prior.diag())[1] - prior.log().sum()
        return -0.5 * (observations * math.log(2 * math.pi * noise) + misfit + penalty + float(shrinkage))


def scaled_fno() -> tuple[FNO, FieldPairs]:
    """Two outputs of very different units on a grid whose weights are not uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        operator = FNO(1, 2, modes=(3,), width=4, depth=2, projection=6, periodic=False).to(F64)
    inputs = fields(ENDS, 6, 1, seed=1)
    targets = fields(ENDS, 6, 2, seed=2).values
    units = torch.tensor([[50.0], [1e-2]], dtype=F64)
    data = FieldPairs(inputs, Field(units * (targets + 3.0), ENDS))
    operator.fit_normalizers(data)
    return operator, data


def dense_channels(operator: FNO, data: FieldPairs, counts: Tensor) -> list[Dense]:
    phi = features_of(operator, "readout", data.inputs)
    with torch.no_grad():
        residuals = data.outputs.values - operator(data.inputs.values, grid=data.inputs.grid)
    scale, mean = operator.output_normalizer.scale, operator.output_normalizer.mean
    weight = (operator.readout.weight * scale[:, None]).detach()
    offset = (operator.readout.bias * scale + mean).detach()
    share = data.outputs.grid.weights / data.outputs.grid.volume
    centre = (data.outputs.values @ share).mean(0)  # the constant's prior sits at the mean training output
    weights = torch.cat([weight, (offset - centre)[:, None]], dim=1)
    pieces = zip(weights, residuals.unbind(1), counts.tolist(), strict=True)
    return [Dense(phi, row, part, data.outputs.grid, count) for row, part, count in pieces]


@pytest.mark.parametrize(
    "head",
    [
        LastLayerLaplace(),
        LastLayerLaplace(noise=torch.tensor([20.0, 1e-6])),
        LastLayerLaplace(prior_precision=torch.tensor([[1e-3], [1e4]]).expand(2, 7), effective_observations=4.0),
        LastLayerLaplace(
            noise=0.1, prior_precision=torch.linspace(0.1, 0.7, 7), effective_observations=torch.tensor([3.0, 5.0])
        ),
    ],
    ids=["learned", "noise", "prior", "given"],
)
def test_posterior_and_evidence_equal_dense_algebra(head: LastLayerLaplace) -> None:
    operator, data = scaled_fno()
    predictor = head.fit(operator, data)
    field = predictor(fields(ENDS, 2, 1, seed=9))
    phi = features_of(operator, "readout", fields(ENDS, 2, 1, seed=9))
    covariance = cross_covariance(field, field).reshape(2, 2, ENDS.size, 2, 2, ENDS.size)
    assert float(covariance[:, 0, :, :, 1].abs().max()) == 0.0
    total = 0.0
    for channel, dense in enumerate(dense_channels(operator, data, predictor.effective_observations)):
        noise, prior = float(predictor.noise[channel]), predictor.prior_precision[channel]
        total += dense.evidence(noise, prior)
        weights = dense.covariance(noise, prior)
        expected = torch.einsum("npf,fg,mqg->npmq", phi, weights, phi)
        error = (covariance[:, channel, :, :, channel] - expected).abs().max() / expected.abs().max()
        assert float(error) <= 1e-10
        rows = predictor.weight_covariance.reshape(2, 7, 2, 7)[channel, :, channel]
        assert float((rows - weights).abs().max() / weights.abs().max()) <= 1e-9
    assert predictor.log_evidence == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(
    "head", [LastLayerLaplace(), LastLayerLaplace(noise=torch.tensor([20.0, 1e-6]))], ids=["both", "prior"]
)
def test_learned_settings_are_stationary_and_beat_their_neighbours(head: LastLayerLaplace) -> None:
    operator, data = scaled_fno()
    predictor = head.fit(operator, data)
    for channel, dense in enumerate(dense_channels(operator, data, predictor.effective_observations)):
        noise, prior = float(predictor.noise[channel]), predictor.prior_precision[channel]
        best = dense.evidence(noise, prior)
        moves = [(1.0, 1.0 + 1e-4)] if head.noise is not None else [(1.0, 1.0 + 1e-4), (1.0 + 1e-4, 1.0)]
        for along_noise, along_prior in moves:
            plus = dense.evidence(noise * along_noise, prior * along_prior)
            minus = dense.evidence(noise / along_noise, prior / along_prior)
            assert abs(plus - minus) / 2e-4 <= 1e-5  # nats per unit of the logarithm
        for factor in (0.5, 0.9, 1.1, 2.0):
            assert dense.evidence(noise, prior * factor) < best
            if head.noise is None:
                assert dense.evidence(noise * factor, prior) < best
                assert dense.evidence(noise * factor, prior / factor) < best


class Features(nn.Module):
    """Frozen features under a read-out without bias."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Conv1d(1, width, 3, padding=1, padding_mode="circular").requires_grad_(False)
        self.last = nn.Conv1d(width, 1, 1, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.tanh(self.hidden(values)))


@pytest.mark.parametrize("head", [LastLayerLaplace(moves_mean=True), LastLayerLaplace(noise=1e-3, moves_mean=True)])
def test_moved_means_are_regressions_on_the_features(head: LastLayerLaplace) -> None:
    """Weights that minimise misfit and penalty do not depend on those that training ended at."""
    operator, data = scaled_fno()
    queries = fields(ENDS, 2, 1, seed=9)
    predictor = head.fit(operator, data)
    phi, share = features_of(operator, "readout", data.inputs), ENDS.weights / ENDS.volume
    for channel, dense in enumerate(dense_channels(operator, data, predictor.effective_observations)):
        noise, prior = float(predictor.noise[channel]), predictor.prior_precision[channel]
        mean = float((data.outputs.values[:, channel] @ share).mean())
        moments = torch.einsum("npf,p,np->f", phi, share, data.outputs.values[:, channel] - mean)
        weights = dense.covariance(noise, prior) @ (dense.count / noise * moments)
        expected = mean + features_of(operator, "readout", queries) @ weights
        torch.testing.assert_close(predictor(queries).mean[:, channel], expected, rtol=1e-7, atol=0)
        before = LastLayerLaplace(noise=head.noise).fit(operator, data)
        moved = (before(queries).mean[:, channel] - expected).abs().max()
        assert float(before.noise[channel]) == noise
        assert float(moved) > 1e-2 * float(data.outputs.values[:, channel].std())


def test_a_moved_mean_keeps_weights_that_the_prior_fixes() -> None:
    operator, data = scaled_fno()
    prior = torch.full((7,), 0.1, dtype=F64)
    prior[2] = math.inf
    predictor = LastLayerLaplace(noise=0.1, prior_precision=prior, moves_mean=True).fit(operator, data)
    assert predictor.shift is not None
    assert predictor.shift[:, 2].tolist() == [0.0, 0.0]
    assert bool((predictor.shift[:, :2] != 0).all())


def test_a_mean_with_more_features_than_data_interpolates_them() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Features(80).to(F64)
    inputs = fields(PERIODIC, 2, 1, seed=1)
    data = FieldPairs(inputs, Field(inputs.values.square(), PERIODIC))
    settings = {"noise": 1e-8, "prior_precision": 1e-2, "effective_observations": float(PERIODIC.size)}
    left = [
        float((LastLayerLaplace(**settings, moves_mean=moves).fit(module, data)(inputs).mean - data.outputs.values).abs().max())
        for moves in (False, True)
    ]
    assert left[0] > 0.1
    assert left[1] < 1e-4


@pytest.mark.parametrize("is_trained", [True, False], ids=["trained", "moved"])
def test_evidence_of_the_conjugate_case_is_the_exact_marginal_likelihood(is_trained: bool) -> None:
    noise, prior = 0.04, 3.0
    module = Features().to(F64)
    inputs = fields(PERIODIC, 6, 1, seed=1)
    generator = torch.Generator().manual_seed(5)
    targets = inputs.values.square() + noise**0.5 * torch.randn(inputs.values.shape, generator=generator, dtype=F64)
    phi = features_of(module, "last", inputs)[..., :-1].flatten(0, 1)
    precision = phi.mT @ phi / noise + prior * torch.eye(5, dtype=F64)
    solved = torch.linalg.solve(precision, phi.mT @ targets.flatten()) / noise
    with torch.no_grad():
        module.last.weight.copy_((solved if is_trained else 3.0 + solved.flip(0))[None, :, None])
    settings = {"noise": noise, "prior_precision": prior, "effective_observations": float(PERIODIC.size)}
    head = LastLayerLaplace(**settings, moves_mean=not is_trained)
    predictor = head.fit(module, FieldPairs(inputs, Field(targets, PERIODIC)))
    marginal = noise * torch.eye(len(phi), dtype=F64) + phi @ phi.mT / prior
    exact = torch.distributions.MultivariateNormal(torch.zeros(len(phi), dtype=F64), marginal).log_prob(targets.flatten())
    assert abs(predictor.log_evidence / float(exact) - 1) <= 1e-8
    field = predictor(inputs)
    torch.testing.assert_close(field.mean.flatten(), phi @ solved, rtol=1e-9, atol=1e-12)
    expected = phi @ torch.linalg.inv(precision) @ phi.mT
    assert float((cross_covariance(field, field) - expected).abs().max() / expected.abs().max()) <= 1e-10
    if not is_trained:
        return
    full = Laplace("full", parameters=["last"], **settings).fit(module, FieldPairs(inputs, Field(targets, PERIODIC)))
    assert abs(full.log_evidence / float(exact) - 1) <= 1e-8


def test_infinite_prior_precision_fixes_weights() -> None:
    operator, data = scaled_fno()
    prior = torch.full((2, 7), 0.5, dtype=F64)
    prior[0, [1, 4]] = math.inf
    prior[1] = math.inf
    predictor = LastLayerLaplace(noise=torch.tensor([20.0, 1e-6]), prior_precision=prior, effective_observations=4.0).fit(
        operator, data
    )
    dense = dense_channels(operator, data, predictor.effective_observations)
    kept = [0, 2, 3, 5, 6]
    reduced = Dense(dense[0].phi[..., kept], dense[0].weights[kept], dense[0].residuals, ENDS, 4.0)
    empty = Dense(dense[1].phi[..., :0], dense[1].weights[:0], dense[1].residuals, ENDS, 4.0)
    total = reduced.evidence(20.0, prior[0, kept]) + empty.evidence(float(predictor.noise[1]), prior[1, :0])
    assert predictor.log_evidence == pytest.approx(total, rel=1e-10)
    field = predictor(data.inputs)
    expected = torch.einsum("npf,fg,npg->np", reduced.phi, reduced.covariance(20.0, prior[0, kept]), reduced.phi)
    torch.testing.assert_close(field.variance[:, 0], expected, rtol=1e-9, atol=0)
    assert float(field.variance[:, 1].max()) == 0.0


def test_weights_are_in_physical_units_of_the_output() -> None:
    """The same data in other units give the same posterior in those units, and the evidence of a density."""
    operator, data = scaled_fno()
    predictor = LastLayerLaplace().fit(operator, data)
    factor = torch.tensor([[1e3], [1e-4]], dtype=F64)
    other = FieldPairs(data.inputs, Field(data.outputs.values * factor, ENDS))
    operator.fit_normalizers(other)
    scaled = LastLayerLaplace().fit(operator, other)
    torch.testing.assert_close(scaled.noise, predictor.noise * factor[:, 0] ** 2, rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled.prior_precision, predictor.prior_precision / factor**2, rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled(data.inputs).variance, predictor(data.inputs).variance * factor**2, rtol=1e-6, atol=0)
    density = len(data) * float((predictor.effective_observations * factor[:, 0].log()).sum())
    assert scaled.log_evidence == pytest.approx(predictor.log_evidence - density, rel=1e-9)


# What counts as a read-out.


@pytest.mark.parametrize("case", operator_cases(), ids=lambda case: case.name)
def test_readout_is_found_and_its_weights_are_physical(case) -> None:
    readout = find_readout(case.operator, case.data.inputs[:2], None)
    assert readout.name == case.readout
    assert readout.has_bias == (case.name != "no-bias")
    values, rows = readout.evaluate(case.inputs)
    with torch.no_grad():
        expected = torch.einsum("npf,cf->ncp", rows, readout.weight).unflatten(-1, case.inputs.grid.shape)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9 * float(values.abs().max()))
    named = LastLayerLaplace(readout=case.readout).fit(case.operator, case.data)
    assert torch.equal(named(case.inputs).variance, LastLayerLaplace().fit(case.operator, case.data)(case.inputs).variance)


class Wide(ConvStack):
    """A last layer that looks at its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv1d(4, 1, 3, padding=1, padding_mode="circular")


class Bounded(ConvStack):
    """A nonlinearity after the last layer."""

    def forward(self, values: Tensor) -> Tensor:
        return torch.tanh(super().forward(values))


class BoundedSmall(nn.Module):
    """A nonlinearity in one output channel only, the one of smaller units."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 2, 1)

    def forward(self, values: Tensor) -> Tensor:
        both = self.readout(values)
        return torch.cat([1e9 * both[:, :1], torch.tanh(both[:, 1:])], dim=1)


class Clipped(nn.Module):
    """A limit after the last layer, which outputs of the usual size never reach."""

    def __init__(self, size: float, limit: float) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 1, 1)
        self.limit = limit
        with torch.no_grad():
            self.readout.weight.fill_(size)

    def forward(self, values: Tensor) -> Tensor:
        return self.readout(values).clamp(-self.limit, self.limit)


class Smoothed(ConvStack):
    """A convolution after the last layer."""

    def forward(self, values: Tensor) -> Tensor:
        out = super().forward(values)
        return (out + out.roll(1, -1)) / 2


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(values)))


class Summed(nn.Module):
    """Two channels of a last layer that only appear as their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 2, 1)

    def forward(self, values: Tensor) -> Tensor:
        return self.readout(values).sum(1, keepdim=True).expand(-1, 2, -1)


class Bare(nn.Module):
    """No parameters."""

    def forward(self, values: Tensor) -> Tensor:
        return values


class ComplexLayer(nn.Module):
    """A complex factor."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1, dtype=torch.complex128))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


class ComplexOutput(nn.Module):
    """A read-out that acts on a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = ComplexLayer()

    def forward(self, values: Tensor) -> Tensor:
        return torch.fft.irfft(self.readout(torch.fft.rfft(values)), n=values.shape[-1])


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (Wide, None, "last: 'last', a layer that is not pointwise and affine"),
        (Wide, "last", "not pointwise and affine"),
        (Bounded, "last", "what follows it is not pointwise and affine"),
        (Bounded, None, "what follows it is not pointwise and affine"),
        (BoundedSmall, None, "what follows it is not pointwise and affine"),
        (lambda: Clipped(size=1e3, limit=50.0), None, "what follows it is not pointwise and affine"),
        (lambda: Clipped(size=1e-3, limit=2.0), None, "what follows it is not pointwise and affine"),
        (Smoothed, "last", "what follows it is not pointwise and affine"),
        (ConvStack, "first", "not pointwise and affine"),
        (ConvStack, "lost", "a submodule among first, norm, dropout, last; got 'lost'"),
        (Twice, "layer", "called 2 times"),
        (Twice, None, "called 2 times"),
        (Summed, None, "not free combinations"),
        (Bare, None, "no layer with parameters"),
        (BranchTrunk, None, "not pointwise and affine on the output's grid"),
        (ComplexOutput, None, "not on one real tensor"),
    ],
)
@pytest.mark.bad_input
def test_readout_errors(make: Callable[[], nn.Module], name: str | None, message: str) -> None:
    module = to_dtype(make(), F64)
    grid = Grid.uniform(8)
    data = data_for(module, fields(grid, 4, 1, seed=0))
    with pytest.raises(ReadoutError, match=message):
        LastLayerLaplace(readout=name).fit(module, data)
    assert not any(child._forward_hooks for child in module.modules())


@pytest.mark.parametrize("kind", [LastLayerLaplace, Laplace])
def test_a_perfect_fit_has_no_noise_to_learn(kind: type) -> None:
    module = Features().to(F64)
    nn.init.zeros_(module.last.weight)
    inputs = fields(PERIODIC, 4, 1, seed=0)
    perfect = FieldPairs(inputs, Field(torch.zeros_like(inputs.values), PERIODIC))
    with pytest.raises(EvidenceError, match="residuals that are not all zero.*give noise="):
        kind().fit(module, perfect)
    predictor = kind(noise=1e-4, prior_precision=1.0).fit(module, perfect)
    assert bool((predictor(inputs).variance > 0).all())


def test_weights_that_vanish_leave_no_prior_to_learn() -> None:
    case = operator_case("no-bias")
    module = ConvStack(bias=False).to(F64)
    nn.init.zeros_(module.last.weight)
    with pytest.raises(EvidenceError, match="weights that are not all zero"):
        LastLayerLaplace().fit(module, case.data)


@pytest.mark.parametrize("noise", [1e-8, 1e-16, 1e-20])
def test_rounding_is_no_information_however_small_the_noise(noise: float) -> None:
    """Three functions of 12 points, 65 weights: the directions that features do not have keep the prior's variance."""
    inputs = fields(PERIODIC, 3, 1, seed=4)
    operator = FNO(1, 1, modes=(3,), width=4, depth=2, projection=64, seed=0).double()
    with torch.no_grad():
        outputs = operator(inputs.values)
    data = FieldPairs(inputs, Field(outputs + 0.1, PERIODIC))
    head = LastLayerLaplace(noise=noise, prior_precision=1.0, effective_observations=float(PERIODIC.size))
    first = head.fit(operator, data[:2])
    rows = features_of(operator, "readout", inputs).flatten(0, 1)
    for predictor, seen in (
        (head.fit(operator, data), len(rows)),
        (first, 2 * PERIODIC.size),
        (first.update(data[2:]), len(rows)),
    ):
        _, sizes, right = torch.linalg.svd(rows[:seen], full_matrices=True)
        squares = torch.zeros(len(right), dtype=F64)
        squares[: len(sizes)] = sizes.square()
        fresh = fields(PERIODIC, 4, 1, seed=9)
        along = features_of(operator, "readout", fresh) @ right.mT
        exact = (along.square() / (squares / noise + 1.0)).sum(-1)
        ratio = predictor(fresh).variance[:, 0] / exact
        assert float(ratio.min()) > 0.9
        assert float(ratio.median()) < 1.5


# Weights of a read-out that are no parameters, against dense posteriors of the parameters there are

GRID = Grid.uniform(16)
SETTINGS = {"noise": 1.0, "prior_precision": 0.5, "effective_observations": 4.0}


def network(channels: int) -> DeepONet:
    return DeepONet(1, channels, sensors=GRID, basis=6, seed=0).double()


def rows(operator: DeepONet, inputs: Field) -> Tensor:
    """Derivatives of all outputs with respect to the parameters of the last layer, `(n, c, p, k)`."""
    values = evaluate(operator, inputs)
    parameters = list(operator.readout.parameters())
    gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in values.flatten()]
    return torch.stack([torch.cat([part.flatten() for part in one]) for one in gradients]).unflatten(0, values.shape)


def reference(operator: DeepONet, data: FieldPairs, inputs: Field) -> Tensor:
    """Variances J (m/s^2 sum J^T W J + tau I)^-1 J^T."""
    seen, new = rows(operator, data.inputs), rows(operator, inputs)
    precision = 4.0 * torch.einsum("ncpk,p,ncpl->kl", seen, GRID.mean_weights, seen)
    covariance = torch.linalg.inv(precision + 0.5 * torch.eye(len(precision), dtype=torch.float64))
    return torch.einsum("ncpk,kl,ncpl->ncp", new, covariance, new)


@pytest.mark.parametrize("channels", [1, 2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_variances_are_those_of_the_parameters(channels: int) -> None:
    operator = network(channels)
    data, inputs = data_for(operator, fields(GRID, 8, 1, seed=1)), fields(GRID, 3, 1, seed=5)
    predictor = LastLayerLaplace(**SETTINGS).fit(operator, data)
    u = predictor(inputs)
    torch.testing.assert_close(u.variance, reference(operator, data, inputs), rtol=1e-8, atol=0)
    assert u.root.shape[3] == 7 * channels
    together = LastLayerLaplace(**SETTINGS).fit(operator, data[:5]).update(data[5:])
    torch.testing.assert_close(together(inputs).variance, u.variance, rtol=1e-8, atol=0)


# Predictions of many fields go in parts once their features exceed the memory budget

SAMPLES, POINTS, WIDTH = 24, 64, 32


@pytest.fixture(scope="module")
def predictor() -> pn.distributions.Predictor:
    burgers = pn.problems.Burgers(viscosity=0.1)
    operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=WIDTH, depth=1, seed=0)
    train = burgers.sample(20, resolution=POINTS, seed=0)
    pn.fit(operator, train, epochs=1, seed=0, show_progress=False)
    fitted = pn.heads.LastLayerLaplace(moves_mean=True).fit(operator, train)
    return pn.calibration.VarianceScale().fit(fitted, burgers.sample(20, resolution=POINTS, seed=1))


def results(predictor: pn.distributions.Predictor, inputs: Field, truth: Field) -> dict[str, torch.Tensor]:
    """Everything that users ask of a prediction."""
    u = predictor(inputs)
    probe = sensors(inputs.grid, [[0.25], [0.5]])
    measured = u.condition(probe, probe(truth.values), noise=1e-2)
    return {
        "mean": u.mean,
        "variance": u.variance,
        "samples": u.rsample((2,), seed=3),
        "draws": u.draw([5, 6]),
        "a draw for each sample": u.draw(range(SAMPLES), each=True),
        "integral": u.apply(integral(inputs.grid)).variance,
        "conditioned": measured.mean,
        "constrained": u.constrain(probe, probe(truth.values)).variance,
        "density": u.log_prob(truth.values, noise=1e-2),
        "selected": u[[3, 1]].variance,
        "scores": torch.tensor([pn.metrics.score(u, truth, noise=1e-2).crps]),
    }


def test_results_are_those_of_one_part_in_bounded_memory(
    predictor: pn.distributions.Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = pn.problems.Burgers(viscosity=0.1).sample(SAMPLES, resolution=POINTS, seed=2)
    expected = results(predictor, test.inputs, test.outputs)
    for name in ("probneural.heads.last_layer.laplace.HELD_ELEMENTS", "probneural.distributions.roots.lazy.HELD_ELEMENTS"):
        monkeypatch.setattr(name, 0)
    for name in ("probneural.heads.last_layer.laplace._BATCH_ELEMENTS", "probneural.distributions.roots.lazy._PART_ELEMENTS"):
        monkeypatch.setattr(name, 4 * POINTS * WIDTH)
    for name, value in results(predictor, test.inputs, test.outputs).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    with Sizes() as sizes:
        u = predictor(test.inputs)
        assert u.variance.shape == u.draw([1])[0].shape == test.outputs.values.shape
    # four samples a part; a held prediction would have 24 x 64 x 33
    assert max(sizes.seen) <= 5 * POINTS * 4 * WIDTH < SAMPLES * POINTS * WIDTH * 1.0


def test_predictions_within_the_budget_hold_their_features(predictor: pn.distributions.Predictor) -> None:
    inputs = Field(normal(3, 1, POINTS, seed="inputs").float(), predictor.domain)
    u = predictor.inner(inputs)
    assert isinstance(u, GaussianField)
    assert isinstance(u.root, FeatureRoot)
    assert not isinstance(u.root, LazyFeatureRoot)
