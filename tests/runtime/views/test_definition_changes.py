"""A view is built again when what its definition gives changes, and only then, however that comes about."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest
from tests.project.definition_changes import CHANGES, FEW, INPUTS, SAME, Case, files_of, set_environment
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

SPEC = "name: test\nstorage: storage\nlibraries:\n  - glob: {include: defs/**}\n"
FEW_SAME = ("comment", "now")


def run(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    changes: Mapping[str, Case],
    same: Mapping[str, Case],
    *,
    after: bool,
) -> dict[str, str]:
    """The codes of the refreshes' reasons by view. What is written is what plain Spark gives."""
    shutil.rmtree(pipeline.folder / "defs", ignore_errors=True)
    set_environment(monkeypatch, after=after)
    pipeline.write("spark-pipeline.yml", SPEC)
    files = files_of(changes, after=after) | files_of(same, after=after, prefix="same_")
    for file, text in files.items():
        pipeline.write(file, text)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    assert [verdict.dataset for verdict in pipeline.verify() if verdict.equal is False] == []
    return {event["dataset"].split(".")[-1]: event["reason_code"] for event in happened.of("refresh")}


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_views_follow_their_definitions(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    changes = {**CHANGES, **INPUTS} if is_long else {name: CHANGES[name] for name in FEW}
    same = SAME if is_long else {name: SAME[name] for name in FEW_SAME}
    # A worker of Python keeps the modules that it imported.
    changes.pop("udf_import", None)
    run(pipeline, monkeypatch, changes, same, after=False)
    codes = run(pipeline, monkeypatch, changes, same, after=True)
    kept = [name for name in changes if codes.get(name) != "DEFINITION_CHANGED" and name not in INPUTS]
    assert kept == []
    assert [name for name in same if codes.get(f"same_{name}") == "DEFINITION_CHANGED"] == []


def test_other_query_in_the_middle_of_a_run_is_not_mixed_with_older_rows(pipeline: Pipeline) -> None:
    pipeline.write("spark-pipeline.yml", SPEC)
    pipeline.write("defs/in.sql", "CREATE MATERIALIZED VIEW numbers AS SELECT id FROM range(3);")
    pipeline.write(
        "defs/v.py",
        """
        from pathlib import Path
        from pyspark import pipelines as dp

        @dp.materialized_view
        def v():
            return spark.table("numbers").where(Path("condition.txt").read_text())
        """,
    )
    pipeline.write("condition.txt", "id > 0")
    pipeline.run()
    pipeline.write("defs/in.sql", "CREATE MATERIALIZED VIEW numbers AS SELECT id FROM range(4);")
    with pipeline.opened() as (job, happened):
        pipeline.write("condition.txt", "id > 1")
        pipeline.execute(job)
    (failed,) = happened.of("refresh_failed")
    assert "DEFINITION_CHANGED_IN_RUN" in str(failed["error"])
    assert sorted(pipeline.query("SELECT id FROM v")) == [(1,), (2,)]
    refresh = pipeline.run().refresh("v")
    assert (refresh["reason_code"], refresh["reason_params"]) == ("DEFINITION_CHANGED", {"parts": ["query"]})
    assert sorted(pipeline.query("SELECT id FROM v")) == [(2,), (3,)]


def test_view_that_never_was_built_gets_the_columns_of_its_next_definition(pipeline: Pipeline) -> None:
    pipeline.write("spark-pipeline.yml", SPEC)
    defs = "CREATE MATERIALIZED VIEW numbers AS SELECT id FROM range(3);\n"
    plain = "CREATE MATERIALIZED VIEW plain AS SELECT id, {} FROM numbers;\n"
    sums = (
        "CREATE MATERIALIZED VIEW sums AS SELECT id % 2 AS bit, sum({}) AS total FROM numbers GROUP BY 1;\n"
    )
    pipeline.write("defs/v.sql", defs + plain.format("1 / (id - id) AS x") + sums.format("1 / (id - id)"))
    assert len(pipeline.run().of("refresh_failed")) == 2
    last = plain.format("CAST(id AS STRING) AS x, 1 AS y") + sums.format("CAST(id AS DECIMAL(9, 2))")
    pipeline.write("defs/v.sql", defs + last)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    assert sorted(pipeline.query("SELECT * FROM plain")) == [(0, "0", 1), (1, "1", 1), (2, "2", 1)]
    assert pipeline.query("SELECT DISTINCT typeof(total) FROM sums") == [("decimal(19,2)",)]
