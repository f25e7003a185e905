"""Views over Hudi tables that others write: after each change they equal what hudi-rs reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.harness import Happened, Pipeline
from tests.support.hudi_writer import HudiJvm, HudiWriter

hudi = pytest.importorskip("hudi")

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
STRICT = {{"tautochrone.refresh-policy": "incremental"}}

@dp.materialized_view(table_properties=STRICT)
def big():
    return spark.sql("SELECT * FROM hudi.`{path}` WHERE id >= 5")

@dp.materialized_view(table_properties=STRICT)
def kinds():
    return spark.read.format("hudi").load("{path}").groupBy("kind").count()
"""
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "orders",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": ["null", "string"], "default": None},
        {"name": "n", "type": "int"},
    ],
}


def rows(*ids: int, n: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "kind": {"string": f"k {i % 3}"}, "n": n} for i in ids]


@pytest.fixture(scope="module")
def jvm() -> Iterator[HudiJvm]:
    with HudiJvm() as jvm:
        yield jvm


class Orders:
    """A Hudi table, and a pipeline with views over it."""

    def __init__(self, pipeline: Pipeline, jvm: HudiJvm, **how: Any) -> None:
        self.pipeline, self.folder = pipeline, pipeline.folder / "ext/my orders"
        self.writer = HudiWriter(jvm, self.folder, SCHEMA, **how)
        self.writer.insert(rows(*range(10)))
        pipeline.write("definitions/p.py", DEFINITIONS.format(path=self.folder))

    def run(self, **modes: str) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        self.check()
        assert {view: happened.mode(view)[0] for view in modes} == modes, [
            (refresh["dataset"], refresh["reason"]) for refresh in happened.of("refresh")
        ]
        return happened

    def check(self) -> None:
        table = hudi.HudiTableBuilder.from_base_uri(str(self.folder)).build()
        shown = [row for batch in table.read(hudi.HudiReadOptions()) for row in batch.to_pylist()]
        names = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path", "id", "kind", "n")
        big = sorted(tuple(row[name] for name in names) for row in shown if row["id"] >= 5)
        assert sorted(self.query(f"SELECT {', '.join(names)} FROM big")) == big
        counts: dict[Any, int] = {}
        for row in shown:
            counts[row["kind"]] = counts.get(row["kind"], 0) + 1
        assert dict(self.query("SELECT kind, `count` FROM kinds")) == counts

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.pipeline.reader.sql(sql).collect()]


@pytest.mark.parametrize(
    ("version", "partition"), [pytest.param(6, None, marks=pytest.mark.slow), (9, "kind")]
)
def test_views_follow_a_hudi_table(
    pipeline: Pipeline, jvm: HudiJvm, version: int, partition: str | None
) -> None:
    orders = Orders(pipeline, jvm, version=version, partition=partition)
    writer = orders.writer
    orders.run(big="full", kinds="full")
    writer.insert(rows(20, 21))
    happened = orders.run(big="append", kinds="incremental")
    (followed,) = happened.of("foreign_table_followed")
    assert followed["table"] == "the Hudi table my_orders"
    assert followed["version"] > followed["before"]
    writer.upsert(rows(6, 21, n=7))
    happened = orders.run(big="incremental")
    # The other rows of the files that were written anew are the same.
    assert happened.refresh("big")["rows_deleted"] == 2
    writer.delete(rows(8))
    orders.run(big="incremental", kinds="incremental")
    # Only rearranged.
    writer.cluster()
    writer.clean()
    happened = orders.run()
    assert happened.checkpoints == []
    assert happened.of("foreign_table_followed")[0]["files_removed"] > 0
    writer.overwrite(rows(1, 6, 40))
    orders.run(big="incremental", kinds="incremental")
    # Hudi removes the files of what it takes back.
    writer.take_back()
    happened = orders.run(big="diff", kinds="diff")
    assert happened.refresh("big")["reason_code"] == "FOREIGN_FILES_GONE"
    # A column more, and a type that Iceberg's readers widen.
    fields = [*SCHEMA["fields"][:2], {"name": "n", "type": "long"}]
    note = {"name": "note", "type": ["null", "string"], "default": None}
    writer.schema = {**SCHEMA, "fields": [*fields, note]}
    writer.insert([{"id": 60, "kind": None, "n": 2**40, "note": {"string": "x"}}])
    orders.run(kinds="incremental")
    assert orders.query("SELECT n, note FROM big WHERE id = 60") == [(2**40, "x")]
    pipeline.verify()
