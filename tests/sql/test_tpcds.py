"""The 99 queries of TPC-DS as views, kept up to date through changes of all 24 tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from . import tpcds
from .stand import Stand

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 9
STEPS = 2
COMPARED = {
    "q44": "it numbers all rows by a window without PARTITION BY",
    "q49": "it numbers all rows by a window without PARTITION BY",
}
"""Queries that are refreshed by `diff`."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_queries_through_all_changes(tmp_path: Path, spark: SparkSession, batch: int) -> None:
    queries = tpcds.generate(tmp_path / "data", scale=0.01)
    assert len(queries) == 99
    stand = Stand(tmp_path, spark)
    try:
        changes = tpcds.TpcdsChanges(stand, tpcds.load(stand, tmp_path / "data"))
        for name, query in list(queries.items())[batch::BATCHES]:
            policy = "incremental" if name in COMPARED else "incremental_strict"
            stand.view(name, query, f"TBLPROPERTIES ('tautochrone.refresh-policy' = '{policy}')")
        stand.checkpoint()
        for step in range(1, STEPS + 1):
            changes.everything(step)
            stand.checkpoint(allowed=COMPARED, restart=step > 1)
    finally:
        stand.close()
