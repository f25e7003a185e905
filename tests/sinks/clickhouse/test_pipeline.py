"""A pipeline that is mirrored in ClickHouse: each pointer shows the lake at its checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.crash import fault
from tests.support.harness import Pipeline

from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.runtime.delivery.audit import SinkVerdict, verify_sink
from tautochrone.runtime.job.effects import FAULT_VARIABLE
from tautochrone.runtime.job.topology import declared_sinks
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse.sink import ClickHouseSink

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def orders():
    schema = "id INT, customer INT, amount DECIMAL(12, 2), at TIMESTAMP"
    return spark.readStream.schema(schema).json("@IN@/orders")

@dp.table(table_properties={"tautochrone.sinks": "mirror"})
def customers():
    schema = "id INT, tags ARRAY<STRING>, home STRUCT<city: STRING>"
    return spark.readStream.schema(schema).json("@IN@/customers")

@dp.materialized_view(table_properties={"tautochrone.sinks": "mirror"})
def totals():
    query = "SELECT customer, sum(amount) AS amount, max(at) AS latest FROM orders GROUP BY customer"
    return spark.sql(query)

dp.create_sink("mirror", "clickhouse", {
    "url": "clickhouse://embedded/@OUT@", "database": "shop", "order_by.totals": "customer",
})

@dp.append_flow(target="mirror")
def orders_to_mirror():
    return spark.readStream.table("orders")
"""
TABLES = [TableName("lake", ("default",), name) for name in ("customers", "orders", "totals")]


class SinkStrikes(StrikingEffects):
    def perform(self, step: Step, subject: str, action: Any) -> Any:
        return super().perform(step, f".{subject}", action)


class Shop:
    """The project, its sources, and its mirror."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.pipeline = Pipeline(folder / "project", spark)
        text = DEFINITIONS.replace("@IN@", f"{folder}/in").replace("@OUT@", f"{folder}/clickhouse")
        self.pipeline.write("definitions/shop.py", text)
        self._files = 0
        for source in ("orders", "customers"):
            (folder / "in" / source).mkdir(parents=True)

    def add(self) -> None:
        """New rows in both sources; one customer's total changes each time."""
        self._files += 1
        number = self._files
        order = {"customer": 1, "amount": f"{number}.50", "at": f"2026-03-29T01:30:0{number}Z"}
        orders = [{"id": 10 * number + index, **order} for index in range(2)]
        tags: list[list[str | None] | None] = [None, ["new", None], []]
        customer = {"id": number, "tags": tags[number % 3], "home": {"city": "Bern"} if number % 2 else None}
        for source, rows in (("orders", orders), ("customers", [customer])):
            text = "\n".join(map(json.dumps, rows))
            (self.folder / f"in/{source}/{number}.json").write_text(text)

    def sink(self) -> ClickHouseSink:
        options = {"url": f"clickhouse://embedded/{self.folder}/clickhouse", "database": "shop"}
        sink = open_sink("mirror", "clickhouse", options)
        assert isinstance(sink, ClickHouseSink)
        return sink

    def verdicts(self) -> list[SinkVerdict]:
        job = self.pipeline.job
        (declaration,) = declared_sinks(job.topology, job.settings.sinks)
        return list(verify_sink(job.base, job.store, job.lake, declaration, (), None))

    def check(self, *checkpoints: int) -> None:
        """The mirror shows the lake at the newest of the checkpoints, and still has the older ones."""
        with contextlib.closing(self.sink()) as sink:
            published = sink.published()
            assert published is not None
            assert published.checkpoint == checkpoints[-1]
            job = self.pipeline.job
            for number in map(CheckpointNumber, checkpoints):
                versions = job.store.checkpoints.versions_at(number)
                for name in TABLES:
                    rows = job.lake_table(name).read(job.base, versions[name])
                    assert sink.audit(name, number) == sink.digest(name, rows), (number, name)
            seen = sink._first._engine.rows("SELECT customer, amount, latest FROM shop.totals")
        latest = "date_format(to_utc_timestamp(latest, current_timezone()), 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        query = f"SELECT customer, CAST(amount AS DOUBLE), {latest} FROM totals"
        assert Counter(map(tuple, seen)) == Counter(self.pipeline.query(query))


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, spark)
    yield shop
    shop.pipeline.close()


