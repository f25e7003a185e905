"""The 22 queries of TPC-H as views of one project, refreshed through changes of all eight tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.testing import tpch
from tautochrone.testing.tpch_changes import TpchChanges

from .testbed import STRICT, ViewTestbed

pytestmark = pytest.mark.spark

SCALE = 0.01

CUSTOMERS_WITHOUT_ORDERS = """
INSERT INTO lake.tpch.customer
SELECT CASE WHEN c_custkey % 3 > 0 THEN c_custkey + 2000000 END, * EXCEPT (c_custkey)
FROM lake.tpch.customer WHERE c_custkey < 20
"""
"""Some have no key."""


@pytest.fixture
def testbed(testbed: ViewTestbed, tmp_path: Path) -> ViewTestbed:
    data = tpch.generate(tmp_path / "data", SCALE)
    tpch.load(testbed.external_session, data)
    policy = "incremental_strict" if STRICT else None
    testbed.pipeline.write("definitions/tpch.sql", tpch.project(SCALE, policy))
    return testbed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_all_queries_through_all_changes(testbed: ViewTestbed, steps: int) -> None:
    first = testbed.checkpoint()
    assert {refresh["mode"] for refresh in first.of("refresh")} == {"full"}
    assert len(first.of("refresh")) == 22
    changes = TpchChanges(testbed.external_session, seed=7, share=0.01)
    changed_views: set[str] = set()
    for step in range(1, steps + 1):
        changes.everything(step)
        if step == 1:
            testbed.sql(CUSTOMERS_WITHOUT_ORDERS)
        happened = testbed.checkpoint(restart=step == 3)
        assert len(happened.of("refresh")) == 22
        for refresh in happened.of("refresh"):
            if refresh["rows_inserted"] + refresh["rows_deleted"]:
                changed_views.add(refresh["dataset"].rsplit(".", 1)[-1])
    # A view that never changed proves nothing.
    unchanged = set(tpch.queries(SCALE)) - changed_views
    assert len(unchanged) <= 3 if steps == 1 else not unchanged, unchanged
