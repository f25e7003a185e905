"""Definition files see a classic session that behaves as Spark Connect does in `spark-pipelines`."""

from __future__ import annotations

import os
import re
import sys

import pytest
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    FloatType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
)
from tests.support.harness import Pipeline

from tautochrone.project.deferred_frames import _FRAME_METHODS, _REFUSED_METHODS, _WITHOUT_EFFECT
from tautochrone.project.forbidden_calls import float_converter
from tautochrone.project.loading import load_definitions
from tautochrone.project.spec import load_spec
from tautochrone.spark.session.factory import _forget_spark_connect

from .conftest import ProjectMaker

DEFINITIONS = """
    import os
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession, functions as F
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

    spark = SparkSession.builder.getOrCreate()
    assert SparkSession.active() is spark is SparkSession.getActiveSession()

    class Squares(DataSource):
        @classmethod
        def name(cls):
            return "squares"

        def schema(self):
            return "n INT, square INT"

        def reader(self, schema):
            return SquaresReader()

    class SquaresReader(DataSourceReader):
        def read(self, partition):
            yield from ((n, n * n) for n in range(3))

    spark.dataSource.register(Squares)

    # `a` is defined further down.
    BASE = spark.read.table("a")
    BIG = BASE.where(BASE["id"] > LIMIT)
    COUNTS = BIG.groupBy(F.expr("id % 2").alias("odd")).count()
    BY_SQL = spark.sql("SELECT max(id) AS id FROM a")
    FILE = spark.read.option("header", True).csv("FOLDER/names.csv")
    JOINED = BASE.join(FILE, BASE.id == FILE.key.cast("int"), "left").join(spark.range(2), "id", "semi")
    # Rows that the file asks for while it is imported.
    NAMES = [row.name for row in FILE.collect()]
    # Of a table that exists already.
    REGIONS = spark.table("ref.regions").select(F.collect_list("name")).collect()[0][0]
    assert FILE.columns == ["key", "name"]

    @dp.table
    def a():
        lines = spark.readStream.schema("value STRING").text("FOLDER/in")
        return lines.selectExpr("CAST(value AS BIGINT) id")

    for region in REGIONS:
        @dp.materialized_view(name=f"in_{region}")
        def in_region(region=region):
            return spark.table("ref.regions").where(F.col("name") == region)

    @dp.materialized_view
    def base():
        return BASE

    @dp.materialized_view
    def counts():
        return COUNTS

    @dp.materialized_view
    def joined():
        highest = BY_SQL.withColumnRenamed("id", "highest")
        return JOINED.crossJoin(highest).withColumn("names", F.lit(str(NAMES)))

    @dp.materialized_view
    def same_frame():
        assert BASE.sparkSession is spark
        return BASE.join(FILE, BASE.id == FILE.key.cast("int")).select(BASE.id, FILE["name"])

    @dp.materialized_view
    def floats():
        schema = StructType([StructField("d", DoubleType()), StructField("f", FloatType())])
        rows = spark.createDataFrame([(1, 2), (3, None)], schema)
        return rows.union(spark.createDataFrame([{"d": 4, "f": 5.5}], "d DOUBLE, f FLOAT"))

    @dp.materialized_view
    def squares():
        return spark.read.format("squares").load()
"""


@pytest.mark.spark
def test_definitions_behave_as_on_connect(pipeline: Pipeline) -> None:
    text = DEFINITIONS.replace("FOLDER", str(pipeline.folder))
    pipeline.session.sql("CREATE NAMESPACE lake.ref")
    pipeline.session.sql("CREATE TABLE lake.ref.regions USING iceberg AS SELECT 'asia' AS name")
    pipeline.write("definitions/all.py", text.replace("LIMIT", "1"))
    pipeline.write("names.csv", "key,name\n1,one\n")
    pipeline.write("in/1.txt", "1\n2\n")
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT odd, count FROM counts") == [(0, 1)]
    pipeline.write("in/2.txt", "3\n4\n")
    # A frame of the import belongs to the definitions that use it.
    pipeline.write("definitions/all.py", text.replace("LIMIT", "2"))
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT id FROM base") == [(1,), (2,), (3,), (4,)]
    assert pipeline.query("SELECT odd, count FROM counts") == [(0, 1), (1, 1)]
    assert pipeline.query("SELECT * FROM joined") == [(1, "1", "one", 4, "['one']")]
    assert pipeline.query("SELECT * FROM same_frame") == [(1, "one")]
    assert sorted(map(str, pipeline.query("SELECT * FROM floats WHERE f IS NOT NULL"))) == [
        "(1.0, 2.0)",
        "(4.0, 5.5)",
    ]
    assert pipeline.query("SELECT * FROM in_asia") == [("asia",)]
    assert pipeline.query("SELECT * FROM squares") == [(0, 0), (1, 1), (2, 4)]


