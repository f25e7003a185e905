"""A data file that is rewritten for a few rows of it: what changed is counted before anything is decided."""

from __future__ import annotations

import pytest
from tests.support.harness import Pipeline

from tautochrone.model import limits

pytestmark = pytest.mark.spark

VIEWS = """
CREATE MATERIALIZED VIEW totals AS SELECT word, count(*) AS n FROM src.t GROUP BY word;
CREATE MATERIALIZED VIEW pairs AS SELECT l.id, r.word FROM src.t l JOIN src.t r ON l.id = r.id + 1;
CREATE MATERIALIZED VIEW whole TBLPROPERTIES ('tautochrone.refresh-policy' = 'full') AS
SELECT max(id) AS last FROM src.t;
"""
UPDATE = "UPDATE lake.src.t SET word = 'x' WHERE id = 1777"


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    pipeline.write("definitions/views.sql", VIEWS)
    return pipeline


def rewrite(pipeline: Pipeline, version: int) -> None:
    """A table whose writers rewrite files, and a change of one row in it, after the first run."""
    pipeline.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.src")
    pipeline.session.sql(
        f"CREATE TABLE lake.src.t USING iceberg TBLPROPERTIES ('format-version' = '{version}') AS "
        "SELECT id, CAST(id % 7 AS STRING) AS word FROM range(3000)"
    )
    pipeline.run()
    pipeline.session.sql(UPDATE)


def test_a_rewritten_file_is_not_taken_for_a_change_of_all_its_rows(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_REWRITTEN_ROWS_TO_COUNT", 100)
    rewrite(pipeline, 3)
    happened = pipeline.run()
    for view in ("totals", "pairs"):
        mode, reason = happened.mode(view)
        assert mode == "incremental"
        assert reason.startswith("0.067 % of t changed")
    assert happened.mode("whole") == ("full", "its refresh policy is full")

    # More than the driver holds is counted too.
    monkeypatch.setattr(limits, "MIN_REWRITTEN_ROWS_TO_COUNT", 1)
    pipeline.session.sql(UPDATE.replace("= 1777", "< 6"))
    happened = pipeline.run()
    assert happened.refresh("totals")["delta_rows"] == 12
    assert len(pipeline.verify()) == 3


def test_rows_without_ids_are_compared(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_REWRITTEN_ROWS_TO_COUNT", 100)
    rewrite(pipeline, 2)
    happened = pipeline.run()
    assert happened.refresh("totals")["reason"].startswith("100 % of t changed")
    assert len(pipeline.verify()) == 3
