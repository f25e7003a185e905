"""The 22 queries of TPC-H as views of one project, kept up to date through changes of all eight tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.testing import tpch
from tautochrone.testing.tpch_changes import TpchChanges

from .stand import STRICT, Stand

pytestmark = pytest.mark.spark

SCALE = 0.01

STRANGERS = """
INSERT INTO lake.tpch.customer
SELECT CASE WHEN c_custkey % 3 > 0 THEN c_custkey + 2000000 END, * EXCEPT (c_custkey)
FROM lake.tpch.customer WHERE c_custkey < 20
"""
"""Customers without orders, some without a key."""


@pytest.fixture
def stand(stand: Stand, tmp_path: Path) -> Stand:
    data = tpch.generate(tmp_path / "data", SCALE)
    tpch.load(stand.outside, data)
    policy = "incremental_strict" if STRICT else None
    stand.pipeline.write("definitions/tpch.sql", tpch.project(SCALE, policy))
    return stand


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_all_queries_through_all_changes(stand: Stand, steps: int) -> None:
    first = stand.checkpoint()
    assert {told["mode"] for told in first.of("refresh")} == {"full"}
    assert len(first.of("refresh")) == 22
    changes = TpchChanges(stand.outside, seed=7, share=0.01)
    moved: set[str] = set()
    for step in range(1, steps + 1):
        changes.everything(step)
        if step == 1:
            stand.sql(STRANGERS)
        happened = stand.checkpoint(restart=step == 3)
        assert len(happened.of("refresh")) == 22
        for told in happened.of("refresh"):
            if told["rows_inserted"] + told["rows_deleted"]:
                moved.add(told["dataset"].rsplit(".", 1)[-1])
    # A view that never changed proves nothing.
    still = set(tpch.queries(SCALE)) - moved
    assert len(still) <= 3 if steps == 1 else not still, still
