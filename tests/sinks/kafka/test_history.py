"""Older checkpoints are audited from the records of the topics, as far as Kafka has kept them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.sinks.kafka.benches import KafkaBench
from tests.support.kafka import KafkaBroker

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, Version
from tautochrone.model.reason_codes import ReasonCode
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks.kafka.control import HISTORY
from tautochrone.testing.sink_conformance import ORDERS, begin
from tautochrone.testing.sqlite_sink import ListRows

COLUMNS = ["id", "word"]
FIRST = [(number, f"word {number}") for number in range(8)]
SECOND = [(0, "new"), *FIRST[2:]]


@pytest.fixture(params=["upsert", "changelog"])
def bench(broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[KafkaBench]:
    bench = KafkaBench(broker.bootstrap, request.param, partitions="3")
    yield bench
    bench.close()


either_mode = pytest.mark.parametrize(
    "bench", ["upsert", pytest.param("changelog", marks=pytest.mark.slow)], indirect=True
)
"""For what does not depend on the mode."""


def opened(bench: KafkaBench, fence: int = 1) -> Any:
    sink = bench.open()
    sink.fence(Fence(fence))
    sink.ensure(ORDERS, bench.schema(), ["id"], Fence(fence))
    return sink


def deliver(
    sink: Any, checkpoint: int, added: Any, removed: Any = (), incarnation: str = "store-1", fence: int = 1
) -> None:
    transaction = TransactionId(
        incarnation=incarnation, sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(fence)
    )
    versions = {ORDERS: Version(f"{incarnation} {checkpoint}")}
    begin(sink, Intent(transaction=transaction, versions=versions))
    change = RowChange(
        added=ListRows(COLUMNS, list(added)) if added else None,
        removed=ListRows(COLUMNS, list(removed)) if removed else None,
        rows=len(added) + len(removed),
    )
    sink.prepare(transaction, sink.write(transaction, ORDERS, change))
    sink.commit(transaction, Fence(fence))


def deliver_three(sink: Any) -> None:
    deliver(sink, 1, FIRST)
    deliver(sink, 4, [(0, "new")], FIRST[:2])
    deliver(sink, 5, [(1, "back")], [FIRST[7]])


def test_each_delivered_checkpoint_is_told_from_the_topic(bench: KafkaBench) -> None:
    deliver_three(opened(bench))
    sink = opened(bench, fence=2)
    third = [*SECOND[:-1], (1, "back")]
    for checkpoint, rows in ((1, FIRST), (4, SECOND), (5, third)):
        number = CheckpointNumber(checkpoint)
        assert sink.published_at(number).versions == {ORDERS: f"store-1 {checkpoint}"}
        assert sink.unknown_parts(ORDERS, number) == {}
        assert sink.audit(ORDERS, number) == sink.digest(ORDERS, ListRows(COLUMNS, rows))
    assert sink.digest(ORDERS, ListRows(COLUMNS, FIRST)).keys() <= {"0", "1", "2"}
    # One other row changes one partition, and is named.
    number = CheckpointNumber(4)
    other = ListRows(COLUMNS, [(0, "other"), *SECOND[1:]])
    shown, expected = sink.audit(ORDERS, number), sink.digest(ORDERS, other)
    assert len([part for part in shown if shown[part] != expected[part]]) == 1
    differences = sink.differences(ORDERS, number, other, 10)
    assert sorted(json.loads(difference.row)["word"] for difference in differences) == ["new", "other"]
    # Checkpoints 2 and 3 came with checkpoint 4.
    assert sink.published_at(CheckpointNumber(3)) is None
    with pytest.raises(SinkError) as refused:
        sink.audit(ORDERS, CheckpointNumber(3))
    assert refused.value.error_class == "SINK_CHECKPOINT_GONE"


@either_mode
def test_a_number_given_again_is_that_of_the_newest_commit(bench: KafkaBench) -> None:
    sink = opened(bench)
    deliver_three(sink)
    deliver(sink, 4, [(9, "restored")], incarnation="store-2")
    assert sink.published_at(CheckpointNumber(4)).versions == {ORDERS: "store-2 4"}
    rows = [*SECOND[:-1], (1, "back"), (9, "restored")]
    assert sink.audit(ORDERS, CheckpointNumber(4)) == sink.digest(ORDERS, ListRows(COLUMNS, rows))


def remove_record(sink: Any, partition: int) -> None:
    """As if Kafka had compacted the first record of a partition of the topic."""
    client = sink._client
    read = client.read

    def reading(topic: str, starts: Any) -> Iterator[Any]:
        is_first = True
        for message in read(topic, starts):
            if is_first and message.partition() == partition and not topic.endswith("control"):
                is_first = False
                continue
            yield message

    client.read = reading


def test_compacted_records_are_a_reason_and_no_difference(bench: KafkaBench) -> None:
    sink = opened(bench)
    deliver_three(sink)
    whole = sink.digest(ORDERS, ListRows(COLUMNS, SECOND))
    remove_record(sink, 1)
    checkpoint = CheckpointNumber(4)
    if sink.capabilities.keyed:
        unknown = sink.unknown_parts(ORDERS, checkpoint)
        assert unknown.keys() == {"1"}
        assert unknown["1"].code is ReasonCode.SINK_RECORDS_REMOVED
        shown = sink.audit(ORDERS, checkpoint)
        assert all(shown[part] == whole[part] for part in whole if part != "1")
        assert sink.differences(ORDERS, checkpoint, ListRows(COLUMNS, SECOND), 10) == []
        # Of the newest checkpoint compaction removes no row that the table has.
        assert sink.unknown_parts(ORDERS, CheckpointNumber(5)) == {}
    else:
        with pytest.raises(SinkError, match="lacks 1 of its records") as refused:
            sink.audit(ORDERS, checkpoint)
        assert refused.value.error_class == "SINK_TOPIC_RETENTION"


def change_settings(admin: AdminClient, topic: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


@either_mode
def test_a_topic_that_was_created_again_tells_no_older_checkpoint(bench: KafkaBench) -> None:
    sink = opened(bench)
    deliver_three(sink)
    topic = bench.options.topic_of(ORDERS)
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    admin.delete_topics([topic])[topic].result()
    while sink._client.topic(topic) is not None:
        time.sleep(0.02)
    assert sink.changed_tables([ORDERS], None).keys() == {ORDERS}
    sink.ensure(ORDERS, bench.schema(), ["id"], Fence(1))
    transaction = TransactionId(
        incarnation="store-1", sink="mirror", checkpoint=CheckpointNumber(6), fence=Fence(1)
    )
    begin(sink, Intent(transaction=transaction, versions={ORDERS: Version("6")}, replaced=(ORDERS,)))
    rows = ListRows(COLUMNS, SECOND)
    sink.prepare(transaction, sink.replace(transaction, ORDERS, rows))
    sink.commit(transaction, Fence(1))
    newest, older = CheckpointNumber(6), CheckpointNumber(5)
    assert sink.audit(ORDERS, newest) == sink.digest(ORDERS, rows)
    assert sink.unknown_parts(ORDERS, newest) == {}
    assert not sink.changed_tables([ORDERS], None)
    assert sink.audit(ORDERS, older) == {}
    assert sink.unknown_parts(ORDERS, older).keys() == {"0", "1", "2"}


@either_mode
def test_deleted_records_of_a_topic_are_told_by_their_class(bench: KafkaBench) -> None:
    sink = opened(bench)
    deliver_three(sink)
    topic = bench.options.topic_of(ORDERS)
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    # A broker deletes no records of a topic that is only compacted.
    change_settings(admin, topic, {"cleanup.policy": "compact,delete"})
    for future in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        future.result()
    with pytest.raises(SinkError) as refused:
        sink.audit(ORDERS, CheckpointNumber(4))
    assert refused.value.error_class == "SINK_TOPIC_RETENTION"


@either_mode
def test_the_history_of_the_control_topic_is_bounded(
    bench: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HISTORY >= 1_000
    monkeypatch.setattr("tautochrone.sinks.kafka.control.HISTORY", 2)
    sink = opened(bench)
    deliver_three(sink)
    deliver(sink, 6, [(10, "ten")])
    later = opened(bench, fence=2)
    known = [number for number in range(1, 7) if later.published_at(CheckpointNumber(number))]
    assert known == [5, 6]


@pytest.mark.slow
def test_kafka_itself_compacts_the_topic(broker: KafkaBroker) -> None:
    bench = KafkaBench(broker.bootstrap, "upsert")
    sink = opened(bench)
    deliver_three(sink)
    topic = bench.options.topic_of(ORDERS)
    admin = AdminClient({"bootstrap.servers": bench.bootstrap})
    settings = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0", "max.compaction.lag.ms": "100"}
    change_settings(admin, topic, settings)
    deadline, checkpoint = time.monotonic() + 120, 6
    while not sink.unknown_parts(ORDERS, CheckpointNumber(4)) and time.monotonic() < deadline:
        deliver(sink, checkpoint, [(20, f"word {checkpoint}")])
        checkpoint += 1
    assert sink.unknown_parts(ORDERS, CheckpointNumber(4)).keys() == {"0"}
    assert sink.differences(ORDERS, CheckpointNumber(4), ListRows(COLUMNS, SECOND), 10) == []
    newest = [*SECOND[:-1], (1, "back"), (20, f"word {checkpoint - 1}")]
    number = CheckpointNumber(checkpoint - 1)
    assert sink.audit(ORDERS, number) == sink.digest(ORDERS, ListRows(COLUMNS, newest))
    bench.close()
