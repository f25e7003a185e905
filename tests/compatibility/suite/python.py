"""Definition files in Python: decorators, and what files do besides."""

from __future__ import annotations

from tests.compatibility.construct import SPEC, Construct

from .common import HEAD, SALES

NUMBERS = """
@dp.materialized_view
def numbers():
    return spark.range(8).selectExpr("id", "id % 3 AS k", "CAST(id * 1.5 AS DOUBLE) AS x")
"""


def python_construct(name: str, title: str, text: str, *datasets: str, **more: object) -> Construct:
    files = {"definitions/a.py": HEAD + text, **more.pop("files", {})}  # type: ignore[dict-item]
    return Construct(f"python_{name}", title, files, datasets, **more)  # type: ignore[arg-type]


CONSTRUCTS = [
    python_construct("materialized_view", "`@dp.materialized_view`", NUMBERS, "numbers"),
    python_construct(
        "name",
        "`name=`, with a schema",
        """
@dp.materialized_view(name="silver.a")
def whatever():
    return spark.range(3)

@dp.materialized_view(name="`b c`")
def other():
    return spark.read.table("silver.a")
""",
        "silver.a",
        "`b c`",
        prepare=("CREATE DATABASE silver",),
    ),
    python_construct(
        "comment_properties",
        "`comment=`, `table_properties=`",
        """
@dp.materialized_view(comment="a view", table_properties={"owner.team": "sales"})
def a():
    return spark.range(3)
""",
        "a",
    ),
    python_construct(
        "partition_cols",
        "`partition_cols=`",
        NUMBERS
        + """
@dp.materialized_view(partition_cols=["k"])
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "cluster_by",
        "`cluster_by=`",
        NUMBERS
        + """
@dp.materialized_view(cluster_by=["k"])
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "schema_ddl",
        "`schema=` as DDL",
        NUMBERS
        + """
@dp.materialized_view(schema="id BIGINT, k BIGINT")
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "schema_struct",
        "`schema=` as StructType",
        NUMBERS
        + """
from pyspark.sql.types import LongType, StructField, StructType

@dp.materialized_view(schema=StructType([StructField("id", LongType()), StructField("k", LongType(), False)]))
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "schema_order",
        "`schema=` in another order than the query",
        NUMBERS
        + """
@dp.materialized_view(schema="k BIGINT, id BIGINT")
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "schema_cast",
        "`schema=` with other types than the query",
        NUMBERS
        + """
@dp.materialized_view(schema="id STRING")
def a():
    return spark.read.table("numbers").select("id")
""",
        "a",
    ),
    python_construct(
        "schema_missing",
        "`schema=` without a column of the query",
        NUMBERS
        + """
@dp.materialized_view(schema="id BIGINT")
def a():
    return spark.read.table("numbers").select("id", "k")
""",
        "a",
    ),
    python_construct(
        "schema_more",
        "`schema=` with a column that the query lacks",
        NUMBERS
        + """
@dp.materialized_view(schema="id BIGINT, extra STRING")
def a():
    return spark.read.table("numbers").select("id")
""",
        "a",
    ),
    python_construct(
        "format",
        '`format="parquet"`',
        """
@dp.materialized_view(format="parquet")
def a():
    return spark.range(3)
""",
        "a",
    ),
    python_construct(
        "spark_conf",
        "`spark_conf=` of a dataset",
        """
@dp.materialized_view(spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
def a():
    return spark.sql("SELECT CAST(TIMESTAMP'2026-01-01 00:00:00' AS STRING) AS t, current_timezone() AS z")

@dp.materialized_view
def b():
    return spark.sql("SELECT current_timezone() AS z")
""",
        "a",
        "b",
    ),
    python_construct(
        "temporary_view",
        "`@dp.temporary_view`",
        NUMBERS
        + """
@dp.temporary_view
def big():
    return spark.read.table("numbers").where("id > 4")

@dp.temporary_view(name="bigger", comment="more")
def _():
    return spark.table("big").where("id > 5")

@dp.materialized_view
def a():
    return spark.table("bigger").join(spark.table("big"), "id").select("id")
""",
        "a",
    ),
    python_construct(
        "ways_of_reading",
        "`spark.read.table`, `spark.table`, `spark.sql` in functions",
        NUMBERS
        + """
@dp.materialized_view
def a():
    return spark.read.table("numbers").select("id")

@dp.materialized_view
def b():
    return spark.table("numbers").select("id")

@dp.materialized_view
def c():
    return spark.sql("SELECT id FROM numbers WHERE k = 1")
""",
        "a",
        "b",
        "c",
    ),
    python_construct(
        "sql_parameters",
        "`spark.sql` with named parameters",
        NUMBERS
        + """
@dp.materialized_view
def a():
    return spark.sql("SELECT id FROM numbers WHERE k = :k", {"k": 1})
""",
        "a",
    ),
    python_construct(
        "module_frame",
        "a frame of the import, read by two views",
        NUMBERS
        + """
BASE = spark.read.table("numbers").where("id > 2")

@dp.materialized_view
def a():
    return BASE.groupBy("k").count()

@dp.materialized_view
def b():
    return BASE.select(BASE["id"])
""",
        "a",
        "b",
    ),
    python_construct(
        "for_loop",
        "datasets made in a loop",
        """
for limit in (2, 3):
    @dp.materialized_view(name=f"under_{limit}")
    def under(limit=limit):
        return spark.range(limit)
""",
        "under_2",
        "under_3",
    ),
    python_construct(
        "factory",
        "datasets made by a function",
        """
def define(name, rows):
    @dp.materialized_view(name=name)
    def query():
        return spark.range(rows)

define("a", 2)
define("b", 4)
""",
        "a",
        "b",
    ),
    python_construct(
        "conf_get",
        "`spark.conf.get` of the spec's `configuration`",
        """
@dp.materialized_view
def a():
    return spark.range(int(spark.conf.get("shop.rows")))
""",
        "a",
        spec=SPEC + 'configuration:\n  shop.rows: "3"\n',
    ),
    python_construct(
        "conf_get_import",
        "`spark.conf.get` while the file is imported",
        """
ROWS = int(spark.conf.get("shop.rows"))

@dp.materialized_view
def a():
    return spark.range(ROWS)
""",
        "a",
        spec=SPEC + 'configuration:\n  shop.rows: "3"\n',
    ),
    python_construct(
        "helper_module",
        "a module beside the file, on `sys.path` by hand",
        """
import sys
sys.path.insert(0, "@PROJECT@/lib")
from shop_helper_xyz import ROWS

@dp.materialized_view
def a():
    return spark.range(ROWS)
""",
        "a",
        files={"lib/shop_helper_xyz.py": "ROWS = 3\n"},
    ),
    python_construct(
        "package_module",
        "a package below the spec's folder",
        """
import sys
sys.path.insert(0, "@PROJECT@")
from shop_lib_xyz.deep import rows

@dp.materialized_view
def a():
    return rows(spark)
""",
        "a",
        files={
            "shop_lib_xyz/__init__.py": "",
            "shop_lib_xyz/deep.py": "def rows(spark):\n    return spark.range(3)\n",
        },
    ),
    python_construct(
        "sibling_import",
        "`import` of a sibling without `sys.path`",
        """
from sibling_xyz import ROWS

@dp.materialized_view
def a():
    return spark.range(ROWS)
""",
        "a",
        files={"definitions/sibling_xyz.py": "ROWS = 3\n"},
    ),
    python_construct(
        "read_options",
        "`spark.read` of CSV and JSON with options",
        """
@dp.materialized_view
def a():
    return spark.read.option("header", True).option("inferSchema", True).csv("@PROJECT@/in/names.csv")

@dp.materialized_view
def b():
    return spark.read.schema("id INT, amount INT").json("@PROJECT@/in/sales").agg(F.sum("amount").alias("amount"))
""",
        "a",
        "b",
        inputs=tuple({**files, f"names.csv/{n}.csv": f"id,name\n{n},x\n"} for n, files in enumerate(SALES)),
    ),
    python_construct(
        "local_file",
        "a file read by `open` with a relative path",
        """
import json

@dp.materialized_view
def a():
    with open("rates.json") as file:
        rates = json.load(file)
    return spark.range(2).withColumn("rate", F.lit(rates["eur"]))
""",
        "a",
        files={"rates.json": '{"eur": 1.5}'},
    ),
    python_construct(
        "explode_join_window",
        "windows, `collect_set` and `explode`",
        NUMBERS
        + """
from pyspark.sql import Window

@dp.materialized_view
def a():
    window = Window.partitionBy("k").orderBy(F.desc("id"))
    return spark.read.table("numbers").withColumn("r", F.row_number().over(window)).where("r = 1")

@dp.materialized_view
def b():
    return spark.read.table("numbers").groupBy("k").agg(F.collect_set("id").alias("ids")).select("k", F.explode("ids"))
""",
        "a",
        "b",
    ),
    Construct(
        "python_global_spark",
        "the global `spark`, which no file defines",
        {
            "definitions/a.py": "from pyspark import pipelines as dp\n\n@dp.materialized_view\ndef a():\n    return spark.range(3)\n"
        },
        ("a",),
    ),
    python_construct(
        "pivot",
        "`pivot` with its values",
        NUMBERS
        + """
@dp.materialized_view
def a():
    return spark.read.table("numbers").groupBy().pivot("k", [0, 1, 2]).sum("x")
""",
        "a",
    ),
    python_construct(
        "grouped_sum",
        "`groupBy().sum(column)`",
        NUMBERS
        + """
@dp.materialized_view
def a():
    return spark.read.table("numbers").groupBy("k").sum("x")
""",
        "a",
    ),
    python_construct(
        "active_in_function",
        "`SparkSession.active()` inside of a function",
        """
@dp.materialized_view
def a():
    return SparkSession.active().range(3)

@dp.materialized_view
def b():
    return SparkSession.getActiveSession().range(3)
""",
        "a",
        "b",
    ),
    python_construct(
        "columns_of_frame",
        "`frame.columns` in a query function",
        NUMBERS
        + """
@dp.materialized_view
def a():
    frame = spark.read.table("numbers")
    return frame.select(*[F.col(c).alias(c.upper()) for c in frame.columns])
""",
        "a",
    ),
    python_construct(
        "collect_at_import",
        "`collect()` while the file is imported",
        """
NAMES = [row.id for row in spark.range(3).collect()]

for name in NAMES:
    @dp.materialized_view(name=f"n{name}")
    def n(name=name):
        return spark.range(name)
""",
        "n0",
        "n1",
        "n2",
    ),
    python_construct(
        "rdd",
        "`sparkContext` and RDDs",
        """
@dp.materialized_view
def a():
    return spark.createDataFrame(spark.sparkContext.parallelize([(1,)]), "a INT")
""",
        "a",
    ),
    python_construct(
        "cache",
        "`cache()` in a query function",
        NUMBERS
        + """
@dp.materialized_view
def a():
    return spark.read.table("numbers").cache().select("id")
""",
        "a",
    ),
]
