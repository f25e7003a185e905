"""Each topic of a sink is deleted, created again, restored, cut, extended or written by somebody else.

Afterwards a reader of committed records sees the lake: by itself, or after somebody did what the hint of an
error says.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.runtime.delivery.test_delivery import LINES, ORDERS, World, bag, world
from tests.sinks.kafka.benches import KafkaBench, committed_messages, net_rows, newest_values
from tests.sinks.test_damages import CHANGES, SCHEMA, TRIES, tried
from tests.support.kafka import KafkaBroker

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import Fence, Version
from tautochrone.model.sink import SentChunk
from tautochrone.runtime.delivery.delivery import Delivery, needs_attention
from tautochrone.testing.sink_conformance import LAKE, new_intent

__all__ = ["world"]

PARTITIONS = 2
ACTIONS = 4
"""So many hints may follow each other."""


class Mirror:
    """The topics of one sink, and what somebody may do to them."""

    def __init__(self, bootstrap: str, mode: str, prefix: str = "") -> None:
        self.bootstrap, self.mode = bootstrap, mode
        self.prefix = prefix or uuid.uuid4().hex[:8]
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.objects = {name: f"{self.prefix}.{name}" for name in ("control", "orders", "lines")}
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": f"{self.prefix}.{{table}}",
            "control_topic": self.objects["control"],
            "mode": mode,
            "partitions": str(PARTITIONS),
        }

    def topic_id(self, topic: str) -> str | None:
        try:
            described = self.admin.describe_topics(TopicCollection([topic]))[topic].result()
        except KafkaException:
            return None
        return str(described.topic_id)

    def delete(self, topic: str) -> None:
        with suppress(KafkaException):
            self.admin.delete_topics([topic])[topic].result()
        while self.topic_id(topic) is not None:
            time.sleep(0.02)

    def create(self, topic: str) -> None:
        is_control = topic == self.objects["control"]
        policy = "compact" if is_control or self.mode == "upsert" else "delete"
        new = NewTopic(topic, 1 if is_control else PARTITIONS, 1, config={"cleanup.policy": policy})
        self.admin.create_topics([new])[topic].result()
        while self.topic_id(topic) is None:
            time.sleep(0.02)
        time.sleep(0.2)

    def recreate(self, topic: str) -> None:
        self.delete(topic)
        self.create(topic)

    def restore(self, topic: str) -> None:
        """The same records in another topic of this name."""
        messages = committed_messages(self.bootstrap, topic)
        self.recreate(topic)
        self.append(topic, messages)

    def append(self, topic: str, messages: Sequence[Any]) -> None:
        writer = Producer({"bootstrap.servers": self.bootstrap})
        for message in messages:
            key, value, headers = message.key(), message.value(), message.headers()
            writer.produce(topic, key=key, value=value, headers=headers, partition=message.partition())
        writer.flush()

    def append_copies(self, topic: str) -> None:
        """Records of the sink a second time, with their headers."""
        self.append(topic, committed_messages(self.bootstrap, topic)[:2])

    def append_older_pointer(self, topic: str) -> None:
        """The first pointer of the control topic a second time; of another topic nothing."""
        pointers = [each for each in committed_messages(self.bootstrap, topic) if each.key() == b"pointer"]
        self.append(topic, pointers[:1])

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        writer = Producer({"bootstrap.servers": self.bootstrap})
        writer.produce(topic, key=key, value=value)
        writer.flush()

    def delete_key(self, topic: str) -> None:
        self.write(topic, committed_messages(self.bootstrap, topic)[0].key(), None)

    def abort_records(self, topic: str) -> None:
        """Records of a transaction that never came to be: no reader sees them."""
        writer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex})
        writer.init_transactions()
        writer.begin_transaction()
        writer.produce(topic, key=b"x", value=b"y")
        writer.flush()
        writer.abort_transaction()

    def add_partition(self, topic: str) -> None:
        count = 2 if topic == self.objects["control"] else PARTITIONS + 1
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result()
        time.sleep(0.2)

    def set(self, topic: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()
        time.sleep(0.1)

    def delete_records(self, topic: str, *, is_all: bool) -> None:
        is_compacted = topic == self.objects["control"] or self.mode == "upsert"
        # A broker deletes no records of a topic that is only compacted.
        self.set(topic, {"cleanup.policy": "compact,delete" if is_compacted else "delete"})
        offset = -1 if is_all else 1
        partitions = range(1 if topic == self.objects["control"] else PARTITIONS)
        for future in self.admin.delete_records(
            [TopicPartition(topic, partition, offset) for partition in partitions]
        ).values():
            with suppress(KafkaException):
                future.result()
        self.set(topic, {"cleanup.policy": "compact" if is_compacted else "delete"})

    def rows(self, topic: str) -> Counter[tuple[Any, ...]]:
        messages = committed_messages(self.bootstrap, topic)
        if self.mode == "upsert":
            return Counter((row["id"], row["word"]) for row in newest_values(messages).values())
        return Counter(
            (row["id"], row["word"]) for row in (json.loads(text) for text in net_rows(messages).elements())
        )

    def follow(self, hint: str) -> None:
        """Do what an error's hint says."""
        if "delete it and the topics of the tables" in hint:
            for topic in self.objects.values():
                self.delete(topic)
        elif topic := re.search(r"elete the topic (\S+):", hint):
            self.delete(topic[1])
        elif settings := re.findall(r"([a-z.]+)=([a-z0-9-]+)", hint):
            for name, topic in self.objects.items():
                if name != "control" or settings == [("cleanup.policy", "compact")]:
                    self.set(topic, dict(settings))
        else:
            raise AssertionError(hint)


