"""Where data lie and who reads them changes no bit; the order of batches follows from seed and epoch, from any batch on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
import torch
from torch import nn

from probneural.errors import DataError
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs
from probneural.randomness import stream
from probneural.statistics import units
from probneural.training import Loading, fit, loading
from probneural.training.history import History
from probneural.training.loading import BatchOrder
from tests.training.cases import built, data, same
from tests.training.lazy import lazy

MARK: ContextVar[str] = ContextVar("mark", default="thread")
SETTINGS = {"epochs": 3, "batch_size": 6, "seed": 4, "show_progress": False}


def trained(train: Dataset | list[Dataset], options: Loading | None = None) -> tuple[History, dict[str, torch.Tensor]]:
    operator = built("FNO")
    return fit(operator, train, loading=options, **SETTINGS), operator.state_dict()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [None, Loading(prefetch=1), Loading(prefetch=9), Loading(workers=1), Loading(workers=2, prefetch=1)],
    ids=["default", "one ahead", "nine ahead", "one worker", "two workers"],
)
def test_lazy_sources_and_workers_give_the_bits_of_memory(options: Loading | None) -> None:
    history, weights = trained(data(33))
    for train in (lazy(data(33), most=33), data(33)):
        other, theirs = trained(train, options)
        assert (other.train, other.validation) == (history.train, history.validation)
        assert same(theirs, weights)


def test_training_never_asks_for_more_than_a_batch() -> None:
    """But for the units, which are read in blocks first: so an operator that has them reads batches alone."""
    operator = built("Convolutional")
    pairs = lazy(data(33), most=6)
    fit(operator, pairs, **SETTINGS)  # type: ignore[arg-type]
    # Three epochs, and the training part once more for the record of what it was.
    assert sorted(Counter(pairs.read).values()) == [3] * 3 + [4] * 30


class Shapes(nn.Module):
    """Remembers the grids that it trained on, and how many functions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, int]] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.append((values.shape[-1], len(values)))
        return values * self.scale


def test_batches_of_several_resolutions_are_mixed() -> None:
    coarse, fine = lazy(data(13)), lazy(data(9, size=24))
    operator = Shapes()
    history = fit(operator, [coarse, fine], epochs=2, batch_size=3, validation=0.25, show_progress=False)
    assert sorted(Counter(coarse.read).values()) == [2] * 3 + [3] * 10
    assert sorted(Counter(fine.read).values()) == [2] * 2 + [3] * 7
    assert len(history.validation) == 2
    for epoch in (operator.seen[:7], operator.seen[7:]):
        assert Counter(epoch) == {(16, 3): 3, (16, 1): 1, (24, 3): 2, (24, 1): 1}
        sizes = [size for size, _ in epoch]
        assert sizes not in (sorted(sizes), sorted(sizes, reverse=True))
    assert operator.seen[:7] != operator.seen[7:]


def test_functions_at_two_resolutions_stay_on_one_side() -> None:
    coarse, fine = lazy(data(20)), lazy(data(20, size=24))
    operator = Shapes()
    fit(operator, [coarse, fine], epochs=1, batch_size=4, validation=0.5, show_progress=False)
    watched = [set(part.read[-10:]) for part in (coarse, fine)]
    assert watched[0] == watched[1]
    assert len(watched[0]) == 10


def test_units_of_several_sets_are_those_of_all_their_functions() -> None:
    pairs = data(30)
    operator = built("FNO")
    fit(operator, [pairs[:20], lazy(pairs[20:])], epochs=1, validation=0.0, show_progress=False)
    mean, scale = units(pairs.outputs)
    torch.testing.assert_close(operator.output_normalizer.mean, mean.float())  # type: ignore[union-attr]
    torch.testing.assert_close(operator.output_normalizer.scale, scale.float())  # type: ignore[union-attr]


def test_order_of_one_set_is_a_permutation_named_by_seed_and_epoch() -> None:
    order = BatchOrder([10], batch_size=4, seed=3)
    for epoch in (0, 1):
        order.set_epoch(epoch)
        expected = torch.randperm(10, generator=stream(3, "batches", epoch)).split(4)
        found = list(order)
        assert [rows.tolist() for _, rows in found] == [rows.tolist() for rows in expected]
        for start in range(4):
            order.set_epoch(epoch, start=start)
            assert [rows.tolist() for _, rows in order] == [rows.tolist() for rows in expected][start:]


@pytest.mark.parametrize(
    ("asked", "device", "has_cuda", "expected"),
    [
        (None, "cuda", True, True),
        (None, "cpu", True, False),
        (True, "cpu", True, True),
        (False, "cuda", True, False),
        (True, "cpu", False, False),
    ],
)
def test_batches_wait_in_pinned_memory_for_cuda_or_where_asked(
    asked: bool | None, device: str, has_cuda: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's own loader does it; without CUDA there is no such memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    order = BatchOrder([20], batch_size=5, seed=None)
    loader = loading.Loader([data()], order, loading=Loading(pin_memory=asked), device=torch.device(device))
    assert loader.is_pinned == loader.batches.pin_memory == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_source_arrive_as_they_are(workers: int) -> None:
    class Broken(type(lazy(data()))):  # type: ignore[misc]
        def __getitem__(self, index: object) -> FieldPairs:
            raise DataError(expected="finite values", got="NaN in row 3", remedy="repair them")

    pairs = data()
    broken = Broken(pairs, torch.arange(len(pairs)))
    with pytest.raises(DataError, match="NaN in row 3"):
        fit(built("Convolutional"), broken, validation=0.0, epochs=1, loading=Loading(workers=workers), show_progress=False)


def test_grids_travel_with_batches() -> None:
    """A grid that is not the unit domain reaches the operator and the loss."""
    grids = set()

    def loss(predicted: torch.Tensor, target: torch.Tensor, grid: Grid) -> torch.Tensor:
        grids.add(grid)
        return (predicted - target).square().mean()

    pairs = data()
    grid = Grid.uniform(16, lengths=3.0)
    moved = FieldPairs(type(pairs.inputs)(pairs.inputs.values, grid), type(pairs.inputs)(pairs.outputs.values, grid))
    fit(built("FNO"), lazy(moved), loss=loss, epochs=1, loading=Loading(workers=1), show_progress=False)
    assert grids == {grid}


def test_reading_ahead_keeps_the_callers_context() -> None:
    """What is known of the processes that share the work is a context variable: a thread starts without it."""
    seen = []

    def numbers() -> Iterator[int]:
        for number in range(3):
            seen.append(MARK.get())
            yield number

    token = MARK.set("caller")
    try:
        assert list(loading._ahead(numbers(), 2)) == [0, 1, 2]
    finally:
        MARK.reset(token)
    assert seen == ["caller"] * 3