@pytest.mark.spark
def test_views_are_registered_anew_in_a_session(project: ProjectMaker) -> None:
    text = """
        from itertools import count
        from pyspark import pipelines as dp
        from pyspark.sql import functions as F

        numbers = count()

        @dp.temporary_view
        def above():
            return spark.table("below")

        @dp.temporary_view
        def below():
            return spark.range(1).select(F.lit(next(numbers)).alias("number"))

        @dp.materialized_view
        def m():
            return spark.table("above")
    """
    definitions = project.load({"defs/a.py": text})
    session = project.spark.newSession()
    for number in range(2):
        definitions.prepare(session)
        assert [session.table(view).head() for view in ("above", "below")] == [(number,), (number,)]


FRAMES = """
    from pyspark import pipelines as dp
    from pyspark.sql import functions as F

    rows = [[1, 200], [2, 50]]
    ORDERS = spark.createDataFrame(rows, "id BIGINT, amount BIGINT")
    rows[0][1] = 0
    rows.append([3, 300])
    ZIPPED = spark.createDataFrame(zip([1, 3], ["one", "three"]), "id BIGINT, name STRING")
    columns = ["id"]
    IDS = ORDERS.select(columns)
    columns.append("amount")

    NUMBERS = spark.sql("SELECT id, CAST(NULL AS BIGINT) none FROM numbers").cache()
    BY_SQL = spark.sql("SELECT max(id) + 1 AS next FROM {n}", n=NUMBERS)
    FLOATS = spark.createDataFrame([(1,)], "d DOUBLE")
    FREE = ORDERS.withColumn("amount", F.lit(0))
    SAME = ORDERS.drop("other")
    VIEWS = {
        "orders": ORDERS,
        "ids": IDS,
        "old_column": FREE.where(ORDERS["amount"] > 100),
        "new_column": FREE.where(FREE["amount"] > 100),
        "numbers": spark.range(2),
        "filled": NUMBERS.persist().na.fill(7),
        "described": ORDERS.describe("id").where("summary = 'max'").select("id"),
        "broadcast": ORDERS.join(F.broadcast(ZIPPED), "id").select("name"),
        "broadcast_by_keyword": ORDERS.join(F.broadcast(df=ZIPPED), "id").select("name"),
        "by_sql": BY_SQL,
        "same_plan": SAME.where(SAME.id > 1).where(ORDERS.id < 3),
        "joined": ORDERS.join(ZIPPED, ORDERS.id == ZIPPED.id).select(ORDERS["*"], ZIPPED[1], ZIPPED.id),
        "joined_by_function": ORDERS.join(ZIPPED, ORDERS.id == ZIPPED.id).groupBy(ZIPPED["id"]).count(),
    }

    for name in VIEWS:
        @dp.temporary_view(name=name)
        def view():
            return VIEWS[name]

    @dp.temporary_view
    def by_sql_in_query():
        return spark.sql("SELECT * FROM {f}", f=FLOATS)

    @dp.materialized_view
    def stored():
        return ORDERS
"""


@pytest.mark.spark
def test_frames_of_the_import_keep_their_arguments_and_columns(project: ProjectMaker) -> None:
    definitions = project.load({"defs/a.py": FRAMES})
    session = project.spark.newSession()

    def rows(view: str) -> list[tuple[object, ...]]:
        return sorted(map(tuple, session.table(view).collect()))

    # Each time the frames are built again.
    definitions.prepare(session)
    definitions.prepare(session)
    assert rows("orders") == [(1, 200), (2, 50)]
    assert rows("ids") == [(1,), (2,)]
    assert rows("old_column") == [(1, 0)]
    assert rows("new_column") == []
    assert rows("filled") == [(0, 7), (1, 7)]
    assert rows("described") == [("2",)]
    assert rows("broadcast") == [("one",)]
    assert rows("broadcast_by_keyword") == [("one",)]
    assert rows("by_sql") == [(2,)]
    assert rows("by_sql_in_query") == [(1.0,)]
    assert rows("same_plan") == [(2, 50)]
    assert rows("joined") == [(1, 200, "one", 1)]
    assert rows("joined_by_function") == [(1, 1)]
    for call in ("checkpoint()", 'stat.crosstab("id", "amount")', "randomSplit([0.5, 0.5])"):
        error = project.error({"defs/a.py": FRAMES + f"\n    ORDERS.{call}\n"})
        assert error.error_class == "FRAME_OF_IMPORT_COMBINED"


