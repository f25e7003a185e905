"""The samples of Spark's programming guide as constructs, from the guide's own text.

The text is `docs/declarative-pipelines-programming-guide.md` of Spark, which is no part of this repository.
Its samples read tables and files that a reader has to bring; here they are small.
"""

from __future__ import annotations

import re

from .construct import SPEC, Construct
from .suite.common import HEAD

__all__ = ["guide_constructs"]

_CATALOG = """\
catalog: samples
database: default
configuration:
  spark.sql.catalog.samples: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.samples.type: hadoop
  spark.sql.catalog.samples.warehouse: "@PROJECT@/warehouse"
"""
_TABLES = (
    *(f"CREATE NAMESPACE IF NOT EXISTS samples.{name}" for name in ("default", "nyctaxi", "tpch")),
    "CREATE TABLE samples.nyctaxi.trips USING iceberg AS SELECT id, id * 1.5 AS fare FROM range(4)",
    "CREATE TABLE samples.tpch.region USING iceberg AS SELECT * FROM VALUES (0L, 'ASIA'), (1L, "
    "'MIDDLE EAST') AS t(r_regionkey, r_name)",
    "CREATE TABLE samples.tpch.nation USING iceberg AS SELECT * FROM VALUES (0L, 'JAPAN', 0L), "
    "(1L, 'EGYPT', 1L) AS t(n_nationkey, n_name, n_regionkey)",
    "CREATE TABLE samples.tpch.customer USING iceberg AS SELECT id AS c_custkey, concat('c', id) AS c_name, "
    "id % 2 AS c_nationkey, 'x' AS c_phone FROM range(5)",
    "CREATE TABLE samples.tpch.orders USING iceberg AS SELECT id AS o_orderkey, id % 5 AS o_custkey, "
    "'O' AS o_orderstatus, id * 2.5D AS o_totalprice, DATE'2026-01-01' AS o_orderdate FROM range(12)",
)
_SOURCES = {
    "source_table": "id INT",
    "orders_source": "customer_id INT, order_number INT, order_datetime STRING",
    "customers_source": "customer_id INT, state STRING",
    "customers_us_west": "customer_id INT",
    "customers_us_east": "customer_id INT",
}
_SOURCE = """

@dp.table
def {name}():
    return spark.readStream.schema("{schema}").json("@PROJECT@/in/{name}")
"""
_FILES = {
    "source_table/1.json": '{"id": 1}\n',
    "orders_source/1.json": '{"customer_id": 1, "order_number": 7, "order_datetime": "1767225600"}\n',
    "customers_source/1.json": '{"customer_id": 1, "state": "CA"}\n',
    "customers_us_west/1.json": '{"customer_id": 1}\n',
    "customers_us_east/1.json": '{"customer_id": 2}\n',
    "retail-org/sales_orders/1.json": '{"customer_id": 1, "order_number": 7}\n',
    "retail-org/customers/1.csv": "customer_id,state\n1,CA\n",
}
_DEFINED = (
    r"@dp\.(?:table|materialized_view)(?:\(name=\"(\w+)\"\))?\ndef (\w+)",
    r"CREATE (?:MATERIALIZED VIEW|STREAMING TABLE) (\w+)()",
    r"create_streaming_table\(\"(\w+)\"()",
)


def guide_constructs(guide: str, kafka: str) -> list[Construct]:
    """A construct for each sample that defines something.

    Args:
        kafka: the address of a broker whose topic `orders` exists.
    """
    samples = re.findall(r"```(python|sql)\n(.*?)```", guide, re.DOTALL)
    texts = [(language, text) for language, text in samples if re.search(r"@dp|create_|CREATE", text)]
    return [_construct(number, *sample, kafka) for number, sample in enumerate(texts)]


def _construct(number: int, language: str, text: str, kafka: str) -> Construct:
    text = text.replace("/datasets/", "@PROJECT@/in/").replace("localhost:9092", kafka)
    names = [name or function for pattern in _DEFINED for name, function in re.findall(pattern, text)]
    if "regional_customer_orders" in text:
        names = ["asia_customer_orders", "middle_east_customer_orders"]
    read = [name for name in _SOURCES if name in text and name not in names]
    sources = HEAD + "".join(_SOURCE.format(name=name, schema=_SOURCES[name]) for name in read)
    extension = "py" if language == "python" else "sql"
    sample = HEAD + text if language == "python" else text
    first = re.search(r"^(@dp.*|dp\..*|CREATE .*)$", text, re.MULTILINE)
    return Construct(
        name=f"guide_{number}",
        title=f"sample {number} ({language}): `{first.group(1).strip() if first else text[:40]}`",
        files={f"definitions/sample.{extension}": sample, "definitions/sources.py": sources},
        datasets=tuple(names),
        inputs=(_FILES,),
        spec=SPEC + _CATALOG,
        prepare=_TABLES,
        prepare_both=True,
    )
