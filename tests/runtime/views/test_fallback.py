"""A change that cannot be followed to its end, although both ends are right."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import RefreshError
from tautochrone.model.checkpoint import RefreshMode, RefreshPolicy
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.refresh.task import Choice
from tautochrone.runtime.views.incremental import IncrementalRefresh
from tautochrone.runtime.views.refresh_view import _follow_change

VIEW = """
CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('tautochrone.refresh-policy' = '{policy}') AS
SELECT a.id, 10 / (a.x - b.y) AS ratio FROM src.a JOIN src.b ON a.k = b.k;
"""


@pytest.mark.spark
def test_rows_that_never_met_at_one_cut_divide_by_zero(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(tmp_path, spark, may_fall_back=True)
    for name, policy in (("loose", "incremental"), ("strict", "incremental_strict")):
        pipeline.write(f"definitions/{name}.sql", VIEW.format(name=name, policy=policy))
    for statement in (
        "CREATE NAMESPACE IF NOT EXISTS lake.src",
        "CREATE TABLE lake.src.a (id INT, k INT, x INT) USING iceberg",
        "CREATE TABLE lake.src.b (k INT, y INT) USING iceberg",
        "INSERT INTO lake.src.a VALUES (1, 1, 1)",
        "INSERT INTO lake.src.b VALUES (1, 2)",
    ):
        pipeline.session.sql(statement)
    pipeline.run()

    # (1, 2) becomes (2, 5); the new row of one side meets the old one of the other as (2, 2).
    pipeline.session.sql("UPDATE lake.src.a SET x = 2")
    pipeline.session.sql("UPDATE lake.src.b SET y = 5")
    happened = pipeline.run()
    mode, reason = happened.mode("loose")
    assert mode == "diff"
    assert reason.startswith("following the change failed: Division by zero")
    assert "Division by zero" in happened.failure("strict")
    rows = pipeline.session.table("lake.default.loose").collect()
    assert [(row.id, round(row.ratio, 6)) for row in rows] == [(1, -3.333333)]

    pipeline.session.sql("UPDATE lake.src.a SET x = 3")
    assert pipeline.run().mode("loose")[0] == "incremental"
    pipeline.close()


@pytest.mark.parametrize("policy", RefreshPolicy)
def test_rows_to_remove_that_are_not_stored(policy: RefreshPolicy) -> None:
    """Such as a text of a float that is computed again with other last digits."""
    error = RefreshError("REFRESH_INCONSISTENT", "…", parameters={"rows": "3", "stored": "1"})
    incremental = create_autospec(IncrementalRefresh)
    incremental.refresh.side_effect = error
    choice = Choice(RefreshMode.INCREMENTAL, Reason.of(ReasonCode.NO_INPUT_CHANGED), policy=policy)
    if policy is RefreshPolicy.INCREMENTAL_STRICT:
        with pytest.raises(RefreshError, match="REFRESH_INCONSISTENT"):
            _follow_change(incremental, choice, policy)
    else:
        reason = _follow_change(incremental, choice, policy)
        assert isinstance(reason, Reason)
        assert (
            str(reason)
            == "following the change failed: of the rows that the view should lose (3) it holds only 1"
        )
