"""What is read and computed in the driver is what Spark's jobs give, for each type, format and layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model import limits
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.analysis.session_context import dataframe_of_plan, tuned_session
from tautochrone.spark.execute import driver_scan
from tautochrone.spark.execute.driver_scan import (
    held_in_driver,
    job_reasons,
    note_many_rows,
    stored_positions,
)
from tautochrone.spark.execute.materialize import computed_on_executors, local_relation
from tautochrone.spark.translate.literals import in_list, literals

pytestmark = pytest.mark.spark

VALUES = {
    "b": ("BOOLEAN", ["true", "false"]),
    "i": ("INT", ["-2147483648", "0", "2147483647"]),
    "l": ("BIGINT", ["-9223372036854775808", "7"]),
    "f": ("FLOAT", ["float('NaN')", "-0.0F", "0.0F", "float('Infinity')", "1.5F"]),
    "d": ("DOUBLE", ["double('NaN')", "-0.0D", "0.0D", "double('-Infinity')", "0.1D"]),
    "n": ("DECIMAL(9, 2)", ["-9999999.99", "0.00", "1.50"]),
    "w": ("DECIMAL(38, 10)", ["-9999999999999999999999999999.9999999999", "0.0000000001"]),
    "s": ("STRING", ["''", "'ä😀'", "'a b '"]),
    "y": ("BINARY", ["X''", "X'00FF'"]),
    "t": ("DATE", ["DATE'0001-01-01'", "DATE'2026-02-28'"]),
    "z": ("TIMESTAMP", ["TIMESTAMP'1900-01-01 00:00:00.000001Z'", "TIMESTAMP'2026-10-25 01:30:00Z'"]),
    "u": ("TIMESTAMP_NTZ", ["TIMESTAMP_NTZ'1582-10-04 00:00:00'", "TIMESTAMP_NTZ'2026-03-29 02:30:00'"]),
    "a": ("ARRAY<STRUCT<x: INT, y: STRING>>", ["array()", "array(named_struct('x', 1, 'y', null), null)"]),
    "m": ("MAP<STRING, DOUBLE>", ["map()", "map('k', double('NaN'), '', null)"]),
    "r": ("STRUCT<p: DECIMAL(20, 1), q: ARRAY<INT>>", ["named_struct('p', 1.5, 'q', array(1, null))"]),
}
COMPARED = [name for name in VALUES if name not in ("a", "m", "r")]
LAYOUTS = [
    ("parquet", "3", "PARTITIONED BY (s)"),
    ("orc", "2", "PARTITIONED BY (days(z), b)"),
    ("avro", "2", ""),
    *(
        pytest.param(layout, marks=pytest.mark.slow)
        for layout in [
            *product(["parquet", "orc", "avro"], ["2", "3"], [""]),
            ("parquet", "3", "PARTITIONED BY (bucket(4, id))"),
            ("parquet", "2", "PARTITIONED BY (truncate(2, s))"),
        ]
    ),
]
_numbers = count()


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: "-".join(layout))
def table(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A table with rows in several commits, of which some are deleted and changed, and with new columns."""
    file_format, version, partitions = request.param
    name = f"lake.default.driver_scan_{next(_numbers)}"
    columns = ", ".join(f"{column} {kind}" for column, (kind, _) in VALUES.items())
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, {columns}) USING iceberg {partitions} TBLPROPERTIES "
        f"('format-version' = '{version}', 'write.format.default' = '{file_format}', "
        "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read')"
    )
    for commit in range(2):
        rows = []
        for number in range(4):
            values = [literals[(number + commit) % len(literals)] for _, literals in VALUES.values()]
            rows.append(
                f"({commit * 4 + number}, {', '.join(values if number < 3 else ['NULL'] * len(values))})"
            )
        spark.sql(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)}")
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    spark.sql(f"UPDATE {name} SET d = 7 WHERE id = 6")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN late INT")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN l TO renamed")
    spark.sql(f"INSERT INTO {name} (id, late) VALUES (100, 5)")
    yield name
    spark.sql(f"DROP TABLE {name}")


