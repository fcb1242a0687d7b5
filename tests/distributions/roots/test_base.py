"""The operations of roots against the tensors they stand for, on every case."""

from __future__ import annotations

import pytest
import torch

from probneural.distributions import DenseRoot, FeatureRoot, Root
from probneural.distributions.latent import Seeds
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.distributions.roots.modulated import WeightedRoot
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.errors import GridError, ShapeError
from probneural.functionals import integral
from probneural.linear_algebra.conditioning import LowRankUpdate
from tests.distributions.cases import GRIDS, GaussianCase, assert_close, functionals, normal, on_every_gaussian, transform
from tests.distributions.reference import matrix_of


@on_every_gaussian
class TestEveryRoot:
    def test_stands_for_its_tensor(self, case: GaussianCase) -> None:
        root = case.field.root
        assert_close(root.dense(), case.root, case.tolerance)
        assert root.shape == tuple(case.root.shape)
        assert (root.dense().dtype, root.dense().device) == (root.dtype, root.device)

    def test_products(self, case: GaussianCase) -> None:
        root, latents = case.field.root, normal("latents", 5, case.root.shape[3])
        assert_close(root.product(latents), torch.einsum("ncpk,sk->sncp", case.root, latents), case.tolerance)
        assert root.product(latents[:0]).shape == (0, *case.root.shape[:3])
        assert root.product(latents).dtype == root.dtype

    def test_products_with_a_vector_per_input(self, case: GaussianCase) -> None:
        inputs, _, _, rank = case.root.shape
        latents = normal("latents", inputs, rank)
        expected = torch.einsum("ncpk,nk->ncp", case.root, latents)
        assert_close(case.field.root.product_each(latents), expected, case.tolerance)

    def test_transposed_products(self, case: GaussianCase) -> None:
        root, latents = case.field.root, normal("latents", 4, case.root.shape[3])
        values = normal("values", 4, *case.root.shape[:3])
        pulled = root.transposed_product(values)
        assert_close(pulled, torch.einsum("ncpk,sncp->sk", case.root, values), 10 * case.tolerance)
        left, right = (root.product(latents).double() * values).sum(), (latents * pulled.double()).sum()
        assert abs(left - right) <= case.tolerance * values.norm() * latents.norm() * case.root.norm()

    def test_transposed_products_of_each_input(self, case: GaussianCase) -> None:
        root, inputs = case.field.root, case.root.shape[0]
        cotangents = normal("cotangents", inputs, 5, *case.root.shape[1:3])
        pulled = root.pull(cotangents)
        assert_close(pulled, torch.einsum("ncpk,nmcp->nmk", case.root, cotangents), 10 * case.tolerance)
        joint = root.transposed_product(cotangents.movedim(1, 0))
        assert_close(pulled.double().sum(0), joint.double(), 10 * case.tolerance)
        assert root.pull(cotangents[:, :0]).shape == (inputs, 0, case.root.shape[3])

    def test_row_squares(self, case: GaussianCase) -> None:
        assert_close(case.field.root.row_squares(), case.root.square().sum(-1), case.tolerance)

    def test_row_squares_come_in_pieces(self, case: GaussianCase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("probneural.distributions.roots.base._CHUNK_ELEMENTS", 1)
        assert_close(case.field.root.row_squares(), case.root.square().sum(-1), case.tolerance)

    @pytest.mark.parametrize("chunk", [1, 2**24])
    def test_gram_matrices(self, case: GaussianCase, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
        monkeypatch.setattr("probneural.distributions.roots.base._CHUNK_ELEMENTS", chunk)
        rows, gram = case.root.flatten(1, 2), case.field.root.gram()
        assert gram.dtype == torch.float64
        assert_close(gram, rows @ rows.mT, case.tolerance)

    def test_magnitudes_are_the_largest_deviations(self, case: GaussianCase) -> None:
        assert_close(case.field.root.magnitude(), case.root.norm(dim=-1).amax(-1), case.tolerance)

    def test_pushes(self, case: GaussianCase) -> None:
        for functional in functionals(case.field.grid):
            expected = torch.einsum("mp,ncpk->ncmk", matrix_of(functional), case.root)
            assert_close(case.field.root.push(functional).dense(), expected, case.tolerance)

    def test_composes(self, case: GaussianCase) -> None:
        inputs, _, _, rank = case.root.shape
        (one, one_dense), (own, own_dense) = transform("one", 3, rank), transform("own", inputs, 2, rank)
        composed = case.field.root.compose(one)
        expected = torch.einsum("ncpk,kl->ncpl", case.root, one_dense)
        assert_close(composed.dense(), expected, 10 * case.tolerance)
        assert composed.shape == case.field.root.shape
        for twice in (composed.compose(own), composed.select(slice(None)).compose(own)):
            assert_close(twice.dense(), torch.einsum("ncpk,nkl->ncpl", expected, own_dense), 20 * case.tolerance)
        again = case.field.root.compose(own).select(torch.tensor([-1]))
        assert_close(again.dense()[0], case.root[-1] @ own_dense[-1], 10 * case.tolerance)

    def test_scales(self, case: GaussianCase) -> None:
        factors = torch.linspace(0.5, 2.0, case.root.shape[1])
        expected = torch.einsum("ncpk,c->ncpk", case.root, factors.double())
        assert_close(case.field.root.scale(factors).dense(), expected, case.tolerance)

    def test_selects(self, case: GaussianCase) -> None:
        for index in (slice(0, 1), slice(0, 0), slice(None), torch.tensor([0, -1, 0]), torch.tensor([-1])):
            chosen = case.field.root.select(index)
            assert_close(chosen.dense(), case.root[index], case.tolerance)
            assert_close(chosen.row_squares(), case.root[index].square().sum(-1), case.tolerance)
            latents = normal("latents", 2, case.root.shape[3])
            assert_close(chosen.product(latents), torch.einsum("ncpk,sk->sncp", case.root[index], latents), case.tolerance)

    def test_results_keep_kind_and_dtype(self, case: GaussianCase) -> None:
        root, (one, _) = case.field.root, transform("one", 2, case.root.shape[3])
        functional = integral(case.field.grid)
        pushed = root.push(functional)
        assert isinstance(pushed, DenseRoot if isinstance(root, WeightedRoot) else type(root))
        kinds = {WeightedRoot: CorrectedRoot}
        for result in (root.compose(one), root.scale(torch.ones(root.shape[1])), root.select(slice(1)), pushed):
            assert (result.dtype, result.device) == (root.dtype, root.device)
        assert isinstance(root.compose(one), kinds.get(type(root), type(root)))
        assert type(root.scale(torch.ones(root.shape[1]))) is type(root.select(slice(1))) is type(root)


@pytest.mark.parametrize("held", [0, 2**28])
def test_lazy_features_equal_held_ones_in_any_parts(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Parts of one sample each, and pushed features that are held or evaluated again."""
    monkeypatch.setattr("probneural.distributions.roots.lazy._PART_ELEMENTS", 1)
    monkeypatch.setattr("probneural.distributions.roots.lazy.HELD_ELEMENTS", held)
    features, factor, sizes = normal("features", 5, 6, 4), normal("factor", 1, 2, 4, 3), []

    def evaluate(indices: torch.Tensor) -> torch.Tensor:
        sizes.append(len(indices))
        return features[indices]

    root = FeatureRoot(features, factor)
    lazy = LazyFeatureRoot(evaluate, torch.arange(5), (6, 4), factor, features)
    functional = functionals(GRIDS["1-D"])[-1]
    seeds = Seeds((3, 1, 4, 1, 5), "weights")
    assert_close(lazy.draw(seeds, each=True), root.draw(seeds, each=True), 1e-14)
    assert_close(lazy.draw(seeds), root.draw(seeds), 1e-14)
    pushed = lazy.push(functional)
    assert_close(pushed.select(slice(1, 3)).row_squares(), root.push(functional).select(slice(1, 3)).row_squares(), 1e-13)
    assert set(sizes) == {1}
    evaluations = len(sizes)
    assert_close(pushed.row_squares(), root.push(functional).row_squares(), 1e-13)
    assert (len(sizes) == evaluations) == (held > 0)


def test_row_squares_of_a_wide_factor_have_gradients() -> None:
    """Though narrowing it by a QR decomposition would have none where the factor lacks full rank."""
    features, factor = normal("features", 2, 6, 4), normal("wide", 1, 3, 4, 12)
    factor[:, 1] = 0.0
    factor[:, 2, :, 4:] = 0.0
    squares = FeatureRoot(features, factor).row_squares()
    factor.requires_grad_()
    watched = FeatureRoot(features, factor).row_squares()
    assert_close(watched.detach(), squares, 1e-12)
    (gradient,) = torch.autograd.grad(watched.sum(), factor)
    assert_close(gradient, 2 * torch.einsum("npf,npg,cgk->cfk", features, features, factor.detach()[0])[None], 1e-12)


@pytest.mark.bad_input
class TestBadRoots:
    ROOTS = (DenseRoot(torch.ones(2, 1, 6, 3)), FeatureRoot(torch.ones(2, 6, 4), torch.ones(1, 1, 4, 3)))

    @pytest.mark.parametrize("root", ROOTS)
    def test_functional_of_another_size(self, root: Root) -> None:
        with pytest.raises(GridError, match="6 points of a functional's grid, the field's"):
            root.push(integral(GRIDS["ends"]))

    @pytest.mark.parametrize("root", ROOTS)
    @pytest.mark.parametrize("shape", [(2, 4), (2, 2, 4), (1, 2, 3), (3, 2, 3), (2, 2, 2, 3)])
    def test_composing_with_a_map_of_another_size(self, root: Root, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"directions of shape \((2, )?r, 3\)"):
            root.compose(LowRankUpdate(torch.ones(shape), torch.ones(shape[:-1])))

    @pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (1, 1, 1, 2, 3)])
    def test_dense_root_of_other_axes(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"a root of shape \(n, c, p, k\)"):
            DenseRoot(torch.ones(shape))

    @pytest.mark.parametrize(
        ("features", "factor"),
        [
            ((3, 5, 4), (2, 1, 4, 6)),  # factors for 2 of 3 inputs
            ((3, 5, 4), (1, 1, 5, 6)),  # another number of features
            ((3, 5, 4), (1, 4, 6)),
            ((5, 4), (1, 1, 4, 6)),
        ],
    )
    def test_features_and_factor_that_do_not_fit(self, features: tuple[int, ...], factor: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"features \(n, p, f\) and a factor"):
            FeatureRoot(torch.ones(features), torch.ones(factor))


def test_a_root_of_rank_zero_is_certain() -> None:
    roots = [DenseRoot(torch.zeros(2, 1, 6, 0)), FeatureRoot(torch.ones(2, 6, 3), torch.zeros(1, 1, 3, 0))]
    for root in roots:
        assert torch.equal(root.row_squares(), torch.zeros(2, 1, 6))
        assert torch.equal(root.product(torch.zeros(4, 0)), torch.zeros(4, 2, 1, 6))


def test_features_keep_the_precision_of_their_factor() -> None:
    """Conditioning composes the factor in float64 even where features are float32."""
    root, (one, dense) = FeatureRoot(torch.ones(1, 4, 2), normal("factor", 1, 1, 2, 3)), transform("composed", 2, 3)
    composed = root.compose(one)
    assert isinstance(composed, FeatureRoot)
    assert composed.factor.dtype == torch.float64
    assert_close(composed.factor, root.factor @ dense, 1e-14)
    assert root.pull(torch.ones(1, 1, 1, 4)).dtype == torch.float64