USED = """
    from datetime import date
    from pyspark import pipelines as dp
    from pyspark.sql import functions as F
    import helpers

    SINCE = date(2026, 1, 1)

    def plus(value):
        return value + 1

    @F.udf("bigint")
    def next_number(value):
        return plus(value)

    def rows(batches):
        yield from helpers.kept(batches)

    BASE = spark.range(3).where(F.lit(SINCE) < F.current_date()).mapInPandas(rows, "id BIGINT")
    NEXT = BASE.select(next_number(BASE.id))

    @dp.materialized_view
    def in_frame():
        return NEXT

    @dp.materialized_view
    def in_query():
        return helpers.base(spark).where(F.lit(SINCE).isNotNull())
"""
HELPERS = """
    def kept(batches):
        return batches

    def base(spark):
        return spark.range(2)
"""


@pytest.mark.spark
def test_changes_of_what_a_frame_uses_change_the_definition(project: ProjectMaker) -> None:
    def texts(old: str = "", new: str = "") -> list[str]:
        files = {"defs/a.py": USED.replace(old, new), "helpers.py": HELPERS.replace(old, new)}
        return [flow.fingerprint for flow in project.graph(files).flows.values()]

    before = texts()

    def changed(old: str, new: str) -> list[bool]:
        return [text != other for text, other in zip(texts(old, new), before, strict=True)]

    assert changed("value + 1", "value + 22") == [True, False]
    assert changed("return batches", "return list(batches)") == [True, False]
    assert changed("range(2)", "range(44)") == [False, True]
    assert changed("2026, 1, 1", "2026, 1, 12") == [True, True]


@pytest.mark.spark
def test_a_change_that_keeps_size_and_second_is_loaded(
    project: ProjectMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = project.folder / "defs/a.py"

    def name(view: str) -> str:
        text = f"from pyspark import pipelines as dp\n@dp.materialized_view\ndef {view}():\n    return None\n"
        project.write({"defs/a.py": text})
        os.utime(file, (1_000_000_000, 1_000_000_000))
        (flow,) = load_definitions(load_spec(project.folder / "spark-pipeline.yml"), project.spark).flows
        return flow.name

    assert (name("a"), name("b")) == ("a", "b")


def test_every_method_that_returns_a_frame_is_recorded_or_refused() -> None:
    known = _FRAME_METHODS | _REFUSED_METHODS | _WITHOUT_EFFECT | {"transform", "metadataColumn"}
    returning = {
        name
        for name, method in vars(DataFrame).items()
        if not name.startswith("_")
        and re.search(r"DataFrame\b|Column\b", str(getattr(method, "__annotations__", {}).get("return")))
    }
    assert "select" in returning
    assert not returning - known


def test_whole_numbers_of_float_columns_become_floats() -> None:
    nested = StructType(
        [
            StructField("name", StringType()),
            StructField("pairs", ArrayType(MapType(StringType(), DoubleType()))),
            StructField("f", FloatType()),
        ]
    )
    convert = float_converter(nested)
    assert convert is not None
    assert repr(convert(Row(name="1", pairs=[{"a": 1}, None], f=2))) == "('1', [{'a': 1.0}, None], 2.0)"
    assert repr(convert({"f": 3, "name": 4})) == "{'f': 3.0, 'name': 4}"
    assert convert(None) is None
    assert repr(convert(("x", None, True))) == "('x', None, True)"
    assert float_converter(StringType()) is None


def test_variables_of_spark_connect_are_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.setenv(name, "sc://elsewhere")
    _forget_spark_connect()
    assert "SPARK_REMOTE" not in os.environ
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    assert "SPARK_REMOTE is ignored" in caplog.text
