"""Projects with a mistake."""

from __future__ import annotations

from tests.compatibility.construct import Construct

from .common import HEAD, READ_SALES, SALES


def _sql(name: str, title: str, text: str, **more: object) -> Construct:
    return Construct(f"refused_{name}", title, {"definitions/a.sql": text}, **more)  # type: ignore[arg-type]


def _python(name: str, title: str, text: str, **more: object) -> Construct:
    return Construct(f"refused_{name}", title, {"definitions/a.py": HEAD + READ_SALES + text}, **more)  # type: ignore[arg-type]


def _mutation(name: str, call: str) -> Construct:
    return _python(
        name,
        f"`{call}`",
        f"""
@dp.materialized_view
def a():
    {call}
    return spark.range(3)
""",
    )


CONSTRUCTS = [
    _sql(
        "cycle",
        "a cycle of two views",
        "CREATE MATERIALIZED VIEW a AS SELECT * FROM b; CREATE MATERIALIZED VIEW b AS SELECT * FROM a",
    ),
    _sql("self", "a view over itself", "CREATE MATERIALIZED VIEW a AS SELECT * FROM a"),
    _sql(
        "duplicate",
        "two datasets of one name",
        "CREATE MATERIALIZED VIEW a AS SELECT 1 AS x; CREATE MATERIALIZED VIEW a AS SELECT 2 AS x",
    ),
    _sql(
        "missing_dataset",
        "a table that does not exist",
        "CREATE MATERIALIZED VIEW a AS SELECT * FROM nothing",
    ),
    _sql(
        "missing_column",
        "a column that does not exist",
        "CREATE MATERIALIZED VIEW a AS SELECT y FROM (SELECT 1 AS x)",
    ),
    _sql("syntax", "a syntax error in SQL", "CREATE MATERIALIZED VIEW a AS SELEC 1"),
    _sql(
        "missing_function",
        "a function that does not exist",
        "CREATE MATERIALIZED VIEW a AS SELECT nothing(1) AS x",
    ),
    _sql("types", "types that do not fit", "CREATE MATERIALIZED VIEW a AS SELECT array(1) + 1 AS x"),
    _sql(
        "ansi",
        "an error of a row: a division by zero",
        "CREATE MATERIALIZED VIEW a AS SELECT 1 / id AS x FROM range(2)",
    ),
    _sql(
        "duplicate_columns", "two columns of one name", "CREATE MATERIALIZED VIEW a AS SELECT 1 AS x, 2 AS x"
    ),
    _sql(
        "stream_of_batch",
        "`CREATE STREAMING TABLE` with a batch query",
        "CREATE STREAMING TABLE a AS SELECT 1 AS x",
    ),
    _sql(
        "flow_without_target",
        "a flow into a table that does not exist",
        "CREATE FLOW f AS INSERT INTO nothing SELECT 1",
    ),
    _sql(
        "stream_of_missing",
        "`STREAM` of a table that does not exist",
        "CREATE STREAMING TABLE a AS SELECT * FROM STREAM nothing",
    ),
    _sql(
        "partition_column",
        "`PARTITIONED BY` a column that does not exist",
        "CREATE MATERIALIZED VIEW a PARTITIONED BY (y) AS SELECT 1 AS x",
    ),
    _sql(
        "partition_and_cluster",
        "`PARTITIONED BY` and `CLUSTER BY` at once",
        "CREATE MATERIALIZED VIEW a PARTITIONED BY (x) CLUSTER BY (x) AS SELECT 1 AS x",
    ),
    _sql(
        "two_part_temporary",
        "a temporary view with a schema in its name",
        "CREATE TEMPORARY VIEW s.v AS SELECT 1 AS x; CREATE MATERIALIZED VIEW a AS SELECT 1 AS x",
    ),
    _sql(
        "partitioned_transform",
        "`PARTITIONED BY (bucket(4, x))`",
        "CREATE MATERIALIZED VIEW a PARTITIONED BY (bucket(4, x)) AS SELECT 1 AS x",
    ),
    _python(
        "exception",
        "a query function that raises",
        """
@dp.materialized_view
def a():
    raise ValueError("no")
""",
    ),
    _python("import_error", "a file that raises while it is imported", 'raise ValueError("no")\n'),
    _python("missing_module", "an `import` of a missing package", "import no_such_package_xyz\n"),
    _python("python_syntax", "a syntax error in Python", "def (:\n"),
    _python(
        "no_frame",
        "a query function that returns no frame",
        """
@dp.materialized_view
def a():
    return 3
""",
    ),
    _python(
        "returns_none",
        "a query function that returns nothing",
        """
@dp.materialized_view
def a():
    spark.range(3)
""",
    ),
    _python(
        "duplicate_flow",
        "two flows of one name",
        """
dp.create_streaming_table("t")
dp.create_streaming_table("u")

@dp.append_flow(target="t", name="f")
def f():
    return read_sales()

@dp.append_flow(target="u", name="f")
def g():
    return read_sales()
""",
        inputs=SALES[:1],
    ),
    _python(
        "flow_target",
        "an append flow into an unknown table",
        """
@dp.append_flow(target="nothing")
def f():
    return read_sales()
""",
        inputs=SALES[:1],
    ),
    _python(
        "decorator_argument",
        "an unknown argument of a decorator",
        """
@dp.materialized_view(owner="me")
def a():
    return spark.range(3)
""",
    ),
    _python(
        "argument_type",
        "an argument of the wrong type",
        """
@dp.materialized_view(table_properties={"a": 1})
def a():
    return spark.range(3)
""",
    ),
    _python(
        "name_type",
        "a name that is no text",
        """
@dp.materialized_view(name=3)
def a():
    return spark.range(3)
""",
    ),
    _python(
        "positional",
        "a positional argument of a decorator",
        """
@dp.materialized_view("a")
def b():
    return spark.range(3)
""",
    ),
    _python(
        "schema_text",
        "a schema that is no DDL",
        """
@dp.materialized_view(schema="id nonsense")
def a():
    return spark.range(3)
""",
    ),
    _python(
        "function_arguments",
        "a query function with a parameter",
        """
@dp.materialized_view
def a(n):
    return spark.range(n)
""",
    ),
    _python(
        "collect",
        "`collect()` in a query function",
        """
@dp.materialized_view
def a():
    return spark.range(len(spark.range(3).collect()))
""",
    ),
    _python(
        "write",
        "`write.saveAsTable` in a query function",
        """
@dp.materialized_view
def a():
    spark.range(3).write.saveAsTable("other")
    return spark.range(3)
""",
    ),
    _python(
        "write_stream",
        "`writeStream.start` in a query function",
        """
@dp.table
def a():
    read_sales().writeStream.format("noop").start()
    return read_sales()
""",
        inputs=SALES[:1],
    ),
    _python(
        "ddl",
        '`spark.sql("CREATE TABLE …")` in a query function',
        """
@dp.materialized_view
def a():
    spark.sql("CREATE TABLE other (a INT)")
    return spark.range(3)
""",
    ),
    _mutation("conf_set", 'spark.conf.set("spark.sql.ansi.enabled", "false")'),
    _mutation("set_database", 'spark.catalog.setCurrentDatabase("default")'),
    _mutation("temp_view", 'spark.range(3).createOrReplaceTempView("t")'),
    _mutation("udf_register", 'spark.udf.register("twice", lambda n: n, "INT")'),
    _mutation("drop_temp_view", 'spark.catalog.dropTempView("t")'),
    _python(
        "self_stream",
        "a streaming table over itself",
        """
@dp.table
def a():
    return spark.readStream.table("a")
""",
    ),
    _python(
        "sink_name",
        "a sink and a table of one name",
        """
dp.create_sink("a", "json", {"path": "@PROJECT@/out"})

@dp.materialized_view
def a():
    return spark.range(3)
""",
    ),
]
