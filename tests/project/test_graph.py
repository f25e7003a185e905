"""Whole projects, resolved over empty tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.analyse import analyse
from tautochrone.project.loading import load_definitions
from tautochrone.project.spec import init_project, load_spec

from .conftest import ProjectMaker, schema_of

pytestmark = pytest.mark.spark

Name = Callable[[str], TableName]


def test_the_sample_of_init(tmp_path: Path, spark: SparkSession, name: Name) -> None:
    spec = load_spec(init_project(tmp_path, "demo") / "spark-pipeline.yml")
    graph = analyse(load_definitions(spec, spark), spark, "lake", lambda _: None)
    orders, sales = name("orders"), name("sales")
    assert graph.order == (orders, sales)
    assert graph.inputs(sales).batch == {orders}
    assert graph.flows_of(orders)[0].streaming
    assert graph.schemas[sales].simpleString() == "struct<product:string,sold:bigint,revenue:decimal(19,2)>"
    assert spark.sql("SHOW TABLES IN lake.default").count() == 0


def test_the_sample_of_spark(project: ProjectMaker, name: Name) -> None:
    """The sample project of `spark-pipelines init`."""
    python = """
        from pyspark import pipelines as dp
        from pyspark.sql import DataFrame, SparkSession

        spark = SparkSession.active()

        @dp.materialized_view
        def example_python_materialized_view() -> DataFrame:
            return spark.range(10)
    """
    sql = """
        CREATE MATERIALIZED VIEW example_sql_materialized_view AS
        SELECT id FROM example_python_materialized_view
        WHERE id % 2 = 0
    """
    graph = project.graph({"defs/a.py": python, "defs/b.sql": sql})
    of_python, of_sql = name("example_python_materialized_view"), name("example_sql_materialized_view")
    assert graph.order == (of_python, of_sql)
    assert graph.inputs(of_sql).batch == {of_python}
    # A range is part of the definition, not an input.
    assert graph.inputs(of_python).unversioned == ()
    assert graph.schemas[of_sql].simpleString() == "struct<id:bigint>"
    flow = graph.flows_of(of_sql)[0]
    assert flow.linear
    assert flow.deterministic
    assert not flow.streaming
    assert not graph.flows_of(of_python)[0].linear


def test_table_of_the_lake_in_the_database_live_is_read(project: ProjectMaker, name: Name) -> None:
    project.external[name("live.total")] = schema_of("z INT")
    graph = project.sql(
        """
        CREATE MATERIALIZED VIEW total AS SELECT 1 AS a;
        CREATE MATERIALIZED VIEW of_lake AS SELECT live.total.z FROM live.total;
        CREATE MATERIALIZED VIEW of_pipeline AS SELECT LIVE.total.a FROM LIVE.total;
        """
    )
    assert graph.inputs(name("of_lake")).batch == {name("live.total")}
    assert graph.inputs(name("of_pipeline")).batch == {name("total")}


def test_statements_of_every_kind(project: ProjectMaker, name: Name) -> None:
    graph = project.sql(
        """
        SET my.key = 7;
        CREATE STREAMING TABLE raw AS SELECT *, timestamp AS ts FROM STREAM source;
        CREATE STREAMING TABLE typed (a INT NOT NULL COMMENT 'it''s', b STRING)
          USING iceberg PARTITIONED BY (b) COMMENT 'c' TBLPROPERTIES ('k' = 'v');
        CREATE FLOW fill AS INSERT INTO typed BY NAME SELECT CAST(id AS INT) a, v b FROM STREAM(source);
        CREATE FLOW fill_more AS INSERT INTO typed BY NAME SELECT 1 a, v b FROM STREAM source;
        CREATE MATERIALIZED VIEW agg CLUSTER BY (v) AS
          WITH q AS (SELECT v, count(*) n FROM raw GROUP BY v) SELECT * FROM q;
        CREATE VIEW persisted (x, y) COMMENT 'z' AS SELECT a, b FROM typed;
        CREATE TEMPORARY VIEW temp AS SELECT * FROM persisted;
        USE SCHEMA gold;
        CREATE MATERIALIZED VIEW top AS SELECT x, max(y) m FROM temp GROUP BY x
        """
        if project.external.update({name("source"): schema_of("id bigint, v string, timestamp timestamp")})
        is None
        else ""
    )
    datasets = graph.definitions.datasets
    typed = datasets[name("typed")]
    assert typed.kind is DatasetKind.STREAMING_TABLE
    assert typed.schema_ddl == "`a` INT NOT NULL COMMENT 'it\\'s', `b` STRING"
    assert (typed.format, typed.partition_columns, typed.comment) == ("iceberg", ("b",), "c")
    assert dict(typed.properties) == {"k": "v"}
    assert typed.location.line == 4
    assert datasets[name("agg")].cluster_columns == ("v",)
    assert [flow.name for flow in graph.definitions.flows_of(name("typed"))] == ["fill", "fill_more"]
    assert all(flow.conf["my.key"] == "7" for flow in graph.definitions.flows)
    assert graph.inputs(name("raw")).stream == {name("source")}
    assert graph.inputs(name("gold.top")).batch == {name("typed")}
    assert graph.flows["gold.top"].views == {name("persisted"), name("temp")}
    assert graph.schemas[name("persisted")].fieldNames() == ["x", "y"]
    assert graph.order.index(name("typed")) < graph.order.index(name("gold.top"))
    assert graph.external == {name("source")}
    assert graph.downstream(name("source")) == (name("raw"), name("typed"), name("agg"), name("gold.top"))


def test_decorators(project: ProjectMaker, name: Name) -> None:
    graph = project.python(
        """
        from pyspark.sql import SparkSession, functions as F
        from pyspark.sql.types import LongType, StructField, StructType

        session = SparkSession.builder.getOrCreate()
        print("prints must not break --json")

        @dp.table(comment="rates", table_properties={"a": "b"}, partition_cols=["value"])
        def rates():
            print("nor may these")
            return spark.readStream.format("rate").load()

        dp.create_streaming_table("merged", schema=StructType([StructField("value", LongType())]))

        @dp.append_flow(target="merged", name="one")
        def _():
            return session.readStream.table("rates").select("value")

        @dp.append_flow(target="merged")
        def two():
            return SparkSession.active().sql("SELECT value FROM STREAM rates WHERE value > 5")

        for limit in (1, 2):
            @dp.materialized_view(name=f"above_{limit}")
            def view():
                return spark.table("merged").where(F.col("value") > limit)

        def make(limit):
            @dp.materialized_view(name=f"below_{limit}", spark_conf={"spark.sql.ansi.enabled": "false"})
            def view():
                merged = spark.read.table("spark_catalog.default.merged")
                return merged.join(spark.table("recent"), "value").where(F.col("value") < limit)

        make(10)

        @dp.temporary_view
        def recent():
            frame = spark.table("merged")
            return spark.sql("SELECT * FROM {frame}", frame=frame)

        dp.create_sink("out", format="kafka", options={"topic": "t"})

        @dp.append_flow(target="out")
        def to_kafka():
            return spark.readStream.table("merged").selectExpr("CAST(value AS STRING) value")
        """
    )
    assert graph.inputs(name("rates")).external_streams
    assert graph.inputs(name("merged")).stream == {name("rates")}
    assert graph.schemas[name("merged")].simpleString() == "struct<value:bigint>"
    assert [flow.name for flow in graph.definitions.flows_of(name("merged"))] == ["one", "two"]
    assert graph.flows["above_1"].fingerprint != graph.flows["above_2"].fingerprint
    frame = graph.definitions.flows_of(name("above_1"))[0]
    assert frame.location.file == "defs/a.py"
    assert graph.inputs(name("below_10")).batch == {name("merged")}
    assert graph.flows["below_10"].flow.conf["spark.sql.ansi.enabled"] == "false"
    assert graph.definitions.sinks[name("out")].options == {"topic": "t"}
    assert graph.readers(name("merged")) == (name("above_1"), name("above_2"), name("below_10"), name("out"))


def test_loop_variable_has_the_value_at_registration(project: ProjectMaker, name: Name) -> None:
    graph = project.python(
        """
        for column in ("a", "b"):
            @dp.materialized_view(name=f"only_{column}")
            def view():
                return helper()

        """.replace(
            "for column",
            "def helper():\n            return spark.range(1).toDF(column)\n\n        for column",
        )
    )
    assert graph.schemas[name("only_a")].fieldNames() == ["a"]
    assert graph.schemas[name("only_b")].fieldNames() == ["b"]


def test_user_prints_go_to_stderr(project: ProjectMaker, capsys: pytest.CaptureFixture[str]) -> None:
    project.python(
        """
        print("while importing")
        @dp.materialized_view
        def m():
            print("while evaluating")
            return spark.range(3)
        """
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "while importing" in captured.err
    assert "while evaluating" in captured.err


def test_siblings_parameters_and_relative_files(
    project: ProjectMaker, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATE", "3")
    graph = project.graph(
        {
            "defs/helpers.py": "from pyspark.sql import SparkSession\n"
            "spark = SparkSession.active()\n"
            "def rows(n):\n    return spark.range(n)\n",
            "names.txt": "x",
            "lib/shared.py": "K = 1\n",
            "defs/m.py": """
                import os
                from pyspark import pipelines as dp
                from pyspark.sql import functions as F
                from helpers import rows
                from lib.shared import K

                PARAMETER = spark.conf.get("my.parameter")
                RATE = int(os.environ["RATE"])
                COLUMN = open("names.txt").read()

                @F.udf("long")
                def plus(x):
                    return x + K

                @dp.materialized_view
                def m():
                    assert spark.conf.get("my.parameter") == PARAMETER
                    return rows(RATE).select(plus("id").alias(COLUMN), F.lit(PARAMETER).alias("p"))
            """,
        },
        "configuration:\n  my.parameter: 'on'\n",
    )
    assert graph.schemas[name("m")].fieldNames() == ["x", "p"]
    frame = graph.flows["m"].flow.evaluate(project.spark)
    assert [row.x for row in frame.collect()] == [1, 2, 3]


def test_tables_that_spark_alone_would_not_name(project: ProjectMaker, name: Name) -> None:
    """Spark's analyser loops over a missing table below a subquery in a window function."""
    query = """
        WITH c AS (SELECT id FROM later)
        SELECT id, rank() OVER (PARTITION BY k ORDER BY x - (SELECT max(id) FROM c), id)
                   + (SELECT count(*) FROM last) AS r
        FROM first
    """
    columns_by_table = {"first": "id, id % 2 AS k, id * 2 AS x", "last": "id", "later": "id"}
    tables = "".join(
        f"CREATE MATERIALIZED VIEW {t} AS SELECT {columns} FROM range(9);"
        for t, columns in columns_by_table.items()
    )
    python = """
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession

        spark = SparkSession.active()

        @dp.materialized_view
        def b():
            return spark.sql(QUERY)
    """
    python = textwrap.dedent(python).replace("QUERY", repr(query))
    graph = project.graph(
        {"defs/1.sql": f"CREATE MATERIALIZED VIEW a AS {query}", "defs/2.py": python, "defs/3.sql": tables}
    )
    for view in ("a", "b"):
        assert graph.inputs(name(view)).batch == {name(table) for table in columns_by_table}


