"""The Kafka sink on a real broker: whole transactions, lost answers, older owners, topics of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.sinks.kafka.benches import KafkaBench, committed_messages, newest_values
from tests.support.kafka import KafkaBroker

from tautochrone.errors import SinkError, SinkFencedError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.sink import Intent, Sink, TransactionId, TransactionState
from tautochrone.sinks import examine_sink, open_sink
from tautochrone.sinks.kafka import client
from tautochrone.sinks.kafka.client import new_producer
from tautochrone.sinks.kafka.options import kafka_options
from tautochrone.sinks.kafka.sink import KafkaSink
from tautochrone.testing.sink_conformance import LINES, ORDERS, begin
from tautochrone.testing.sqlite_sink import ListRows

Row = tuple[int, str | None]


@pytest.fixture
def bench(broker: KafkaBroker) -> Iterator[KafkaBench]:
    bench = KafkaBench(broker.bootstrap, "upsert")
    yield bench
    bench.close()


def owner(bench: KafkaBench, fence: int) -> Sink:
    """The sink, opened and claimed by a new owner."""
    sink = bench.open()
    sink.fence(Fence(fence))
    sink.recover([], Fence(fence))
    for table in (ORDERS, LINES):
        sink.ensure(table, bench.schema(), ["id"], Fence(fence))
    return sink


def transaction(checkpoint: int, fence: int) -> TransactionId:
    return TransactionId(
        incarnation="store-1", sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(fence)
    )


def prepare(sink: Sink, checkpoint: int, fence: int, added: list[Row], removed: list[Row]) -> TransactionId:
    """Send the same rows to both tables."""
    change = RowChange(
        added=ListRows(["id", "word"], added) if added else None,
        removed=ListRows(["id", "word"], removed) if removed else None,
        rows=len(added) + len(removed),
    )
    opened = transaction(checkpoint, fence)
    begin(sink, Intent(transaction=opened, versions={}))
    chunks = [chunk for table in (ORDERS, LINES) for chunk in sink.write(opened, table, change)]
    sink.prepare(opened, chunks)
    return opened


def deliver(
    sink: Sink, checkpoint: int, fence: int, added: list[Row], removed: list[Row] | None = None
) -> None:
    sink.commit(prepare(sink, checkpoint, fence, added, removed or []), Fence(fence))


def rows(bench: KafkaBench, table: Any) -> dict[int, str | None]:
    return {row["id"]: row["word"] for row in newest_values(bench.messages(table)).values()}


def test_upserts_deletes_and_rebuilds(bench: KafkaBench) -> None:
    sink = owner(bench, 1)
    deliver(sink, 1, 1, [(1, "one"), (2, "two")])
    deliver(sink, 2, 1, [(1, "uno"), (3, None)], [(1, "one"), (2, "two")])
    assert rows(bench, ORDERS) == rows(bench, LINES) == {1: "uno", 3: None}
    assert [message.key() for message in bench.messages(ORDERS)][-1] == b'{"id":2}'
    frame = ListRows(["id", "word"], [(3, None), (1, "uno")])
    assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, frame)

    rebuilt = transaction(3, 1)
    begin(sink, Intent(transaction=rebuilt, versions={}, replaced=(ORDERS,)))
    whole = ListRows(["id", "word"], [(3, None), (4, "four")])
    chunks = sink.replace(rebuilt, ORDERS, whole)
    assert sum(chunk.digest.rows for chunk in chunks) == 2, "the row that is there already is not sent"
    sink.prepare(rebuilt, chunks)
    sink.commit(rebuilt, Fence(1))
    assert rows(bench, ORDERS) == {3: None, 4: "four"}
    assert sink.audit(ORDERS, CheckpointNumber(3)) == sink.digest(ORDERS, whole)

    other = ListRows(["id", "word"], [(3, "three"), (4, "four")])
    audited: Any = sink
    differences = audited.differences(ORDERS, CheckpointNumber(3), other, 10)
    assert [(json.loads(difference.row), difference.in_sink) for difference in differences] == [
        ({"id": 3, "word": "three"}, 0),
        ({"id": 3}, 1),
    ]
    with pytest.raises(SinkError) as refused:
        prepare(sink, 4, 1, [(1, "a"), (1, "b")], [])
    assert refused.value.error_class == "SINK_KEY_NOT_UNIQUE"


def test_a_zombie_is_fenced_and_a_lost_commit_is_settled(bench: KafkaBench) -> None:
    first = owner(bench, 1)
    deliver(first, 1, 1, [(1, "one")])
    prepared = prepare(first, 2, 1, [(1, "zombie")], [(1, "one")])
    # The zombie passes its own look at the fence, and only then the new owner comes.
    second = owner(bench, 2)
    owners: Any = cast("Any", first)._owners
    require, owners.require = owners.require, lambda fence: None
    with pytest.raises(SinkError) as lost_session:
        first.commit(prepared, Fence(1))
    assert lost_session.value.error_class == "SINK_SESSION_LOST"
    owners.require = require
    with pytest.raises(SinkFencedError):
        first.commit(prepared, Fence(1))
    intent = Intent(transaction=prepared, versions={})
    (recovered,) = second.recover([intent], Fence(2))
    assert recovered.state is TransactionState.ABORTED
    assert rows(bench, ORDERS) == {1: "one"}

    deliver(second, 2, 2, [(1, "uno")], [(1, "one")])
    lost = Intent(transaction=transaction(2, 2), versions={})
    third = owner(bench, 3)
    (recovered,) = third.recover([lost], Fence(3))
    assert recovered.state is TransactionState.COMMITTED
    with pytest.raises(SinkFencedError):
        second.begin(Intent(transaction=transaction(3, 2), versions={}))
    deliver(third, 3, 3, [], [(1, "uno")])
    assert rows(bench, ORDERS) == rows(bench, LINES) == {}


class LosesItsFatalError:
    """A producer whose client logs within the callback that raises: its next flush ends as CPython says."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, timeout_s: float) -> int:
        raise SystemError("<built-in method flush> returned NULL without setting an exception")