def bag(frame: DataFrame) -> Counter[str]:
    return Counter(repr(row.asDict(recursive=True)) for row in frame.collect())


def in_driver(frame: DataFrame) -> DataFrame:
    local_rows = held_in_driver(frame)
    assert local_rows is not None
    return local_rows


@pytest.mark.parametrize("groups", [4, pytest.param(len(VALUES) + 2, marks=pytest.mark.slow)])
def test_rows_are_those_of_a_job(spark: SparkSession, table: str, groups: int) -> None:
    """With all columns, and with so many groups of them."""
    rows = spark.table(table)
    assert bag(in_driver(rows)) == bag(rows)
    for start in range(groups):
        chosen = rows.select(rows.columns[start::groups])
        assert bag(in_driver(chosen)) == bag(chosen), chosen.columns
    placed = rows.select("s", "_file", "_pos", "id")
    assert bag(in_driver(placed)) == bag(placed)


@pytest.mark.parametrize("each", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_conditions_are_those_of_a_job(spark: SparkSession, table: str, each: int) -> None:
    """So many of five conditions for each column, others for the next one."""
    rows = spark.table(table)
    for number, name in enumerate(COMPARED):
        column, (kind, literals) = ("renamed" if name == "l" else name), VALUES[name]
        first = f"CAST({literals[0]} AS {kind})"
        conditions = (
            f"{column} = {first}",
            f"{column} <=> {first}",
            f"{column} IN ({', '.join(literals)})",
            f"NOT ({column} > {first} OR {column} IS NULL)",
            f"{column} IS NOT NULL AND id IN (0, 4, 5)",
        )
        for offset in range(each):
            condition = conditions[(number + 2 * offset) % len(conditions)]
            chosen = rows.where(condition)
            assert bag(in_driver(chosen)) == bag(chosen), condition


def test_older_versions_and_changes(spark: SparkSession, table: str) -> None:
    versions = [
        row[0]
        for row in spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at").collect()
    ]
    for version in versions:
        rows = spark.read.option("versionAsOf", version).table(table)
        assert bag(in_driver(rows)) == bag(rows)
    change = (
        spark.read.option("start-snapshot-id", versions[0])
        .option("end-snapshot-id", versions[1])
        .table(table)
    )
    assert bag(in_driver(change)) == bag(change)
    assert sum(bag(change).values()) == 4


def test_stored_rows_are_where_spark_finds_them(spark: SparkSession, table: str) -> None:
    names = ["id", *("renamed" if name == "l" else name for name in VALUES if name != "m"), "late"]
    stored = spark.table(table).select(*names, "_file", "_pos")
    everywhere = {(row["_file"], row["_pos"]): row["id"] for row in stored.collect()}
    for condition in ("id IN (0, 2)", "id = 6", "true", "false"):
        chosen = in_driver(spark.table(table).where(condition).select(*names))
        positions = stored_positions(chosen, stored)
        assert positions is not None
        placed = [(file, position) for file, each in positions.items() for position in each]
        assert sorted(everywhere[position] for position in placed) == sorted(
            row["id"] for row in chosen.collect()
        )
        assert len(set(placed)) == len(placed)


@pytest.fixture
def pairs(spark: SparkSession) -> Iterator[str]:
    name = f"lake.default.driver_scan_{next(_numbers)}"
    spark.sql(
        f"CREATE TABLE {name} (k STRING, v DOUBLE) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    spark.sql(f"INSERT INTO {name} VALUES ('a', 0.0), ('a', 0.0), ('a', 0.0), ('b', 1.0), (NULL, NULL)")
    yield name
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize(
    ("removed", "rows"),
    [
        ("('a', 0.0D)", 1),
        ("('a', 0.0D), ('a', 0.0D)", 2),
        ("('a', 0.0D), ('a', 0.0D), ('a', 0.0D), ('a', 0.0D)", None),
        ("('a', -0.0D)", None),
        ("('b', 1.0D), (NULL, NULL)", 2),
        ("('b', 1.0000000000000002D)", None),
        ("('c', 1.0D)", None),
    ],
)
def test_copies_and_rows_that_are_not_the_same(
    spark: SparkSession, pairs: str, removed: str, rows: int | None
) -> None:
    chosen = spark.sql(f"SELECT * FROM VALUES {removed} AS t(k, v)")
    with job_reasons() as reasons:
        positions = stored_positions(chosen, spark.table(pairs).select("k", "v", "_file", "_pos"))
    codes = [] if rows is not None else [ReasonCode.ROWS_NOT_STORED_ALIKE]
    assert [reason.code for reason in reasons.take()] == codes
    count_of_positions = None if positions is None else sum(map(len, positions.values()))
    assert count_of_positions == rows


@pytest.mark.parametrize(
    ("column", "key", "kind"),
    [("k", "it's", "string"), ("n", Decimal("1.50"), "decimal(9,2)")],
)
def test_files_without_a_key_are_not_read(
    spark: SparkSession, column: str, key: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lake.default.driver_scan_{next(_numbers)}"
    spark.sql(f"CREATE TABLE {name} (k STRING, n DECIMAL(9, 2)) USING iceberg")
    for first in (literals([key if column == "k" else "a"], "string"), "'zz'"):
        number = "9" if first == "'zz'" else "1.50"
        spark.sql(f"INSERT INTO {name} SELECT {first}, {number} FROM range(0, 2, 1, 1)")
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 2)
    for condition in (in_list(column, [key], kind), f"{column} <= {literals([key], kind)}"):
        assert in_driver(spark.table(name).where(condition)).count() == 2
    assert held_in_driver(spark.table(name)) is None
    spark.sql(f"DROP TABLE {name}")


def test_a_column_of_another_type_is_not_compared(spark: SparkSession, pairs: str) -> None:
    chosen = spark.sql("SELECT 'a' AS k, 0.0F AS v")
    with job_reasons() as reasons:
        assert stored_positions(chosen, spark.table(pairs).select("k", "v", "_file", "_pos")) is None
    assert reasons.take() == [Reason.of(ReasonCode.ROWS_OF_OTHER_TYPES, column="v")]


def test_what_is_not_read_here(spark: SparkSession, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.table(pairs)
    for frame, part in (
        (rows.where("upper(k) = 'A'"), "Upper"),
        (rows.selectExpr("v + 1"), "Add"),
        (rows.groupBy("k").count(), "Aggregate"),
        (rows.limit(2), "GlobalLimit"),
        (rows.distinct(), "Deduplicate"),
        (rows.union(rows), "Union"),
        (spark.range(3), "Range"),
        (rows.where(f"v > (SELECT min(v) FROM {pairs})"), "ScalarSubquery"),
    ):
        with job_reasons() as reasons:
            assert held_in_driver(frame) is None
        assert reasons.take() == [Reason.of(ReasonCode.READ_NOT_SIMPLE, part=part)]
    with job_reasons() as reasons:
        assert held_in_driver(rows, max_bytes=100) is None
    assert reasons.take() == [Reason.of(ReasonCode.READ_ROWS_LARGE, table=pairs, limit=100)]
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 5)
    assert held_in_driver(rows) is not None
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 4)
    with job_reasons() as reasons:
        assert held_in_driver(rows) is None
        assert local_relation(rows)[1] == 5
    assert reasons.take() == [Reason.of(ReasonCode.READ_MANY_ROWS, table=pairs, limit=4)]


def test_many_splits_and_files_that_are_gone_are_left_to_a_job(spark: SparkSession, pairs: str) -> None:
    spark.sql(f"ALTER TABLE {pairs} SET TBLPROPERTIES ('read.split.target-size' = '1')")
    for number in range(16):
        spark.sql(f"INSERT INTO {pairs} VALUES ('n', {number})")
    rows = spark.table(pairs)
    with job_reasons() as reasons:
        assert held_in_driver(rows) is None
    assert [reason.code for reason in reasons.take()] == [ReasonCode.READ_IN_MANY_SPLITS]
    spark.sql(f"ALTER TABLE {pairs} UNSET TBLPROPERTIES ('read.split.target-size')")
    rows = spark.table(pairs)
    assert held_in_driver(rows) is not None
    file = Path(rows.select("_file").first()["_file"].removeprefix("file:"))
    content = file.read_bytes()
    file.unlink()
    with job_reasons() as reasons, pytest.raises(Py4JJavaError, match=file.name):
        local_relation(rows)
    (reason, *_) = reasons.take()
    assert reason.code is ReasonCode.READ_FAILED
    assert reason.params["table"] == pairs
    assert file.name in reason.params["text"]
    file.write_bytes(content)


def test_a_plan_of_several_tasks_is_a_job(spark: SparkSession) -> None:
    query = "SELECT /*+ REPARTITION(2) */ * FROM VALUES ('b', 1.0D), ('a', 2.0D) AS t(k, v)"
    with job_reasons() as reasons:
        local_relation(spark.sql(query))
        local_relation(spark.sql("SELECT * FROM VALUES ('b', 1.0D), ('a', 2.0D) AS t(k, v) SORT BY v"))
    codes = [reason.code for reason in reasons.take()]
    assert codes == [ReasonCode.OPERATOR_OF_JOBS, ReasonCode.SEVERAL_TASKS]


@pytest.mark.usefixtures("held")
def test_the_first_rows_of_several_tasks_are_a_job(spark: SparkSession) -> None:
    query = "SELECT k, v FROM one ORDER BY v, k LIMIT 2"
    for rows, codes in (
        (spark.table("one").repartition(1), [ReasonCode.OPERATOR_OF_JOBS]),
        (spark.table("one"), [ReasonCode.OPERATOR_OF_JOBS]),
        (spark.table("one").coalesce(1), []),
    ):
        with job_reasons() as reasons:
            assert local_relation(spark.sql(query.replace("one", "{rows}"), rows=rows))[1] == 2
        assert [reason.code for reason in reasons.take()] == codes


def test_rows_of_a_shuffle_are_a_job(spark: SparkSession) -> None:
    """Whatever the operator: without its job the shuffle has no rows, and no error."""
    java_session, jvm = spark._jsparkSession, driver_scan._driver_scan()
    with tuned_session(spark, delta_rows=10), job_reasons() as reasons:
        for rows, here in ((spark.range(0, 9, 1, 1), True), (spark.range(9).repartition(1), False)):
            plan = rows._jdf.queryExecution().executedPlan()
            assert (jvm.runHere(java_session, plan, 10_000) is not None) == here
    assert [reason.code for reason in reasons.take()] == [ReasonCode.OPERATOR_OF_JOBS]


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT k, count(*) FROM one GROUP BY k", None),
        ("SELECT k FROM one", None),
        ("SELECT id, count(*) FROM range(9) GROUP BY id", ReasonCode.OPERATOR_OF_JOBS),
        ("SELECT count(*), k FROM one GROUP BY k UNION ALL SELECT count(*), k FROM other GROUP BY k", None),
        ("SELECT k, array_repeat(k, 100000) FROM one SORT BY v", ReasonCode.RESULT_LARGE),
    ],
)
def test_reasons_of_jobs_that_compute(
    spark: SparkSession, query: str, code: ReasonCode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_DRIVER_BYTES", 100_000)
    for table in ("one", "other"):
        spark.table(table).coalesce(1).createOrReplaceTempView(table)
    with tuned_session(spark, delta_rows=10), job_reasons() as reasons:
        before = jobs(spark)
        local_relation(spark.sql(query))
        started = jobs(spark) - before
    codes = [reason.code for reason in reasons.take()]
    assert codes == ([] if code is None else [code])
    assert bool(started) == (code is not None)


PLANS = [
    "SELECT a.k, b.v FROM one a JOIN other b ON a.k = b.k",
    "SELECT a.k, b.v FROM one a LEFT JOIN other b ON a.k <=> b.k AND a.v = b.v",
    "SELECT * FROM one a WHERE EXISTS (SELECT 1 FROM other b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT * FROM one a FULL JOIN other b ON a.v = b.v",
    "SELECT k, count(*), sum(v), avg(v), min(v), max(v), stddev(v) FROM one GROUP BY k",
    "SELECT k, collect_set(v), count(DISTINCT v), percentile(v, 0.5) FROM one GROUP BY k",
    "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v), lag(v) OVER (ORDER BY k, v) FROM one",
    "SELECT k, explode(array(v, v + 1)) FROM one",
    "SELECT * FROM one UNION ALL SELECT * FROM other",
    "SELECT DISTINCT k FROM one INTERSECT SELECT k FROM other",
    "SELECT k, v FROM one ORDER BY v DESC LIMIT 3",
    "SELECT ROLLUP_K, sum(v) FROM (SELECT k AS ROLLUP_K, v FROM one) GROUP BY ROLLUP(ROLLUP_K)",
    "SELECT date_format(timestamp_seconds(CAST(v AS BIGINT)), 'yyyy HH') FROM one WHERE NOT isnan(v)",
]
ROWS = "('a', 1.0D), ('a', double('NaN')), ('b', -0.0D), ('b', 0.0D), (NULL, 2.5D), ('ä', NULL), (NULL, NULL)"


@pytest.fixture
def held(spark: SparkSession) -> Iterator[None]:
    spark.sql(f"SELECT * FROM VALUES {ROWS} AS t(k, v)").createOrReplaceTempView("one")
    spark.sql(
        "SELECT * FROM VALUES ('b', 0.0D), (NULL, 2.5D), ('c', 9.0D) AS t(k, v)"
    ).createOrReplaceTempView("other")
    yield
    spark.catalog.dropTempView("one")
    spark.catalog.dropTempView("other")


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("query", PLANS)
@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "Europe/Berlin"])
def test_plans_over_held_rows_give_what_a_job_gives(spark: SparkSession, query: str, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        with tuned_session(spark, delta_rows=10):
            relation, rows = local_relation(spark.sql(query))
            here = bag(dataframe_of_plan(spark, relation))
        expected = bag(spark.sql(query))
        assert (here, rows) == (expected, sum(expected.values()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("held")
def test_a_join_of_held_rows_needs_no_job(spark: SparkSession) -> None:
    query = "SELECT /*+ SHUFFLE_HASH(b) */ a.k, sum(b.v) FROM one a JOIN other b ON a.k = b.k GROUP BY a.k"
    before = jobs(spark)
    with tuned_session(spark, delta_rows=10):
        for table in ("one", "other"):
            spark.table(table).coalesce(1).createOrReplaceTempView(table)
        assert local_relation(spark.sql(query))[1] == 1
    assert jobs(spark) == before


@pytest.mark.usefixtures("held")
def test_an_error_is_the_error_of_a_job(spark: SparkSession) -> None:
    for table in ("one", "other"):
        spark.table(table).coalesce(1).createOrReplaceTempView(table)
    query = (
        "SELECT /*+ SHUFFLE_HASH(b) */ a.k, CAST(a.v AS INT) / CAST(b.v AS INT) "
        "FROM one a JOIN other b ON a.k = b.k"
    )
    with (
        tuned_session(spark, delta_rows=10),
        job_reasons() as reasons,
        pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"),
    ):
        local_relation(spark.sql(query))
    assert [reason.code for reason in reasons.take()] == [ReasonCode.COMPUTING_FAILED]


@pytest.mark.usefixtures("held")
def test_nothing_of_a_task_is_left_in_the_thread(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    with tuned_session(spark, delta_rows=10):
        local_relation(spark.sql("SELECT k, count(*) FROM one GROUP BY k"))
        assert jvm.org.apache.spark.TaskContext.get() is None
        with pytest.raises(PySparkException):
            local_relation(spark.sql("SELECT raise_error(k) FROM one ORDER BY k"))
        assert jvm.org.apache.spark.TaskContext.get() is None
    for name in ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"):
        assert spark.conf.get(name) in ("true", "FALLBACK")


def test_small_tables_are_read_once_a_version(spark: SparkSession, pairs: str) -> None:
    tables = driver_scan.SmallTables()
    name, reads = TableName.parse(pairs), count()

    def read() -> DataFrame:
        next(reads)
        return spark.table(pairs)

    for _ in range(3):
        assert sum(bag(tables.rows(name, "1", ["v"], read)).values()) == 5
    assert next(reads) == 1
    assert tables.rows(name, "1", ["k"], read).columns == ["k", "v"]
    assert tables.rows(name, "2", ["v", "unknown"], read).columns == ["v"]
    assert next(reads) == 4


@pytest.mark.parametrize(
    ("appended", "rows"),
    [
        ("SELECT * FROM VALUES ('z', 9.0D), (NULL, NULL) AS t(k, v)", 7),
        ("SELECT 'z' AS k, 9.0D AS v", 6),
        ("SELECT * FROM VALUES ('z', 9.0D) AS t(k, v) WHERE v < 0", 5),
        ("SELECT 'z' AS k, 9.0F AS v", None),
        ("SELECT 'z' AS k, 9.0D AS w", None),
        ("SELECT repeat('z', 2000000) AS k, 9.0D AS v", None),
        ("SELECT CAST(id AS STRING) AS k, CAST(id AS DOUBLE) AS v FROM range(9999)", None),
    ],
)
def test_a_version_with_appended_rows_is_not_read(
    spark: SparkSession, pairs: str, appended: str, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SMALL_TABLE_BYTES", 1_000_000)
    tables, name, reads = driver_scan.SmallTables(), TableName.parse(pairs), count()
    added = dataframe_of_plan(spark, local_relation(spark.sql(appended))[0])

    def read() -> DataFrame:
        next(reads)
        return spark.table(pairs)

    tables.extend(name, "1", "2", added)
    before = bag(tables.rows(name, "1", ["k", "v"], read))
    tables.extend(name, "1", "2", added)
    assert bag(tables.rows(name, "1", ["k", "v"], read)) == before
    assert next(reads) == 1
    extended = bag(tables.rows(name, "2", ["k", "v"], read))
    assert extended == (before + bag(added) if rows is not None else before)
    assert sum(extended.values()) == (rows or 5)
    assert next(reads) == (2 if rows is not None else 3)


def test_a_table_too_large_to_be_kept_is_read_by_the_driver_each_time(
    spark: SparkSession, pairs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SMALL_TABLE_BYTES", 100)
    tables, name, reads = driver_scan.SmallTables(), TableName.parse(pairs), count()

    def read() -> DataFrame:
        next(reads)
        return spark.table(pairs)

    for _ in range(2):
        before = jobs(spark)
        assert local_relation(tables.rows(name, "1", ["k", "v"], read))[1] == 5
        assert jobs(spark) == before
    assert next(reads) == 2


def test_reasons_without_a_number_say_so(spark: SparkSession) -> None:
    with job_reasons() as reasons:
        note_many_rows("lake.a.b", None)
        note_many_rows("lake.a.c", 7)
        computed_on_executors(spark.range(3).toDF("n"))
    codes = [reason.code for reason in reasons.take()]
    assert codes == [ReasonCode.ROWS_NOT_COUNTED, ReasonCode.READ_MANY_ROWS, ReasonCode.RESULT_NOT_COUNTED]


def jobs(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
