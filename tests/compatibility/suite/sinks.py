"""Sinks that Spark writes."""

from __future__ import annotations

from tests.compatibility.construct import Construct

from .common import HEAD, READ_SALES, SALES


def _sink(
    name: str, title: str, text: str, outputs: dict[str, str], *datasets: str, **more: object
) -> Construct:
    files = {"definitions/a.py": HEAD + READ_SALES + text}
    more = {"inputs": SALES, **more}
    return Construct(f"sink_{name}", title, files, datasets, outputs=outputs, **more)  # type: ignore[arg-type]


def _files(form: str, columns: str = '"id", "kind", "amount"') -> Construct:
    return _sink(
        form,
        f"a sink of {form} files",
        f'''
dp.create_sink("out", format="{form}", options={{"path": "@PROJECT@/out"}})

@dp.append_flow(target="out")
def write():
    return read_sales().select({columns})
''',
        {"out": form},
    )


CONSTRUCTS = [
    _files("parquet"),
    _files("json"),
    _files("csv"),
    _files("orc"),
    _files("text", 'F.col("kind").alias("value")'),
    _sink(
        "partitioned",
        "a sink with options: `partitionBy` is none of them",
        """
dp.create_sink("out", "json", {"path": "@PROJECT@/out", "compression": "gzip"})

@dp.append_flow(target="out")
def write():
    return read_sales()
""",
        {"out": "json"},
    ),
    _sink(
        "from_table",
        "a sink over a streaming table, and a view beside it",
        """
@dp.table
def sales():
    return read_sales()

dp.create_sink("out", "json", {"path": "@PROJECT@/out"})

@dp.append_flow(target="out")
def write():
    return spark.readStream.table("sales").where("amount > 6")

@dp.materialized_view
def n():
    return spark.read.table("sales").groupBy().count()
""",
        {"out": "json"},
        "sales",
        "n",
    ),
    _sink(
        "two_flows",
        "two append flows into one sink",
        """
dp.create_sink("out", "json", {"path": "@PROJECT@/out"})

@dp.append_flow(target="out")
def small():
    return read_sales().where("amount <= 6")

@dp.append_flow(target="out")
def big():
    return read_sales().where("amount > 6")
""",
        {"out": "json"},
    ),
    _sink(
        "console",
        "a console sink",
        """
dp.create_sink("screen", "console")

@dp.append_flow(target="screen")
def write():
    return read_sales()

@dp.table
def sales():
    return read_sales()
""",
        {},
        "sales",
    ),
    _sink(
        "noop",
        "a sink of the format `noop`",
        """
dp.create_sink("out", "noop")

@dp.append_flow(target="out")
def write():
    return read_sales()

@dp.table
def sales():
    return read_sales()
""",
        {},
        "sales",
    ),
    _sink(
        "data_source",
        "a Python data source as a sink",
        """
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

class Lines(DataSource):
    @classmethod
    def name(cls):
        return "lines"

    def streamWriter(self, schema, overwrite):
        return LinesWriter(self.options["folder"])

class LinesWriter(DataSourceStreamWriter):
    def __init__(self, folder):
        self.folder = folder

    def write(self, rows):
        import os, uuid
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/{uuid.uuid4().hex}.txt", "w") as file:
            file.writelines(f"{row.id}\\n" for row in rows)
        return WriterCommitMessage()

    def commit(self, messages, batch):
        pass

    def abort(self, messages, batch):
        pass

spark.dataSource.register(Lines)
dp.create_sink("out", "lines", {"folder": "@PROJECT@/out"})

@dp.append_flow(target="out")
def write():
    return read_sales()
""",
        {"out": "text"},
    ),
    _sink(
        "no_path",
        "a sink of files without a path",
        """
dp.create_sink("out", "json")

@dp.append_flow(target="out")
def write():
    return read_sales()
""",
        {},
    ),
    _sink(
        "unknown_format",
        "a sink of an unknown format",
        """
dp.create_sink("out", "no_such_format", {"path": "@PROJECT@/out"})

@dp.append_flow(target="out")
def write():
    return read_sales()
""",
        {},
    ),
    _sink(
        "kafka_columns",
        "a Kafka sink without a column `value`",
        """
dp.create_sink("out", "kafka", {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"})

@dp.append_flow(target="out")
def write():
    return read_sales()
""",
        {},
    ),
    _sink(
        "without_flow",
        "a sink without a flow",
        """
dp.create_sink("out", "json", {"path": "@PROJECT@/out"})

@dp.table
def sales():
    return read_sales()
""",
        {},
        "sales",
    ),
    _sink(
        "batch",
        "a batch query into a sink",
        """
dp.create_sink("out", "json", {"path": "@PROJECT@/out"})

@dp.append_flow(target="out")
def write():
    return spark.range(3)
""",
        {},
    ),
    _sink(
        "read",
        "a sink read by a view",
        """
dp.create_sink("out", "json", {"path": "@PROJECT@/out"})

@dp.append_flow(target="out")
def write():
    return read_sales()

@dp.materialized_view
def v():
    return spark.read.table("out")
""",
        {},
        "v",
    ),
]
