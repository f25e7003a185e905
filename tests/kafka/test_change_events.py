"""Change events from a real Kafka, of which a connector sends some again, become one table."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from tautochrone.sources import canal, debezium, maxwell

spark = SparkSession.active()

@dp.temporary_view
def account_events():
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .load()
    )
    columns = "id INT, owner STRING, balance INT"
    return {events}

dp.create_streaming_table("accounts")
dp.create_auto_cdc_flow(
    target="accounts",
    source="account_events",
    keys=["id"],
    apply_as_truncates="_op = 't'",
    **debezium.AUTO_CDC,
)

@dp.materialized_view
def totals():
    return spark.table("accounts").groupBy("owner").sum("balance")
"""


def changes(randoms: random.Random, first_lsn: int, count: int) -> list[dict[str, Any]]:
    """Changes of twenty accounts, in the database's order."""
    events = []
    for lsn in range(first_lsn, first_lsn + count):
        row = {"id": randoms.randrange(20), "owner": randoms.choice("abc"), "balance": randoms.randrange(100)}
        operation = randoms.choice("cuuud")
        images = {"before": {"id": row["id"]}} if operation == "d" else {"after": row}
        if lsn == first_lsn + count // 2:
            operation, images = "t", {}
        events.append({"op": operation, **images, "source": {"lsn": lsn}})
    return events


def replayed(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows that the database had after these events."""
    rows: dict[int, tuple[Any, ...]] = {}
    for event in events:
        if event["op"] == "t":
            rows.clear()
        elif event["op"] == "d":
            rows.pop(event["before"]["id"], None)
        else:
            rows[event["after"]["id"]] = tuple(event["after"].values())
    return sorted(rows.values())


def as_canal(event: dict[str, Any]) -> dict[str, Any]:
    """As TiCDC writes it, with values as texts."""
    kind = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE"}[event["op"]]
    row = event.get("after") or event.get("before")
    data = [{name: str(value) for name, value in row.items()}] if row else None
    return {
        "database": "bank", "table": "accounts", "type": kind, "isDdl": kind == "TRUNCATE", "data": data,
        "old": None, "_tidb": {"commitTs": event["source"]["lsn"]},
    }  # fmt: skip


def as_maxwell(event: dict[str, Any]) -> dict[str, Any]:
    kind = {"c": "insert", "u": "update", "d": "delete"}[event["op"]]
    lsn, data = event["source"]["lsn"], event.get("after") or event["before"]
    position = {"position": f"bin.{lsn // 300}:{lsn % 300 // 3}", "xoffset": lsn % 3}
    return {"database": "bank", "table": "accounts", "type": kind, "data": data, **position}


@pytest.mark.parametrize(
    ("events_of", "encode"),
    [
        ("debezium.events(records, columns, connector='postgresql')", dict),
        ("canal.events(records, columns, keys=['id'], ordered_by='commit_ts')", as_canal),
        ("maxwell.events(records, columns, keys=['id'], ordered_by='position')", as_maxwell),
    ],
    ids=["debezium", "canal", "maxwell"],
)
def test_table_is_the_database_though_events_are_sent_again(
    pipeline: Pipeline,
    broker: KafkaBroker,
    topic: Topic,
    events_of: str,
    encode: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    randoms = random.Random(7)
    definitions = DEFINITIONS.replace("{bootstrap}", broker.bootstrap).replace("{topic}", topic.name)
    pipeline.write("definitions/events.py", definitions.replace("{events}", events_of))
    events: list[dict[str, Any]] = []

    def send(sent: list[dict[str, Any]]) -> None:
        # A truncation concerns all keys, so they are in one partition; Maxwell sends none.
        partitions = topic.partitions if encode is as_maxwell else 1
        ids = [(event.get("after") or event.get("before") or {"id": 0})["id"] for event in sent]
        both = zip(ids, sent, strict=True)
        topic.topics.produce(
            topic.name, [(id_ % partitions, json.dumps(encode(event))) for id_, event in both]
        )

    for _ in range(3):
        new = changes(randoms, len(events) + 1000, 200)
        if encode is as_maxwell:
            new = [event for event in new if event["op"] != "t"]
        again = randoms.randrange(len(new))
        send([*events[-50:], *new, *new[again:]])
        events += new
        happened = pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        assert pipeline.query("SELECT id, owner, balance FROM accounts") == replayed(events)
        assert [verdict.equal for verdict in pipeline.verify()] == [True, True]
    # Another server: its positions begin lower.
    send([event for event in changes(randoms, 0, 100) if event["op"] != "t"])
    assert "CHANGE_EVENTS_ORDER_WENT_BACK" in pipeline.run().failure("accounts")
    assert pipeline.query("SELECT id, owner, balance FROM accounts") == replayed(events)
