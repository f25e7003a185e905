"""A view over few rows is compared with the rows that it has, several times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

# OFFSET has no rule: the view is refreshed by `diff`. A key that comes twice fails without the setting.
PYTHON = """
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("k INT, v INT").json({folder!r})

    @dp.materialized_view(spark_conf={{"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}})
    def sums():
        return spark.sql(
            "SELECT k, map_from_arrays(array(k, k), array(0L, sum(v)))[k] AS v FROM events "
            "GROUP BY k ORDER BY k OFFSET 1"
        )
"""


def test_rows_that_go_and_come_back(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.write("definitions/p.py", PYTHON.format(folder=str(tmp_path / "in")))
    total = 0
    for number, change in enumerate([1, 1, -1, 0, 1, -1]):
        total += change
        rows = [{"k": k, "v": change if k == 1 else 0} for k in range(5)]
        pipeline.write(f"in/{number}.json", "\n".join(map(json.dumps, rows)))
        happened = pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        assert number == 0 or happened.refresh("sums")["mode"] == "diff"
        assert sorted(pipeline.query("SELECT * FROM sums")) == [(1, total), (2, 0), (3, 0), (4, 0)]
    pipeline.verify()
