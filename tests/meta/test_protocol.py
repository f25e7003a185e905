"""Simulated schedules of the protocol of shared checkpoints: the first half of them, and many more."""

from __future__ import annotations

import pytest
from tests.meta.simulation import CI, SOAK, run


@pytest.mark.parametrize("part", range(4))
def test_schedules(part: int) -> None:
    run(range(part * CI // 8, (part + 1) * CI // 8))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_schedules() -> None:
    run(range(CI, SOAK))
