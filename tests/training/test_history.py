"""What a history says of a training."""

from __future__ import annotations

from probneural.training.history import History


def test_epochs_are_those_trained() -> None:
    history = History(train=(3.0, 2.0), validation=(), seconds=(1.0, 1.0))
    assert history.epochs == 2
    assert history.restored is None
