"""SQL constructs as views over the small tables, each with the worst mode that its refresh may have.

The first word of a name is its chapter in `docs/sql-support.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONSTRUCTS", "PYTHON", "Construct"]


@dataclass(frozen=True, slots=True)
class Construct:
    """A view `name` over `src.a`, `src.b`, `src.c` or over other constructs' views."""

    name: str
    title: str
    query: str
    worst: str = "incremental"


def _read(text: str) -> tuple[Construct, ...]:
    constructs = []
    for statement in text.split("\n\n")[1:]:
        head, query = statement.split("\n", 1)
        name, title, worst = head.removeprefix("-- ").rsplit(" | ", 2)
        constructs.append(Construct(name, title, " ".join(query.rstrip().rstrip(";").split()), worst))
    return tuple(constructs)


PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import functions as sf
import pandas as pd

@sf.udf("string")
def shout(text):
    return None if text is None else text.upper() + "!"

@sf.pandas_udf("long")
def plus_one(numbers: pd.Series) -> pd.Series:
    return numbers.fillna(0).astype("int64") + 1

@dp.materialized_view(table_properties=PROPERTIES)
def python_udf():
    return spark.table("src.a").select("id", shout("g").alias("loud"))

@dp.materialized_view(table_properties=PROPERTIES)
def python_pandas_udf():
    frame = spark.table("src.c").select("w", plus_one("z").alias("more"))
    return frame.groupBy("w").agg(sf.sum("more").alias("total"))

@dp.materialized_view(table_properties=PROPERTIES)
def python_drop_duplicates():
    return spark.table("src.a").select("g", "day").dropDuplicates()
"""

_PYTHON = (
    Construct("python_udf", "Python UDF", 'select("id", shout("g"))'),
    Construct("python_pandas_udf", "pandas UDF below an aggregate", 'groupBy("w").agg(sum(plus_one("z")))'),
    Construct("python_drop_duplicates", "dropDuplicates", 'select("g", "day").dropDuplicates()'),
)

CONSTRUCTS = (*_read(Path(__file__).with_name("constructs.sql").read_text()), *_PYTHON)
