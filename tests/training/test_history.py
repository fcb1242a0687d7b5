"""What a history says about training that ended too early."""

from __future__ import annotations

import pytest

from probneural.training import History


def history(*losses: float, watched: tuple[float, ...] = ()) -> History:
    return History(train=losses, validation=watched, seconds=(1.0,) * len(losses))


def test_fall_over_the_last_fifth() -> None:
    geometric = history(*(0.9**number for number in range(10)))
    assert geometric.epochs == 10
    assert geometric.last_fall == pytest.approx(1.0 - 0.9**2)


def test_ends_are_averages_over_a_twentieth() -> None:
    losses = [2.0] * 30 + [1.0, 3.0] + [9.0] * 6 + [0.25, 1.75]
    assert history(*losses).last_fall == pytest.approx(1.0 - 1.0 / 2.0)


def test_validation_counts_before_training() -> None:
    fallen = history(*[1.0] * 10, watched=tuple(2.0**-number for number in range(10)))
    assert fallen.last_fall == pytest.approx(0.75)
    assert history(*(2.0**-number for number in range(10)), watched=(1.0,) * 10).last_fall == 0.0


def test_few_epochs_say_nothing() -> None:
    assert history(1.0, 1.0, 1.0, 1.0).last_fall == history().last_fall == 1.0
    assert history(*[1.0] * 5).last_fall == 0.0


def test_zero_losses_do_not_fall() -> None:
    assert history(*[0.0] * 10).last_fall == 0.0
