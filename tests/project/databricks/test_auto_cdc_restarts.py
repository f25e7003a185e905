"""Debezium's events through a pipeline: sent again, and with positions of another server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.harness import Happened

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import POSITION_RESTARTS, position_restarts

from .conftest import DialectProject

pytestmark = pytest.mark.spark

ORDERS = """
from pyspark import pipelines as dp
from tautochrone.sources import debezium

RECORDS = "value STRING, topic STRING, partition INT, offset BIGINT"

@dp.temporary_view
def order_events():
    records = spark.readStream.schema(RECORDS).json("@IN@/@TOPIC@")
    return debezium.events(records, "id INT, state STRING", connector="mysql")

for name, scd_type in (("orders", 1), ("order_history", 2))[:@TABLES@]:
    dp.create_streaming_table(name, table_properties={PROPERTIES})
    dp.create_auto_cdc_flow(
        name=f"{name}_flow",
        target=name,
        source="order_events",
        keys=["id"],
        stored_as_scd_type=scd_type,
        **debezium.AUTO_CDC,
    )
"""


class Topic:
    """A topic with records of one table, each batch of them a file."""

    def __init__(self, project: DialectProject, name: str) -> None:
        self.project, self.name, self.offsets, self.files = project, name, {0: 0, 1: 0}, 0

    def send(self, *events: tuple[int, str | None, str, int], partition: int | None = None) -> None:
        """Events of a key, a state or None for a deletion, and a file and a position in it."""
        records = []
        for key, state, file, pos in events:
            number = key % 2 if partition is None else partition
            images = {"before": {"id": key}} if state is None else {"after": {"id": key, "state": state}}
            source = {"file": file, "pos": pos, "row": 0, "ts_ms": 1000 * pos + len(file)}
            value = {"op": "d" if state is None else "u", **images, "source": source}
            records.append(
                {
                    "value": json.dumps(value),
                    "topic": self.name,
                    "partition": number,
                    "offset": self.offsets[number],
                }
            )
            self.offsets[number] += 1
        self.files += 1
        self.project.json(f"{self.name}/{self.files}.json", *records)


def define(
    project: DialectProject, topic: str, properties: dict[str, Any] | None = None, *, tables: int = 2
) -> None:
    text = ORDERS.replace("@TOPIC@", topic).replace("{PROPERTIES}", repr(properties or {}))
    project.define("orders.py", text.replace("@TABLES@", str(tables)))


def hint_of(happened: Happened) -> str:
    """Of the failure of `orders`."""
    (hint,) = (f["hint"] for f in happened.of("refresh_failed") if f["dataset"].endswith(".orders"))
    return str(hint)


ROWS = "SELECT id, state FROM orders ORDER BY id"
HISTORY = """
    SELECT id, row_number() OVER (PARTITION BY id ORDER BY __START_AT) AS number, state, __END_AT IS NULL
    FROM order_history
