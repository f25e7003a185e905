"""Definition files in Python: local rows, functions and data sources."""

from __future__ import annotations

from .python import NUMBERS, python_construct

CONSTRUCTS = [
    python_construct(
        "create_dataframe",
        "`createDataFrame` in a query function",
        """
@dp.materialized_view
def a():
    return spark.createDataFrame([(1, "a"), (2, None)], "id INT, name STRING")
""",
        "a",
    ),
    python_construct(
        "create_dataframe_types",
        "`createDataFrame` with a StructType and whole numbers in DOUBLE",
        """
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

@dp.materialized_view
def a():
    schema = StructType([StructField("d", DoubleType()), StructField("s", StringType())])
    return spark.createDataFrame([(1, "a"), (2.5, "b")], schema)
""",
        "a",
    ),
    python_construct(
        "create_dataframe_inferred",
        "`createDataFrame` of dicts and Rows, inferred",
        """
from pyspark.sql import Row

@dp.materialized_view
def a():
    return spark.createDataFrame([{"id": 1, "tags": ["x"]}, {"id": 2, "tags": []}])

@dp.materialized_view
def b():
    return spark.createDataFrame([Row(id=1, at=None), Row(id=2, at="x")])
""",
        "a",
        "b",
    ),
    python_construct(
        "create_dataframe_pandas",
        "`createDataFrame` of a pandas frame",
        """
import pandas as pd

@dp.materialized_view
def a():
    return spark.createDataFrame(pd.DataFrame({"id": [1, 2], "name": ["a", None]}))
""",
        "a",
    ),
    python_construct(
        "udf",
        "a Python UDF",
        NUMBERS
        + """
@F.udf("INT")
def twice(n):
    return n * 2

@dp.materialized_view
def a():
    return spark.read.table("numbers").select(twice("id").alias("t"))
""",
        "a",
    ),
    python_construct(
        "pandas_udf",
        "a pandas UDF",
        NUMBERS
        + """
import pandas as pd

@F.pandas_udf("DOUBLE")
def half(n: pd.Series) -> pd.Series:
    return n / 2

@dp.materialized_view
def a():
    return spark.read.table("numbers").select(half("x").alias("h"))
""",
        "a",
    ),
    python_construct(
        "udtf",
        "a Python table function",
        """
@F.udtf(returnType="n INT, square INT")
class Squares:
    def eval(self, count: int):
        for n in range(count):
            yield n, n * n

@dp.materialized_view
def a():
    return Squares(F.lit(4))
""",
        "a",
    ),
    python_construct(
        "map_in_pandas",
        "`mapInPandas`",
        NUMBERS
        + """
def double(frames):
    for frame in frames:
        frame["x"] = frame["x"] * 2
        yield frame

@dp.materialized_view
def a():
    return spark.read.table("numbers").select("id", "x").mapInPandas(double, "id LONG, x DOUBLE")
""",
        "a",
    ),
    python_construct(
        "apply_in_pandas",
        "`groupBy().applyInPandas`",
        NUMBERS
        + """
def largest(frame):
    return frame.nlargest(1, "x")

@dp.materialized_view
def a():
    return spark.read.table("numbers").groupBy("k").applyInPandas(largest, "id LONG, k LONG, x DOUBLE")
""",
        "a",
    ),
    python_construct(
        "data_source",
        "`spark.dataSource.register` in a definition file",
        """
from pyspark.sql.datasource import DataSource, DataSourceReader

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

@dp.materialized_view
def a():
    return spark.read.format("squares").load()
""",
        "a",
    ),
]