def test_views_in_any_order_and_qualified(project: ProjectMaker, name: Name) -> None:
    graph = project.sql(
        """
        CREATE MATERIALIZED VIEW m AS SELECT silver.late.id
          FROM silver.late JOIN lake.default.early USING (id);
        CREATE VIEW early AS SELECT * FROM hidden;
        CREATE TEMPORARY VIEW hidden AS SELECT * FROM t WHERE id IN (SELECT id FROM `other-table`);
        USE silver;
        CREATE VIEW late AS SELECT * FROM spark_catalog.default.t;
        """.replace("USE silver", "CREATE MATERIALIZED VIEW t AS SELECT id FROM RANGE(3); USE silver")
        if project.external.update({name("other-table"): schema_of("id int")}) is None
        else ""
    )
    assert graph.inputs(name("m")).batch == {name("t"), name("other-table")}
    assert graph.flows["m"].views == {name("silver.late"), name("early"), name("hidden")}


def test_views_in_real_sessions(project: ProjectMaker, name: Name, spark: SparkSession) -> None:
    definitions = project.load(
        {
            "defs/a.sql": """
            CREATE MATERIALIZED VIEW m AS SELECT * FROM default.second;
            CREATE VIEW second AS SELECT id + 1 AS id FROM first;
            CREATE TEMPORARY VIEW first AS SELECT * FROM real_input;
            """
        }
    )
    spark.sql("CREATE TABLE lake.default.real_input AS SELECT id FROM RANGE(3)")
    try:
        for session in (spark.newSession(), spark.newSession()):
            definitions.prepare(session)
            frame = definitions.flows_of(name("m"))[0].evaluate(session)
            assert frame.sparkSession is session
            assert sorted(row.id for row in frame.collect()) == [1, 2, 3]
    finally:
        spark.sql("DROP TABLE lake.default.real_input PURGE")


