"""The 99 queries of TPC-DS as views, refreshed through changes of all 24 tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from . import tpcds
from .testbed import ViewTestbed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 9
STEPS = 2


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_queries_through_all_changes(tmp_path: Path, spark: SparkSession, batch: int) -> None:
    queries = tpcds.generate(tmp_path / "data", scale=0.01)
    assert len(queries) == 99
    testbed = ViewTestbed(tmp_path, spark)
    try:
        changes = tpcds.TpcdsChanges(testbed, tpcds.load(testbed, tmp_path / "data"))
        for name, query in list(queries.items())[batch::BATCHES]:
            testbed.view(name, query, "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')")
        testbed.checkpoint()
        for step in range(1, STEPS + 1):
            changes.everything(step)
            testbed.checkpoint(restart=step > 1)
    finally:
        testbed.close()