def test_a_fatal_error_that_the_client_loses_ends_the_session(bench: KafkaBench) -> None:
    sink = owner(bench, 1)
    deliver(sink, 1, 1, [(1, "one")])
    prepared = prepare(sink, 2, 1, [(1, "two")], [(1, "one")])
    session = cast("Any", sink)._owners.session
    session._producer = LosesItsFatalError(session._producer)
    with pytest.raises(SinkError) as lost_session:
        sink.commit(prepared, Fence(1))
    assert lost_session.value.error_class == "SINK_SESSION_LOST"
    assert lost_session.value.retryable
    (recovered,) = sink.recover([Intent(transaction=prepared, versions={})], Fence(1))
    assert recovered.state is TransactionState.COMMITTED, "what was prepared is sent again"
    assert [json.loads(message.value())["word"] for message in bench.messages(ORDERS)] == ["one", "two"]


def test_topics_of_others_are_refused(bench: KafkaBench) -> None:
    writer = Producer({"bootstrap.servers": bench.bootstrap})
    sink = owner(bench, 1)
    deliver(sink, 1, 1, [(1, "one")])
    lines = bench.options.topic_of(LINES)

    other = KafkaBench(bench.bootstrap, "upsert", topic=bench.options.topic)
    try:
        with pytest.raises(SinkError, match="records that this sink did not write") as refused:
            owner(other, 1)
        assert refused.value.error_class == "SINK_NAME_TAKEN"
    finally:
        other.close()

    writer.produce(lines, b"x", b"y")
    writer.flush()
    with pytest.raises(SinkError, match="somebody else wrote the record at offset") as refused:
        deliver(owner(bench, 2), 2, 2, [(2, "two")])
    assert refused.value.error_class == "SINK_NAME_TAKEN"


def test_topics_belong_to_one_sink_of_one_lake(bench: KafkaBench) -> None:
    options = {
        "kafka.bootstrap.servers": bench.bootstrap,
        "topic": bench.options.topic,
        "control_topic": bench.options.control_topic,
    }

    def claimed(name: str, lake: str, **other: str) -> Sink:
        sink = KafkaSink(name, kafka_options(name, {**options, **other}))
        try:
            sink.claim(lake)
            sink.fence(Fence(1))
        finally:
            sink.close()
        return sink

    claimed("mirror", "lake-1")
    claimed("mirror", "lake-1")
    for name, lake in (("archive", "lake-1"), ("mirror", "lake-2")):
        with pytest.raises(SinkError) as refused:
            claimed(name, lake)
        assert refused.value.error_class == "SINK_DATABASE_TAKEN"
        assert not refused.value.retryable
    # Topics that Kafka takes for the same, and the control topic itself.
    dots, control = TableName("lake", ("a",), "b"), TableName("lake", ("default",), "control")
    sink = owner(bench, 2)
    sink.ensure(dots, bench.schema(), ["id"], Fence(2))
    for table in (TableName("lake", ("default",), "a_b"), control):
        with pytest.raises(SinkError) as refused:
            sink.ensure(table, bench.schema(), ["id"], Fence(2))
        assert refused.value.error_class == "SINK_OPTION_INVALID"
    assert bench.options.topic_of(control) == bench.options.control_topic


