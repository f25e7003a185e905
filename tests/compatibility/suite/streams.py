"""Streaming tables and flows."""

from __future__ import annotations

from tests.compatibility.construct import SPEC, Construct

from .common import HEAD, READ_SALES, SALES, SALES_TABLE


def _stream(name: str, title: str, text: str, *datasets: str, **more: object) -> Construct:
    files = {"definitions/a.py": HEAD + READ_SALES + text, **more.pop("files", {})}  # type: ignore[dict-item]
    more = {"inputs": SALES, **more}
    return Construct(f"stream_{name}", title, files, datasets, **more)  # type: ignore[arg-type]


TABLE = """
@dp.table
def sales():
    return read_sales()
"""
BOTH = """
dp.create_streaming_table("both")

@dp.append_flow(target="both")
def near():
    return read_sales()

@dp.append_flow(target="both", name="far_away")
def far():
    return read_sales().where("amount > 6")
"""
ICEBERG: dict[str, object] = {
    "spec": SPEC
    + """\
catalog: shop
database: default
configuration:
  spark.sql.catalog.shop: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.shop.type: hadoop
  spark.sql.catalog.shop.warehouse: "@PROJECT@/warehouse"
""",
    "prepare": ("CREATE NAMESPACE IF NOT EXISTS shop.default",),
}
"""Two flows into one table need a format that takes the commits of both."""

