"""The queries of TPC-H as views of one project, refreshed through changes of all eight tables.

CI has five of the 22.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support import tpch
from tests.support.tpch_changes import TpchChanges

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

SCALE = 0.01
SAMPLE = ("q2", "q9", "q13", "q16", "q20")
"""Queries that read all eight tables, with every kind of join and of subquery; the first change has rows of
each."""

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
    return testbed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("names", "steps"),
    [(SAMPLE, 1), pytest.param(tuple(tpch.queries(SCALE)), 5, marks=pytest.mark.slow)],
    ids=["sample", "all"],
)
def test_queries_through_changes_of_all_tables(
    testbed: ViewTestbed, names: Sequence[str], steps: int
) -> None:
    queries = tpch.queries(SCALE)
    for name in names:
        testbed.view(name, queries[name])
    first = testbed.checkpoint()
    assert {refresh["mode"] for refresh in first.of("refresh")} == {"full"}
    assert len(first.of("refresh")) == len(names)
    changes = TpchChanges(testbed.external_session, seed=7, share=0.01)
    changed_views: set[str] = set()
    for step in range(1, steps + 1):
        changes.everything(step)
        if step == 1:
            testbed.sql(CUSTOMERS_WITHOUT_ORDERS)
        happened = testbed.checkpoint(restart=step == 3)
        assert len(happened.of("refresh")) == len(names)
        for refresh in happened.of("refresh"):
            if refresh["rows_inserted"] + refresh["rows_deleted"]:
                changed_views.add(refresh["dataset"].rsplit(".", 1)[-1])
    # A view that never changed proves nothing.
    unchanged = set(names) - changed_views
    assert not unchanged, unchanged
