from __future__ import annotations

import os

import pytest


@pytest.fixture
def no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing it has written; waiting for the disk is for power cuts."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