@pytest.mark.quick
def test_each_pointer_shows_the_lake_at_its_checkpoint(shop: Shop) -> None:
    checkpoints: list[int] = []
    for strike in (None, (Step.SINK_COMMIT, "after")):
        shop.add()
        if strike is not None:
            effects = SinkStrikes(Strike(*strike, "crash", on="mirror"))
            with shop.pipeline.opened(effects) as (job, _), contextlib.suppress(Crash):
                shop.pipeline.execute(job)
            assert effects.struck
        happened = shop.pipeline.run()
        assert happened.state == "COMPLETED", happened.of("sink_failed")
        if strike is None:
            (delivered,) = happened.of("sink_delivered")
        checkpoints.append(int(shop.pipeline.job.store.checkpoints.highest_used_number()))
    assert {each["dataset"].rsplit(".")[-1]: each["reason_code"] for each in delivered["compared"]} == {
        "customers": "SINK_ROWS_HASHED_COMPOSITES",
        "orders": "SINK_ROWS_HASHED_FIRST",
        "totals": "SINK_ROWS_HASHED_FIRST",
    }
    assert len(set(checkpoints)) == 2
    shop.check(*checkpoints)
    assert [verdict.equal for verdict in shop.verdicts()] == [True, True, True]
    with contextlib.closing(shop.sink()) as sink:
        sink._first._engine.run(
            "ALTER TABLE shop.taut_rows_orders DELETE WHERE id = 21 SETTINGS mutations_sync = 2"
        )
    wrong = shop.verdicts()[1]
    assert (wrong.equal, wrong.lake_rows, wrong.sink_rows) == (False, 4, 3)
    ((row, in_sink, in_lake),) = [
        (json.loads(row.row), row.in_sink, row.in_lake) for row in wrong.differences
    ]
    assert (row["id"], row["amount"], in_sink, in_lake) == (21, "2.50", 0, 1)


def test_a_view_with_other_columns_is_mirrored_anew_and_alone(shop: Shop) -> None:
    shop.add()
    assert shop.pipeline.run().state == "COMPLETED"
    definitions = shop.pipeline.folder / "definitions/shop.py"
    text = definitions.read_text()
    changed = text.replace("sum(amount) AS amount", "CAST(sum(amount) AS STRING) AS amount, count(*) AS n")
    definitions.write_text(changed)
    shop.add()
    happened = shop.pipeline.run()
    assert happened.state == "COMPLETED", happened.of("sink_failed")
    reasons = {
        each["dataset"].rsplit(".")[-1]: each["reason_code"]
        for event in happened.of("sink_delivered")
        for each in event["replaced_reasons"]
    }
    assert reasons == {"totals": "SINK_TABLE_REBUILT"}
    assert [verdict.equal for verdict in shop.verdicts()] == [True, True, True]
    with contextlib.closing(shop.sink()) as sink:
        assert sink._first._engine.rows("SELECT amount, toString(n) FROM shop.totals") == [["8.00", "4"]]


@pytest.mark.slow
@pytest.mark.crash
def test_a_killed_delivery_doubles_and_loses_nothing(shop: Shop) -> None:
    shop.add()
    assert shop.pipeline.run().state == "COMPLETED"
    checkpoints = [int(shop.pipeline.job.store.checkpoints.highest_used_number())]
    for step in (Step.SINK_WRITE, Step.SINK_PREPARE, Step.SINK_COMMIT):
        shop.add()
        killed = subprocess.run(
            [sys.executable, "-m", "tautochrone.cli.main", "run"],
            cwd=shop.pipeline.folder,
            env={**os.environ, FAULT_VARIABLE: fault(step, "after", "kill")},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        happened = shop.pipeline.run()
        assert happened.state == "COMPLETED", happened.of("sink_failed")
        checkpoints.append(int(shop.pipeline.job.store.checkpoints.highest_used_number()))
        shop.check(*checkpoints)
    shop.pipeline.close()
    command = [sys.executable, "-m", "tautochrone.cli.main", "verify", "--sink", "mirror", "--json"]
    verified = subprocess.run(
        command, cwd=shop.pipeline.folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert verified.returncode == 0, verified.stderr
    assert [json.loads(line)["equal"] for line in verified.stdout.splitlines()] == [True] * 3
