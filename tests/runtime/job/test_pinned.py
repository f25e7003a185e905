"""Pins are renewed for as long as they are used."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import cast

from tautochrone.errors import CheckpointUnavailableError, MetaError
from tautochrone.meta import Store
from tautochrone.runtime.job.pinned import renewed


def test_a_pin_is_renewed_until_it_is_lost() -> None:
    answers = [
        None,
        MetaError("META_STORE_UNREACHABLE", "away"),
        None,
        CheckpointUnavailableError("GONE", "gone"),
    ]
    renewals: list[tuple[str, int]] = []
    losses: list[CheckpointUnavailableError] = []
    lost = Event()

    def renew(pin: str, lease_ms: int) -> None:
        renewals.append((pin, lease_ms))
        answer = answers[len(renewals) - 1]
        if answer is not None:
            raise answer

    def on_lost(error: CheckpointUnavailableError) -> None:
        losses.append(error)
        lost.set()

    store = cast("Store", SimpleNamespace(pins=SimpleNamespace(renew=renew)))
    with renewed(store, lambda: (f"pin{len(renewals)}", 3), owner="test", on_lost=on_lost):
        assert lost.wait(30)
    assert renewals == [("pin0", 3), ("pin1", 3), ("pin2", 3), ("pin3", 3)]
    assert losses == [answers[-1]]
