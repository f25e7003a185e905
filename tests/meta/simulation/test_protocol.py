"""Simulated schedules of the protocol of shared checkpoints."""

from __future__ import annotations

import pytest
from tests.meta.simulation.simulation import CI, SOAK, run

pytestmark = pytest.mark.thorough


def test_schedules() -> None:
    run(range(CI))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_schedules() -> None:
    run(range(CI, SOAK))
