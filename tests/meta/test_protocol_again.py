"""Simulated schedules of the protocol of shared checkpoints: the other half, for another worker."""

from __future__ import annotations

import pytest
from tests.meta.simulation import CI, run


@pytest.mark.parametrize("part", range(4, 8))
def test_schedules(part: int) -> None:
    run(range(part * CI // 8, (part + 1) * CI // 8))
