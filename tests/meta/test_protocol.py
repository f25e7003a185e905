"""Simulated schedules of the protocol of shared checkpoints."""

from __future__ import annotations

import pytest
from tests.meta.simulation import CI, SOAK, run


@pytest.mark.parametrize("part", range(3))
def test_schedules(part: int) -> None:
    run(range(part * CI // 3, (part + 1) * CI // 3))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_schedules() -> None:
    run(range(CI, SOAK))