CONSTRUCTS = [
    _stream("table", "`@dp.table` over files", TABLE, "sales"),
    _stream(
        "of_table",
        "a streaming table over a streaming table",
        TABLE
        + """
@dp.table
def big():
    return spark.readStream.table("sales").where("amount > 6")
""",
        "sales",
        "big",
    ),
    _stream(
        "sql_of_table",
        "`CREATE STREAMING TABLE … FROM STREAM t` and `STREAM(t)`",
        TABLE,
        "big",
        "small",
        files={
            "definitions/b.sql": "CREATE STREAMING TABLE big AS SELECT * FROM STREAM sales WHERE amount > 6;"
            "CREATE STREAMING TABLE small AS SELECT * FROM STREAM(sales) WHERE amount <= 6;"
        },
    ),
    _stream(
        "append_flows",
        "`create_streaming_table` with two append flows, an Iceberg table",
        BOTH,
        "both",
        **ICEBERG,
    ),
    _stream(
        "append_flows_parquet", "two append flows into a Parquet table, the default of Spark", BOTH, "both"
    ),
    _stream(
        "sql_flows",
        "`CREATE FLOW … AS INSERT INTO … BY NAME`",
        TABLE,
        "both",
        files={
            "definitions/b.sql": "CREATE STREAMING TABLE both;"
            "CREATE FLOW near AS INSERT INTO both BY NAME SELECT * FROM STREAM sales;"
            "CREATE FLOW far AS INSERT INTO both BY NAME SELECT amount, id, kind FROM STREAM sales WHERE amount > 6"
        },
        **ICEBERG,
    ),
    _stream(
        "flow_into_table",
        "an append flow into a table that has a query",
        TABLE
        + """
@dp.append_flow(target="sales")
def more():
    return read_sales().withColumn("kind", F.lit("more"))
""",
        "sales",
        **ICEBERG,
    ),
    _stream(
        "create_with_schema",
        "`create_streaming_table` with schema, comment and partitions",
        """
dp.create_streaming_table("both", schema="id INT, kind STRING, amount INT", comment="c", partition_cols=["kind"],
                          table_properties={"p": "q"})

@dp.append_flow(target="both")
def near():
    return read_sales()
""",
        "both",
    ),
    _stream(
        "other_columns",
        "append flows with different columns",
        """
dp.create_streaming_table("both")

@dp.append_flow(target="both")
def near():
    return read_sales().select("id", "kind")

@dp.append_flow(target="both")
def far():
    return read_sales().select("id", "amount")
""",
        "both",
        **ICEBERG,
    ),
    _stream(
        "spark_conf",
        "`spark_conf=` of an append flow",
        """
dp.create_streaming_table("both")

@dp.append_flow(target="both", spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
def near():
    return read_sales().selectExpr("id", "current_timezone() AS z")
""",
        "both",
    ),
    _stream(
        "once",
        "`once=True` of an append flow, which Spark 4.1 does not know",
        """
dp.create_streaming_table("both")

@dp.append_flow(target="both", once=True)
def backfill():
    return spark.range(2).selectExpr("CAST(id AS INT) AS id")
""",
        "both",
    ),
    _stream(
        "view_over_table",
        "a view over a streaming table",
        TABLE
        + """
@dp.materialized_view
def totals():
    return spark.read.table("sales").groupBy("kind").agg(F.sum("amount").alias("amount"), F.count("*").alias("n"))
""",
        "sales",
        "totals",
    ),
    _stream(
        "temporary_view",
        "a streaming temporary view between two tables",
        """
@dp.temporary_view
def raw():
    return read_sales()

@dp.table
def clean():
    return spark.readStream.table("raw").where("kind IS NOT NULL")
""",
        "clean",
    ),
    _stream(
        "sql_temporary_view",
        "a temporary view over `STREAM` in SQL",
        TABLE,
        "clean",
        files={
            "definitions/b.sql": "CREATE TEMPORARY VIEW raw AS SELECT * FROM STREAM sales;"
            "CREATE STREAMING TABLE clean AS SELECT id FROM STREAM raw WHERE kind IS NOT NULL"
        },
    ),
    _stream(
        "static_join",
        "a stream joined with a batch table",
        TABLE
        + """
@dp.materialized_view
def kinds():
    return spark.createDataFrame([("a", "Apple"), ("b", "Bean")], "kind STRING, name STRING")

@dp.table
def named():
    return spark.readStream.table("sales").join(spark.read.table("kinds"), "kind", "left")
""",
        "named",
    ),
    _stream(
        "union",
        "a union of two streams in one flow",
        """
@dp.table
def both():
    return read_sales().union(read_sales())
""",
        "both",
    ),
    _stream(
        "dedup",
        "`dropDuplicates` in a stream",
        """
@dp.table
def kinds():
    return read_sales().select("kind").dropDuplicates()
""",
        "kinds",
    ),
    _stream(
        "watermark_window",
        "a windowed aggregate with a watermark",
        """
@dp.table
def hourly():
    rows = read_sales().withColumn("at", F.expr("TIMESTAMP'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, id)"))
    counts = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour")).count()
    return counts.selectExpr("window.start AS hour", "count AS n")
""",
        "hourly",
    ),
    _stream(
        "aggregate",
        "an aggregate of a stream without a watermark",
        """
@dp.table
def totals():
    return read_sales().groupBy("kind").count()
""",
        "totals",
    ),
    _stream(
        "rate",
        "the rate source",
        """
@dp.table
def ticks():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("startTimestamp", 1000).option(
        "numPartitions", 1).load().where("value < 0")
""",
        "ticks",
    ),
    _stream(
        "options",
        "options of `readStream`: `maxFilesPerTrigger`, `pathGlobFilter`",
        """
@dp.table
def sales():
    reader = spark.readStream.schema("id INT, kind STRING").option("maxFilesPerTrigger", 1)
    return reader.option("pathGlobFilter", "1*.json").json("@PROJECT@/in/sales")
""",
        "sales",
    ),
    _stream(
        "csv_text",
        "CSV and text files as streams",
        """
@dp.table
def names():
    return spark.readStream.schema("id INT, name STRING").option("header", True).csv("@PROJECT@/in/names")

@dp.table
def lines():
    return spark.readStream.text("@PROJECT@/in/names").withColumn("file", F.expr("element_at(split(_metadata.file_path, '/'), -1)"))
""",
        "names",
        "lines",
        inputs=({"names/1.csv": "id,name\n1,a\n"}, {"names/2.csv": "id,name\n2,b\n"}),
    ),
    _stream(
        "infer",
        "a stream whose schema is inferred",
        """
@dp.table
def sales():
    return spark.readStream.option("inferSchema", True).json("@PROJECT@/in/sales")
""",
        "sales",
    ),
    _stream(
        "full_refresh",
        "`--full-refresh` of a table",
        TABLE,
        "sales",
        arguments=("--full-refresh", "sales"),
    ),
    _stream(
        "full_refresh_of_source",
        "`--full-refresh` of a table that another streaming table reads",
        TABLE
        + """
@dp.table
def copy():
    return spark.readStream.table("sales")
""",
        "sales",
        "copy",
        arguments=("--full-refresh", "sales"),
    ),
    _stream(
        "full_refresh_of_source_iceberg",
        "the same with Iceberg tables",
        TABLE
        + """
@dp.table
def copy():
    return spark.readStream.table("sales")
""",
        "sales",
        "copy",
        arguments=("--full-refresh", "sales"),
        **ICEBERG,
    ),
    _stream(
        "full_refresh_all",
        "`--full-refresh-all`",
        TABLE
        + """
@dp.table
def copy():
    return spark.readStream.table("sales")

@dp.materialized_view
def totals():
    return spark.read.table("copy").groupBy("kind").count()
""",
        "sales",
        "copy",
        "totals",
        arguments=("--full-refresh-all",),
    ),
    _stream(
        "refresh",
        "`--refresh` of one of two tables",
        TABLE
        + """
@dp.table
def other():
    return read_sales().select("id")
""",
        "sales",
        "other",
        arguments=("--refresh", "sales"),
    ),
    _stream(
        "table_and_batch",
        "`@dp.table` with a batch query",
        """
@dp.table
def a():
    return spark.range(3)
""",
        "a",
    ),
    _stream(
        "materialized_of_stream",
        "`@dp.materialized_view` with a streaming query",
        """
@dp.materialized_view
def a():
    return read_sales()
""",
        "a",
    ),
    _stream(
        "over_view",
        "a streaming table over a materialized view",
        """
@dp.materialized_view
def v():
    return spark.range(3)

@dp.table
def a():
    return spark.readStream.table("v")
""",
        "a",
        inputs=({}, {}),
    ),
    _stream(
        "table_without_flow",
        "a streaming table without a flow",
        'dp.create_streaming_table("empty_one")\n',
        "empty_one",
    ),
    _stream(
        "batch_flow",
        "an append flow with a batch query",
        """
dp.create_streaming_table("both")

@dp.append_flow(target="both")
def near():
    return spark.range(3)
""",
        "both",
    ),
    _stream(
        "flow_to_view",
        "an append flow into a materialized view",
        """
@dp.materialized_view
def v():
    return spark.range(3)

@dp.append_flow(target="v")
def near():
    return read_sales()
""",
        "v",
    ),
    _stream(
        "sql_stream_files",
        "SQL over a Python stream, with a UDF in between",
        """
@F.udf("STRING")
def upper(text):
    return text and text.upper()

@dp.table
def raw():
    return read_sales().withColumn("kind", upper("kind"))
""",
        "a",
        files={"definitions/b.sql": "CREATE STREAMING TABLE a AS SELECT kind FROM STREAM raw"},
    ),
]
assert SALES_TABLE
