"""Views over Paimon tables that others write: after each change they equal what PyPaimon reads."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.harness import Happened, Pipeline
from tests.support.paimon import (
    alter_table,
    append_rows,
    create_table,
    paimon_rows,
    roll_back,
)

from tautochrone.model.names import is_shadow_table

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
STRICT = {{"tautochrone.refresh-policy": "{policy}"}}

@dp.materialized_view(table_properties=STRICT)
def big():
    return spark.sql("SELECT id, kind FROM paimon.`{path}` WHERE id >= 5")

@dp.materialized_view(table_properties=STRICT)
def kinds():
    return spark.read.format("paimon").load("{path}").groupBy("kind").count()
"""
TYPES = {"id": "int64", "kind": "string", "n": "int32"}


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "kind": None if i % 5 == 0 else f"k {i % 3}/ü", "n": i} for i in ids]


class Orders:
    """A Paimon table, and a pipeline with views over it."""

    def __init__(self, pipeline: Pipeline, *, policy: str = "incremental_strict", **how: Any) -> None:
        self.pipeline, self.folder = pipeline, pipeline.folder / "ext/shop.db/orders"
        self.types = dict(TYPES)
        create_table(self.folder, self.types, **how)
        self.append(*range(10))
        pipeline.write("definitions/p.py", DEFINITIONS.format(path=self.folder, policy=policy))

    def append(self, *ids: int, overwrites: bool = False) -> None:
        names = list(self.types)
        named = [dict(zip(names, row.values(), strict=False)) for row in rows(*ids)]
        append_rows(self.folder, self.types, *named, overwrites=overwrites)

    def run(self, **modes: str) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        self.check()
        assert {view: happened.mode(view)[0] for view in modes} == modes, [
            (refresh["dataset"], refresh["reason"]) for refresh in happened.of("refresh")
        ]
        return happened

    def check(self) -> None:
        shown = paimon_rows(self.folder).to_pylist()
        big = sorted(((row["id"], row["kind"]) for row in shown if row["id"] >= 5), key=repr)
        assert sorted(self.query("SELECT id, kind FROM big"), key=repr) == big
        counts: dict[Any, int] = {}
        for row in shown:
            counts[row["kind"]] = counts.get(row["kind"], 0) + 1
        assert dict(self.query("SELECT kind, `count` FROM kinds")) == counts

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.pipeline.reader.sql(sql).collect()]


@pytest.mark.parametrize("partition_keys", [pytest.param((), marks=pytest.mark.slow), ("kind",)])
def test_views_follow_a_paimon_table(pipeline: Pipeline, partition_keys: tuple[str, ...]) -> None:
    orders = Orders(pipeline, partition_keys=partition_keys)
    orders.run(big="full", kinds="full")
    orders.append(20, 21)
    happened = orders.run(big="append", kinds="incremental")
    (followed,) = happened.of("foreign_table_followed")
    assert (followed["table"], followed["version"], followed["before"]) == ("the Paimon table orders", 2, 1)
    orders.append(22)
    orders.append(1, 30, overwrites=True)
    orders.run(big="incremental", kinds="incremental")
    assert orders.run().checkpoints == []
    # The numbers of snapshots come again.
    roll_back(orders.folder, 2)
    orders.append(40)
    orders.append(41)
    orders.run(big="incremental", kinds="incremental")
    pipeline.verify()


def test_columns_are_followed_by_their_ids(pipeline: Pipeline) -> None:
    orders = Orders(pipeline, policy="incremental")
    orders.run()
    alter_table(orders.folder, ("rename", "n", "amount"), ("add", "note", "STRING"))
    alter_table(orders.folder, ("widen", "amount", "BIGINT"))
    types = {"id": "int64", "kind": "string", "amount": "int64", "note": "string"}
    append_rows(orders.folder, types, {"id": 50, "kind": "k", "amount": 2**40, "note": "x"})
    orders.run(big="append")
    shadow = next(filter(is_shadow_table, pipeline.job.topology.upstream_tables))
    shown = pipeline.session.sql(f"SELECT id, kind, amount, note FROM {shadow.sql}").collect()
    stored = paimon_rows(orders.folder).to_pylist()
    assert sorted(map(repr, map(tuple, shown))) == sorted(repr(tuple(row.values())) for row in stored)
    # Paimon's readers convert what is in older files; Iceberg's do not.
    alter_table(orders.folder, ("widen", "amount", "STRING"))
    happened = pipeline.run()
    assert happened.state == "FAILED"
    assert "[FOREIGN_FILE_HAS_OTHER_TYPES]" in happened.failure("big")