"""


def test_events_are_sent_again_or_refused(project: DialectProject) -> None:
    topic = Topic(project, "orders")
    define(project, "orders", tables=1)
    topic.send((1, "new", "bin.7", 100), (2, "new", "bin.7", 200), (1, "paid", "bin.7", 300))
    assert project.pipeline.run().state == "COMPLETED"
    topic.send((1, "new", "bin.7", 100), (2, "new", "bin.7", 200))
    project.run()
    assert project.rows(ROWS) == [(1, "paid"), (2, "new")]
    assert all(project.verdicts.values())
    topic.send((1, "back", "bin.1", 20))
    assert "CHANGE_EVENTS_ORDER_WENT_BACK" in project.pipeline.run().failure("orders")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_servers_positions_are_refused_until_they_are_declared(project: DialectProject) -> None:
    topic = Topic(project, "orders")
    define(project, "orders")
    topic.send((1, "new", "bin.7", 100), (2, "new", "bin.7", 200), (1, "paid", "bin.7", 300))
    project.run()
    # The connector begins again at 100.
    topic.send((1, "new", "bin.7", 100), (2, "new", "bin.7", 200))
    project.run()
    assert project.rows(ROWS) == [(1, "paid"), (2, "new")]
    topic.send((1, "paid", "bin.7", 300), (1, "sent", "bin.7", 400))
    project.run()
    history = [(1, 1, "new", False), (1, 2, "paid", False), (1, 3, "sent", True), (2, 1, "new", True)]
    assert project.rows(HISTORY) == history
    assert all(project.verdicts.values())
    # A replica takes over; its events of 3 are the first ones of their key.
    topic.send((3, "new", "bin.1", 10), (1, "back", "bin.1", 20), (2, None, "bin.1", 30))
    happened = project.pipeline.run()
    assert happened.state == "FAILED"
    assert "CHANGE_EVENTS_ORDER_WENT_BACK" in happened.failure("orders")
    assert "CHANGE_EVENTS_ORDER_WENT_BACK" in happened.failure("order_history")
    assert project.rows(ROWS) == [(1, "sent"), (2, "new")]
    restarts = {"tautochrone.position-restarts": '{"orders": {"0": 2, "1": 6}}'}
    assert restarts["tautochrone.position-restarts"] in hint_of(happened)
    # What the hint says.
    define(project, "orders", restarts)
    assert "AUTO_CDC_CHANGED" in project.pipeline.run().failure("orders")
    project.run(full=["orders", "order_history"])
    assert project.rows(ROWS) == [(1, "back"), (3, "new")]
    history = [
        (1, 1, "new", False), (1, 2, "paid", False), (1, 3, "sent", False), (1, 4, "back", True),
        (2, 1, "new", False), (3, 1, "new", True),
    ]  # fmt: skip
    assert project.rows(HISTORY) == history
    topic.send((1, "back", "bin.1", 20), (1, "done", "bin.1", 50))
    project.run()
    assert project.rows(ROWS) == [(1, "done"), (3, "new")]
    assert project.rows(HISTORY)[:5] == [*history[:3], (1, 4, "back", False), (1, 5, "done", True)]
    assert all(project.verdicts.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_new_topic_ends_the_trouble(project: DialectProject) -> None:
    topic = Topic(project, "orders")
    define(project, "orders")
    # In the first batch already.
    topic.send((1, "new", "bin.7", 100), (1, "paid", "bin.7", 300), (1, "back", "bin.1", 20))
    happened = project.pipeline.run()
    assert "CHANGE_EVENTS_ORDER_WENT_BACK" in happened.failure("orders")
    assert "--full-refresh orders orders_flow__events" in hint_of(happened)
    fresh = Topic(project, "fresh")
    fresh.send((1, "back", "bin.1", 40), (2, "new", "bin.1", 40))
    define(project, "fresh")
    project.run(
        full=["orders", "orders_flow__events", "order_history", "order_history_flow__events"],
    )
    assert project.rows(ROWS) == [(1, "back"), (2, "new")]
    # A key in two partitions has no order.
    fresh.send((1, "moved", "bin.1", 50), partition=0)
    refused = project.pipeline.run().failure("orders")
    assert "CHANGE_EVENTS_IN_SEVERAL_PARTITIONS" in refused
    define(project, "fresh", {"tautochrone.position-restarts": '{"fresh": {"0": 1}}'})
    project.run(full=["orders", "order_history"])
    assert project.rows(ROWS) == [(1, "moved"), (2, "new")]


def test_restarts_need_offsets_of_partitions(project: DialectProject) -> None:
    Topic(project, "orders").send((1, "new", "bin.7", 100))
    for value in ("soon", "[1]", '{"orders": 1}', '{"orders": {"0": "1"}}', '{"orders": {"a": 1}}'):
        with pytest.raises(DefinitionError) as refused:
            position_restarts({POSITION_RESTARTS: value}, "a.py:1")
        assert refused.value.error_class == "INVALID_POSITION_RESTARTS"
    define(project, "orders", {POSITION_RESTARTS: "soon"})
    with pytest.raises(DefinitionError) as refused:
        project.pipeline.run()
    assert refused.value.error_class == "INVALID_POSITION_RESTARTS"
    text = '{"orders": {"0": 1}}'
    define(project, "orders", {POSITION_RESTARTS: text})
    definitions = project.pipeline.folder / "definitions" / "orders.py"
    wrong = definitions.read_text().replace("**debezium.AUTO_CDC", 'sequence_by="id"')
    project.define("orders.py", wrong)
    with pytest.raises(DefinitionError) as refused:
        project.pipeline.run()
    assert refused.value.error_class == "POSITION_RESTARTS_NOT_SUPPORTED"