Damage = Callable[[Mirror, str], object]
DAMAGES: dict[str, Damage] = {
    "delete": Mirror.delete,
    "recreate": Mirror.recreate,
    "restore": Mirror.restore,
    "copy records": Mirror.append_copies,
    "copy the older pointer": Mirror.append_older_pointer,
    "write": lambda mirror, topic: mirror.write(topic, b"x", b"y"),
    "write rows": lambda mirror, topic: mirror.write(topic, b'{"id":4}', b'{"id":4,"word":"other"}'),
    "delete a key": Mirror.delete_key,
    "abort records": Mirror.abort_records,
    "add a partition": Mirror.add_partition,
    "delete a record": lambda mirror, topic: mirror.delete_records(topic, is_all=False),
    "delete all records": lambda mirror, topic: mirror.delete_records(topic, is_all=True),
    "retention": lambda mirror, topic: mirror.set(
        topic, {"cleanup.policy": "delete", "retention.ms": "9000000"}
    ),
    "size": lambda mirror, topic: mirror.set(
        topic, {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1000000"}
    ),
    "compact and delete": lambda mirror, topic: mirror.set(topic, {"cleanup.policy": "compact,delete"}),
    "compact": lambda mirror, topic: mirror.set(topic, {"cleanup.policy": "compact"}),
}
MENDED = {"delete", "recreate", "abort records", "compact"}
"""What needs nobody, at topics of tables."""
SHORT = {
    ("delete", "control"),
    ("copy the older pointer", "control"),
    ("recreate", "orders"),
    ("retention", "lines"),
}


def settle(mirror: Mirror, delivery: Delivery) -> list[str]:
    """Deliver as a worker does, and follow the hints; answers the errors that needed somebody."""
    answers: list[str] = []
    failures = 0
    while (error := tried(delivery)) is not None:
        failures += 1
        assert failures < ACTIONS * TRIES, error
        if needs_attention(error) or failures % TRIES == 0:
            answers.append(error.error_class)
            assert len(answers) <= ACTIONS, error
            mirror.follow(error.hint or "")
    return answers


def schedule() -> Iterator[Any]:
    for mode in ("upsert", "changelog"):
        for damage in DAMAGES:
            for name in ("control", "orders", "lines"):
                for moment in ("living", "between", "idle"):
                    is_short = (damage, name) in SHORT and mode == "upsert" and moment == "living"
                    marks = () if is_short else (pytest.mark.slow,)
                    yield pytest.param(mode, damage, name, moment, marks=marks)


@pytest.mark.parametrize(("mode", "damage", "name", "moment"), list(schedule()))
def test_a_damaged_topic_shows_the_lake_again(
    world: World, broker: KafkaBroker, mode: str, damage: str, name: str, moment: str
) -> None:
    """`living`: the next delivery of the same process. `between`: a new process has news. `idle`: it has
    none."""
    mirror = Mirror(broker.bootstrap, mode)
    key = ("id",) if mode == "upsert" or name == "orders" else ()

    def publish(number: int) -> None:
        bags = [bag(*ids) for ids in CHANGES[number]]
        world.publish([Counter(set(rows)) for rows in bags] if key else bags)

    def opened() -> Delivery:
        return world.mirrored("kafka-transactional", mirror.options, SCHEMA, key)

    delivery = opened()
    publish(0)
    assert not settle(mirror, delivery)
    publish(1)
    assert not settle(mirror, delivery)
    DAMAGES[damage](mirror, mirror.objects[name])
    if moment != "living":
        delivery.close()
        world.take_over()
        delivery = opened()
    if moment != "idle":
        publish(2)
    answers = settle(mirror, delivery)
    if damage in MENDED and name != "control" and (damage, mode) != ("compact", "changelog"):
        assert not answers
    shown = delivery._published
    assert shown is not None
    for table, topic in ((ORDERS, "orders"), (LINES, "lines")):
        rows = mirror.rows(mirror.objects[topic])
        assert rows == world.tables[table].content[shown.versions[table]], (topic, answers)
    assert shown.versions == {table: content.main for table, content in world.tables.items()}
    delivery.close()


# -- in the middle of a transaction -----------------------------------------------------------------

STEPS = ("begin", "write", "prepare", "commit")
HARMLESS = {"abort records", "compact", "copy the older pointer"}


def steps_schedule() -> Iterator[Any]:
    for damage in DAMAGES.keys() - HARMLESS:
        # The first records of the control topic say the same when they are there twice.
        for name in ("orders",) if damage == "copy records" else ("control", "orders"):
            for step in STEPS:
                is_short = (damage, name, step) in {
                    ("recreate", "control", "commit"),
                    ("write", "orders", "prepare"),
                    ("delete", "orders", "commit"),
                }
                marks = () if is_short else (pytest.mark.slow,)
                yield pytest.param(damage, name, step, marks=marks)


@pytest.mark.parametrize(("damage", "name", "step"), sorted(steps_schedule(), key=lambda p: str(p.values)))
def test_a_damage_in_a_transaction_is_noticed(broker: KafkaBroker, damage: str, name: str, step: str) -> None:
    """By the transaction, or by the next look at what the tables hold."""
    bench = KafkaBench(broker.bootstrap, "upsert", partitions=str(PARTITIONS))
    mirror = Mirror(broker.bootstrap, "upsert", bench.prefix)
    sink = bench.open()
    sink.claim(LAKE)
    sink.fence(Fence(1))
    for table in (ORDERS, LINES):
        sink.ensure(table, bench.schema(), ["id"], Fence(1))

    def deliver(number: int, damaged_step: str = "") -> None:
        change = RowChange(added=bench.frame([(number, "row"), (number + 10, "row")]), rows=2)
        versions = {table: Version(str(number)) for table in (ORDERS, LINES)}
        intent = replace(new_intent(number), versions=versions)
        published = sink.published()
        based = replace(intent, base=None if published is None else published.transaction)
        transaction = intent.transaction
        chunks: list[SentChunk] = []
        operations: dict[str, Callable[[], object]] = {
            "begin": lambda: sink.begin(based),
            "write": lambda: chunks.extend(sink.write(transaction, ORDERS, change)),
            "prepare": lambda: sink.prepare(transaction, chunks),
            "commit": lambda: sink.commit(transaction, Fence(1)),
        }
        for operation, run in operations.items():
            if operation == damaged_step:
                DAMAGES[damage](mirror, mirror.objects[name])
            run()

    deliver(1)
    answers: list[str] = []
    try:
        deliver(2, step)
    except SinkError as error:
        answers.append(error.error_class)
    else:
        try:
            published = sink.published()
            changed = () if published is None else sink.changed_tables((ORDERS, LINES), None)
            answers += ["no pointer"] if published is None else [reason.code for reason in changed.values()]
        except SinkError as error:
            answers.append(error.error_class)
    assert answers
    bench.close()
