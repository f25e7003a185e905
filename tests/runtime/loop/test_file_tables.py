"""Views over files that are read in batch: whatever happens to the files, they equal Spark's own result."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Happened, Pipeline

from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.loop import file_tables
from tautochrone.runtime.loop.file_tables import FileTables
from tautochrone.spark.analysis.file_relations import FileRelation

pytestmark = pytest.mark.spark

EVEN = """
    from pyspark import pipelines as dp

    @dp.materialized_view(table_properties={{"tautochrone.refresh-policy": "incremental_strict"}})
    def even():
        return spark.sql("SELECT id, k, small FROM parquet.`{folder}/numbers` WHERE id % 2 = 0")
"""
MORE_VIEWS = """
    from pyspark import pipelines as dp

    @dp.materialized_view(table_properties={{"tautochrone.refresh-policy": "incremental_strict"}})
    def by_key():
        numbers = spark.read.parquet("{folder}/numbers")
        names = spark.read.csv("{folder}/names*/*.csv", schema="k BIGINT, name STRING", header=True)
        return numbers.join(names, "k").groupBy("name", "part").agg({{"id": "sum", "*": "count"}})
"""
WITH_PATHS = """
    from pyspark import pipelines as dp

    @dp.materialized_view
    def with_paths():
        return spark.sql("SELECT id, input_file_name() AS path FROM parquet.`{folder}/numbers`")
"""
LINES = """
    from pyspark import pipelines as dp

    @dp.materialized_view(table_properties={{"tautochrone.refresh-policy": "incremental_strict"}})
    def lines():
        return spark.sql("SELECT value FROM text.`{folder}/names*/*.csv`")
"""
QUERIES = {
    "even": "SELECT id, k, small FROM parquet.`{folder}/numbers` WHERE id % 2 = 0",
    "by_key": "SELECT name, part, sum(id), count(*) FROM parquet.`{folder}/numbers` JOIN names USING (k) "
    "GROUP BY name, part",
    "lines": "SELECT value FROM text.`{folder}/names*/*.csv`",
    "with_paths": "SELECT id, input_file_name() AS path FROM parquet.`{folder}/numbers`",
}


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("definitions/p.py", EVEN.format(folder=tmp_path))
    write_numbers(pipeline, "part=1/a", 0, 40)
    pipeline.write("names 1/ä.csv", "k,name\n0,zero\n1,one\n2,\n")
    return pipeline


def write_numbers(pipeline: Pipeline, path: str, first: int, end: int, *, key: str = "id % 3") -> Path:
    """One Parquet file of the folder of numbers."""
    rows = pipeline.session.range(first, end).selectExpr("id", f"{key} AS k", "CAST(id AS TINYINT) AS small")
    written, target = pipeline.folder / "written", pipeline.folder / "numbers" / f"{path}.parquet"
    rows.coalesce(1).write.mode("overwrite").parquet(str(written))
    (file,) = written.glob("*.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    file.replace(target)
    return target


def run(pipeline: Pipeline, **modes: str) -> Happened:
    """Run; compare the modes of some views with the expected ones."""
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    assert {view: happened.mode(view)[0] for view in modes} == modes, list(happened)
    return happened


def run_and_compare(pipeline: Pipeline, **modes: str) -> Happened:
    """The same, and compare all views with Spark's own results."""
    happened = run(pipeline, **modes)
    session, folder = pipeline.session.newSession(), pipeline.folder
    names = session.read.csv(f"{folder}/names*/*.csv", schema="k BIGINT, name STRING", header=True)
    names.createOrReplaceTempView("names")
    for view in sorted(table.table for table in pipeline.job.topology.derived_tables):
        expected = sorted(map(tuple, session.sql(QUERIES[view].format(folder=folder)).collect()), key=repr)
        columns = "*" if view != "by_key" else "name, part, `sum(id)`, `count(1)`"
        stored = sorted(map(tuple, pipeline.reader.sql(f"SELECT {columns} FROM {view}").collect()), key=repr)
        assert stored == expected, view
    return happened


