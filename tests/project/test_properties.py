"""Properties of a flow from its analysed plan: linear, deterministic, stateful, fingerprint, threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.model.names import NOW, TableName, is_file_table, today

from .conftest import ProjectMaker, schema_of

pytestmark = pytest.mark.spark

Name = Callable[[str], TableName]


@pytest.mark.parametrize(
    ("query", "linear", "reason"),
    [
        ("SELECT a + 1 AS b FROM t WHERE a > 2 ORDER BY b", True, ""),
        ("SELECT a FROM t UNION ALL SELECT a FROM t", True, ""),
        ("SELECT explode(array(a, 1)) FROM t", True, ""),
        ("SELECT DISTINCT a FROM t", False, "Distinct"),
        ("SELECT count(*) FROM t", False, "Aggregate"),
        ("SELECT a FROM t LIMIT 3", False, "GlobalLimit"),
        ("SELECT a, row_number() OVER (ORDER BY a) FROM t", False, "Window"),
        ("SELECT a FROM t WHERE a = (SELECT max(a) FROM t)", False, "subquery in an expression"),
        ("SELECT a FROM t UNION ALL SELECT 1", False, "local data is no lake table"),
        ("SELECT a, rand() AS r FROM t", False, "rand()"),
        ("SELECT a FROM t JOIN t AS u USING (a)", False, "Join"),
    ],
)
def test_linear(project: ProjectMaker, name: Name, query: str, linear: bool, reason: str) -> None:
    project.external[name("t")] = schema_of("a int, ts timestamp")
    flow = project.sql(f"CREATE MATERIALIZED VIEW m AS {query}").flows["m"]
    assert (flow.linear, flow.linear_reason) == (linear, reason)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a", ""),
        ("now() - INTERVAL 1 DAY", ""),
        ("uuid()", "uuid()"),
        ("(SELECT max(r) FROM (SELECT rand() AS r FROM t))", "rand()"),
        ("current_database()", ""),
    ],
)
def test_deterministic(project: ProjectMaker, name: Name, expression: str, reason: str) -> None:
    project.external[name("t")] = schema_of("a int, ts timestamp")
    flow = project.sql(f"CREATE MATERIALIZED VIEW m AS SELECT {expression} AS x FROM t").flows["m"]
    assert (flow.deterministic, flow.deterministic_reason) == (not reason, reason)


@pytest.mark.parametrize(
    ("expression", "clocks"),
    [
        ("current_timestamp()", {NOW}),
        ("now() - INTERVAL 1 DAY", {NOW}),
        ("localtimestamp()", {NOW}),
        ("date_diff(current_date(), ts)", {today("UTC")}),
        (
            "CASE WHEN EXISTS (SELECT 1 FROM t AS u WHERE u.ts > now()) THEN curdate() END",
            {NOW, today("UTC")},
        ),
        ("current_database()", set()),
    ],
)
def test_clocks(project: ProjectMaker, name: Name, expression: str, clocks: set[TableName]) -> None:
    project.external[name("t")] = schema_of("a int, ts timestamp")
    flow = project.sql(f"CREATE MATERIALIZED VIEW m AS SELECT {expression} AS x FROM t").flows["m"]
    assert flow.inputs.clocks == clocks
    assert flow.linear is not bool(clocks)


@pytest.mark.parametrize(
    ("query", "stateful"),
    [
        ("SELECT a FROM STREAM t", ""),
        ("SELECT s.a FROM STREAM t AS s JOIN u ON s.a = u.a", ""),
        ("SELECT DISTINCT a FROM STREAM t", "Distinct"),
        ("SELECT s.a FROM STREAM t AS s JOIN STREAM u AS r ON s.a = r.a", "stream-stream Join"),
        (
            "SELECT window(ts, '1 minute') w, count(*) n FROM STREAM t "
            "WATERMARK ts DELAY OF INTERVAL 1 MINUTE "
            "GROUP BY window(ts, '1 minute')",
            "Aggregate",
        ),
    ],
)
def test_stateful(project: ProjectMaker, name: Name, query: str, stateful: str) -> None:
    project.external[name("t")] = project.external[name("u")] = schema_of("a int, ts timestamp")
    flow = project.sql(f"CREATE STREAMING TABLE s AS {query}").flows["s"]
    assert flow.streaming
    assert flow.stateful_reason == stateful


def test_types_as_the_lake_stores_them(project: ProjectMaker, name: Name) -> None:
    graph = project.sql(
        "CREATE MATERIALIZED VIEW m AS SELECT CAST(1 AS TINYINT) a, CAST(1 AS SMALLINT) b, "
        "CAST('x' AS CHAR(3)) c, parse_json('1') v, NULL n, named_struct('x', 1Y) s"
    )
    types = {field.name: field.dataType.simpleString() for field in graph.schemas[name("m")]}
    assert types == {"a": "int", "b": "int", "c": "string", "v": "variant", "n": "void", "s": "struct<x:int>"}
    assert graph.flows["m"].schema["a"].dataType.simpleString() == "tinyint"


def test_files_are_inputs_by_the_table_of_their_rows(project: ProjectMaker, name: Name) -> None:
    (project.folder / "data.csv").write_text("a,b\n1,2\n")
    graph = project.python(
        f"""
        def reader(**options):
            return spark.read.options(header=True, inferSchema=True, **options)

        @dp.materialized_view
        def m():
            return reader().csv("{project.folder}/data.csv")

        @dp.materialized_view
        def n():
            return reader().csv("{project.folder}/data.csv").groupBy("a").count()

        @dp.materialized_view
        def strict():
            return reader(mode="DROPMALFORMED").csv("{project.folder}/data.csv").select("a")

        @dp.materialized_view
        def located():
            return reader().csv("{project.folder}/data.csv").select("_metadata.file_name")
        """
    )
    (table,) = graph.inputs(name("m")).batch
    assert is_file_table(table)
    assert table.table.startswith("files__data_csv__")
    assert graph.inputs(name("n")).batch == {table}
    assert graph.inputs(name("m")).unversioned == ()
    assert graph.flows["m"].linear
    source = f"csv:{project.folder}/data.csv"
    assert graph.inputs(name("strict")).unversioned == (
        f"{source} (which rows are malformed depends on the columns that the query reads)",
    )
    assert graph.inputs(name("located")).unversioned == (f"{source} (the query reads metadata of the files)",)


def test_fingerprint_ignores_layout_only(project: ProjectMaker) -> None:
    def fingerprint(text: str) -> str:
        return project.sql(text).flows["m"].fingerprint

    first = fingerprint("CREATE MATERIALIZED VIEW m AS SELECT 1 AS a")
    assert first == fingerprint("-- c\nCREATE MATERIALIZED VIEW m AS\n\n  SELECT 1 AS /* b */ a;")
    assert first != fingerprint("CREATE MATERIALIZED VIEW m AS SELECT 2 AS a")
    policy = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'full')"
    assert first == fingerprint(f"CREATE MATERIALIZED VIEW m COMMENT 'x' {policy} AS SELECT 1 AS a")
    assert first != fingerprint("CREATE MATERIALIZED VIEW m PARTITIONED BY (a) AS SELECT 1 AS a")
    over_view = "CREATE MATERIALIZED VIEW m AS SELECT * FROM v; CREATE TEMPORARY VIEW v AS SELECT {} AS a"
    assert fingerprint(over_view.format(1)) != fingerprint(over_view.format(2))


def test_one_definition_in_two_threads(project: ProjectMaker, spark: SparkSession) -> None:
    definitions = project.load(
        {
            "defs/a.py": """
                import time
                from pyspark import pipelines as dp
                from pyspark.sql import SparkSession

                session = SparkSession.active()

                @dp.materialized_view
                def m():
                    before = session
                    time.sleep(0.05)
                    assert before is session is spark is SparkSession.active()
                    return session.range(1).selectExpr("current_database() AS db")
            """
        }
    )
    flow = definitions.flows[0]
    sessions = [spark.newSession() for _ in range(4)]
    active = SparkSession.active()
    with ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(flow.evaluate, sessions))
    assert all(frame.sparkSession is session for frame, session in zip(frames, sessions, strict=True))
    assert SparkSession.active() is active


def test_a_dataframe_made_while_importing(project: ProjectMaker, spark: SparkSession) -> None:
    graph = project.python(
        """
        rows = spark.createDataFrame([(1, "a")], "id int, v string")

        @dp.materialized_view
        def m():
            return rows

        @dp.materialized_view
        def n():
            return rows.select("id").join(spark.table("m"), "id")
        """
    )
    session = spark.newSession()
    frame = graph.flows["m"].flow.evaluate(session)
    assert frame.sparkSession is session
    assert [row.v for row in frame.collect()] == ["a"]
    assert graph.flows["n"].inputs.unversioned == ("local data",)


def test_views_only_where_asked(project: ProjectMaker, name: Name) -> None:
    definitions = project.load(
        {
            "defs/a.sql": """
            CREATE MATERIALIZED VIEW m AS SELECT * FROM good;
            CREATE TEMPORARY VIEW good AS SELECT 1 AS a;
            CREATE TEMPORARY VIEW bad AS SELECT * FROM not_built_yet
            """
        }
    )
    session = project.spark.newSession()
    definitions.prepare(session, [name("good")])
    assert definitions.flows_of(name("m"))[0].evaluate(session).collect()[0].a == 1
    with pytest.raises(DefinitionError, match="not_built_yet"):
        definitions.prepare(session)