def test_a_temporary_view_may_read_the_table_of_its_own_name(project: ProjectMaker, name: Name) -> None:
    project.external[name("events")] = schema_of("id BIGINT")
    graph = project.python("""
        @dp.temporary_view
        def events():
            return spark.read.table("lake.default.events").where("id > 1")

        @dp.materialized_view
        def all_ids():
            return spark.read.table("events").unionAll(spark.read.table("default.events"))
        """)
    assert graph.external == {name("events")}
    assert graph.inputs(name("all_ids")).batch == {name("events")}
    assert name("events") not in graph.definitions.datasets


def test_a_temporary_view_is_in_no_database(project: ProjectMaker) -> None:
    error = project.python_error("""
        @dp.temporary_view
        def recent():
            return spark.range(3)

        @dp.materialized_view
        def ids():
            return spark.read.table("default.recent")
        """)
    assert error.error_class == "TABLE_OR_VIEW_NOT_FOUND"
    assert "recent is a temporary view" in str(error.hint)


def test_a_dataset_of_a_capture_is_where_the_project_calls_it(project: ProjectMaker, name: Name) -> None:
    definitions = project.load(
        {
            "defs/a.py": """
            from tautochrone.sources.capture.definitions import define_log

            def capture(name):
                define_log(name, "captured_log", "a log", None, "full")

            capture("shop")
            """
        }
    )
    log = name("shop_log")
    locations = definitions.datasets[log].location, definitions.flows_of(log)[0].location
    assert list(map(str, locations)) == ["defs/a.py:5", "defs/a.py:5"]