@pytest.mark.parametrize("lines", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_views_follow_files_that_come_change_and_vanish(pipeline: Pipeline, lines: bool) -> None:
    pipeline.write("definitions/more.py", MORE_VIEWS.format(folder=pipeline.folder))
    if lines:
        pipeline.write("definitions/lines.py", LINES.format(folder=pipeline.folder))
    first = run(pipeline, even="full", by_key="full")
    assert first.refresh("even")["reason_code"] == "FIRST_BUILD"
    added = write_numbers(pipeline, "part=2/b %20", 40, 50)
    happened = run_and_compare(pipeline, even="append", by_key="incremental")
    (taken_in,) = happened.of("files_taken_in")
    assert (taken_in["added"], taken_in["rows_inserted"], taken_in["rows_deleted"]) == (1, 10, 0)
    # Replaced by a file of the same size and modification time.
    before = added.stat()
    write_numbers(pipeline, "part=2/b %20", 60, 70)
    os.utime(added, ns=(before.st_atime_ns, before.st_mtime_ns))
    # A key moves to another name, and a file of the other source vanishes.
    pipeline.write("names 2/b.csv", "k,name\n0,null\n")
    kept = (pipeline.folder / "names 1/ä.csv").rename(pipeline.folder / "kept")
    happened = run_and_compare(pipeline, even="incremental", by_key="incremental")
    (taken_in,) = [event for event in happened.of("files_taken_in") if event["changed"]]
    assert (taken_in["changed"], taken_in["rows_inserted"], taken_in["rows_deleted"]) == (1, 10, 10)
    assert pipeline.query("SELECT DISTINCT name FROM by_key") == [("null",)]
    kept.rename(pipeline.folder / "names 1/ä.csv")
    # It comes back, the folder of a partition is renamed, and a file is only touched.
    shutil.move(pipeline.folder / "numbers/part=2", pipeline.folder / "numbers/part=3")
    (pipeline.folder / "numbers/part=1/a.parquet").touch()
    happened = run_and_compare(pipeline, even="append", by_key="incremental")
    assert happened.refresh("even")["rows_inserted"] == happened.refresh("even")["rows_deleted"] == 0
    pipeline.write("definitions/with_paths.py", WITH_PATHS.format(folder=pipeline.folder))
    (taken_in,) = [e for e in pipeline.run(full=["even"]).of("files_taken_in") if e["rows_inserted"] == 50]
    assert (taken_in["changed"], taken_in["rows_deleted"]) == (2, 50)
    unchanged = run_and_compare(pipeline)
    pipeline.verify()
    assert unchanged.of("files_taken_in") == []
    # What reads its files' names is compared in each run; the others cost nothing.
    for view in ("even", "by_key", *(["lines"] if lines else [])):
        assert unchanged.mode(view)[0] == "no_data", view
    assert unchanged.mode("with_paths")[0] == "diff"
    assert unchanged.refresh("with_paths")["reason_code"] == "UNVERSIONED_SOURCE"


def test_new_columns_are_compared_with_a_reason(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.write(
        "definitions/p.py",
        f"""
        from pyspark import pipelines as dp

        @dp.materialized_view(table_properties={{"tautochrone.refresh-policy": "incremental"}})
        def total():
            orders = spark.read.csv("{pipeline.folder}/orders", header=True, inferSchema=True)
            return orders.selectExpr("CAST(sum(amount) AS DOUBLE) AS amount")

        @dp.materialized_view
        def ids():
            numbers = spark.read.schema("id BIGINT").parquet("{pipeline.folder}/numbers")
            return numbers.selectExpr("sum(id) AS s")
        """,
    )
    pipeline.write("orders/a.csv", "id,amount\n1,10\n2,20\n")
    pipeline.run()
    pipeline.write("orders/b.csv", "id,amount\n3,0.5\n")
    happened = pipeline.run()
    assert happened.mode("total")[0] == "diff"
    assert happened.refresh("total")["reason_code"] == "FILE_COLUMNS_CHANGED"
    assert pipeline.query("SELECT amount FROM total") == [(30.5,)]
    # A run that has begun learns of it by the listing alone.
    with pipeline.opened() as (job, happened):
        pipeline.write("orders/c.csv", "id,amount\nx,4\n")
        pipeline.execute(job)
    assert happened.refresh("total")["reason_code"] == "FILE_COLUMNS_CHANGED", list(happened)
    assert pipeline.query("SELECT amount FROM total") == [(34.5,)]
    assert [verdict.equal for verdict in pipeline.verify()] == [None, True]
    monkeypatch.setattr(file_tables, "_MIN_INTERVAL_S", 0.2)
    monkeypatch.setattr(file_tables, "_SHARE_OF_TIME", 0)
    with pipeline.running() as happened:
        wait_for(lambda: happened.of("checkpoint"))
        (pipeline.folder / "orders/c.csv").unlink()
        wait_for(lambda: len([e for e in happened.of("refresh") if e["mode"] == "diff"]) == 2)
        pipeline.write("numbers/part=2/b.parquet", "no Parquet")
        wait_for(lambda: happened.of("refresh_failed"))
        assert happened.of("refresh_failed")[0]["dataset"].endswith(".ids")
        (pipeline.folder / "numbers/part=2/b.parquet").unlink()
        # Followed again, as soon as it can be read.
        failed_at = happened.of("refresh_failed")[-1]["checkpoint"]
        wait_for(lambda: happened.refresh("ids")["checkpoint"] > failed_at)
    assert pipeline.query("SELECT amount FROM total") == [(30.5,)]
    assert pipeline.query("SELECT s FROM ids") == [(780,)]


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.1)


def test_an_older_listing_does_not_replace_a_newer_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_and_compare(pipeline, even="full")
    write_numbers(pipeline, "part=2/b", 40, 50)
    relations_of, overtaken = FileTables._relations, list[FileTables]()

    def overtaken_relations(tables: FileTables, flow: ResolvedFlow) -> Mapping[TableName, FileRelation]:
        relations = relations_of(tables, flow)
        if tables is slow and not overtaken:
            overtaken.append(tables)
            write_numbers(pipeline, "part=2/c", 50, 58)
            fast.synchronize()
        return relations

    monkeypatch.setattr(FileTables, "_relations", overtaken_relations)
    with pipeline.opened() as (job, happened):
        slow, fast = FileTables(job), FileTables(job)
        slow.synchronize()
        assert overtaken
        assert not slow.unfollowed
        assert [(e["added"], e["removed"]) for e in happened.of("files_taken_in")] == [(2, 0)]
    run_and_compare(pipeline, even="append")
    pipeline.verify()


def test_a_glob_is_not_taken_for_other_paths(pipeline: Pipeline) -> None:
    for letter in "abc":
        pipeline.write(f"letters {letter}/x.csv", letter)
    pipeline.write(
        "definitions/p.py",
        f"""
        from pyspark import pipelines as dp

        @dp.materialized_view
        def mixed():
            two = spark.read.csv(["{pipeline.folder}/letters a", "{pipeline.folder}/letters b"])
            return two.union(spark.sql("SELECT * FROM csv.`{pipeline.folder}/letters*`"))

        @dp.materialized_view
        def alone():
            return spark.sql("SELECT * FROM csv.`{pipeline.folder}/letters*`")

        @dp.materialized_view
        def also_alone():
            return spark.sql("SELECT * FROM csv.`{pipeline.folder}/letters*`")
        """,
    )
    with pipeline.opened() as (job, _):
        flows = job.graph.flows
    assert "which of its relations a glob belongs to is unclear" in flows["mixed"].inputs.unversioned[0]
    assert flows["mixed"].file_tables == frozenset()
    assert len(flows["alone"].file_tables | flows["also_alone"].file_tables) == 2


def test_an_interrupted_checkpoint_reads_the_files_of_its_cut(pipeline: Pipeline) -> None:
    run_and_compare(pipeline, even="full")
    added = write_numbers(pipeline, "part=2/b", 40, 50)
    effects = StrikingEffects(Strike(Step.META_OPEN, "after", "crash"))
    with pipeline.opened(effects) as (job, _), pytest.raises(Crash):
        pipeline.execute(job)
    added.unlink()
    write_numbers(pipeline, "part=2/c", 50, 58)
    happened = run_and_compare(pipeline, even="incremental")
    pipeline.verify()
    refreshes = [refresh for refresh in happened.of("refresh") if refresh["dataset"].endswith(".even")]
    assert [(refresh["rows_inserted"], refresh["rows_deleted"]) for refresh in refreshes] == [(5, 0), (4, 5)]


MAINTAINED = """
    [maintenance]
    keep = "0s"
    keep_last = 1
    every = "0s"
    history = "0s"
    min_versions = 1
    min_files = 3
    orphans_every = "0s"
"""


def test_tables_of_files_are_compacted(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(tmp_path, spark, settings=MAINTAINED)
    view = "CREATE MATERIALIZED VIEW lines TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental') AS"
    pipeline.write("definitions/v.sql", f"{view} SELECT value FROM text.`{tmp_path}/first`")
    compacted = []
    for number in range(4):
        pipeline.write(f"first/{number}.txt", f"{number}")
        happened = pipeline.run()
        compacted += [e for e in happened.of("compacted") if "files__" in e["dataset"]]
    assert [event["files_after"] for event in compacted] == [1]
    # Rows of files that were rewritten are found again, and a rewrite is no change.
    pipeline.write("first/1.txt", "one")
    (tmp_path / "first/0.txt").unlink()
    happened = pipeline.run()
    assert (happened.refresh("lines")["rows_inserted"], happened.refresh("lines")["rows_deleted"]) == (1, 2)
    assert pipeline.query("SELECT * FROM lines") == [("2",), ("3",), ("one",)]
    pipeline.close()