@pytest.mark.parametrize("limit", [pytest.param("", marks=pytest.mark.slow), "4000"])
def test_a_row_that_is_too_large_is_told_before_anything_is_sent(bench: KafkaBench, limit: str) -> None:
    sink = owner(bench, 1)
    if limit:
        entry = ConfigEntry("max.message.bytes", limit, incremental_operation=AlterConfigOpType.SET)
        topic = bench.options.topic_of(ORDERS)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": bench.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result()
        time.sleep(0.2)
        sink = owner(bench, 2)
    fence = 2 if limit else 1
    largest = int(limit or 1_000_000) - 512 - len('{"id":1}' + '{"id":1,"word":""}')
    deliver(sink, 1, fence, [(1, "x" * largest)])
    with pytest.raises(SinkError, match='"id":2') as refused:
        prepare(sink, 2, fence, [(2, "x" * (largest + 1))], [])
    assert refused.value.error_class == "SINK_VALUE_UNSUPPORTED"
    assert rows(bench, ORDERS).keys() == rows(bench, LINES).keys() == {1}


# -- killed processes -----------------------------------------------------------------------------

STEPS = ["init_transactions", "begin_transaction", "produce", "flush", "commit_transaction"]


class KillingProducer:
    """Kills the process before or after one call."""

    def __init__(self, producer: Any, step: str, moment: str, count: list[int]) -> None:
        self._producer, self._step, self._moment, self._count = producer, step, moment, count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)
        if name != self._step:
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            self._count[0] -= 1
            if self._count[0] == 0 and self._moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **named)
            if self._count[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def run_killed(options: dict[str, str], step: str, moment: str, count: int) -> None:
    """In a process of its own: deliver checkpoint 2 as a new owner, and die on the way."""
    calls = [count]
    sink = KafkaSink(
        "mirror",
        kafka_options("mirror", options),
        lambda opened, refusals: KillingProducer(new_producer(opened, refusals), step, moment, calls),
    )
    sink.fence(Fence(2))
    sink.recover([], Fence(2))
    deliver(sink, 2, 2, [(1, "uno"), (2, "two")], [(1, "one")])


def check_killed(bench: KafkaBench, step: str, moment: str, count: int) -> bool:
    """Whether the killed transaction arrived. Whole in both topics, or not at all."""
    deliver(owner(bench, 1), 1, 1, [(1, "one")])
    options = {
        "kafka.bootstrap.servers": bench.bootstrap,
        "topic": bench.options.topic,
        "control_topic": bench.options.control_topic,
        "chunk_rows": "1",
    }
    call = f"run_killed({options}, {step!r}, {moment!r}, {count})"
    code = f"from tests.sinks.kafka.test_sink import run_killed; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    sink = owner(bench, 3)
    (recovered,) = sink.recover([Intent(transaction=transaction(2, 2), versions={})], Fence(3))
    arrived = recovered.state is TransactionState.COMMITTED
    expected = {1: "uno", 2: "two"} if arrived else {1: "one"}
    assert rows(bench, ORDERS) == rows(bench, LINES) == expected
    if not arrived:
        deliver(sink, 2, 3, [(1, "uno"), (2, "two")], [(1, "one")])
    assert rows(bench, ORDERS) == rows(bench, LINES) == {1: "uno", 2: "two"}
    pointers = [
        json.loads(message.value())
        for message in committed_messages(bench.bootstrap, bench.options.control_topic)
        if message.key() == b"pointer"
    ]
    assert [pointer["transaction"]["checkpoint"] for pointer in pointers] == [1, 2]
    return arrived


def test_a_process_killed_at_its_commit(bench: KafkaBench) -> None:
    # The first commit is that of the fence.
    assert check_killed(bench, "commit_transaction", "after", 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_every_step(bench: KafkaBench, step: str, moment: str, count: int) -> None:
    check_killed(bench, step, moment, count)


def test_a_wrong_password_is_a_log_in_that_was_refused(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_S", 5.0)
    options = {
        "kafka.bootstrap.servers": broker.login_bootstrap,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "sink",
    }
    sink = open_sink("mirror", "kafka-transactional", {**options, "kafka.sasl.password": "right-1"})
    assert sink.published() is None
    sink.close()
    sink = open_sink("mirror", "kafka-transactional", {**options, "kafka.sasl.password": "wrong-1"})
    with monkeypatch.context() as patch:
        # It waits out this time.
        patch.setattr(client, "_TIMEOUT_S", 2.0)
        with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED") as refused:
            sink.published()
    assert not refused.value.retryable
    assert "wrong-1" not in str(refused.value)
    sink.close()
    answer = examine_sink("mirror", "kafka-transactional", {**options, "kafka.sasl.password": "right-1"})
    assert "mirror.taut-control is made by the first run" in str(answer)
