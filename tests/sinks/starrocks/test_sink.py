"""The StarRocks sink passes the suite of all sinks over a fake server, and settles what that one loses."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pymysql
import pytest
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, FewRefusals, LostAnswerError, deliver, stage
from tests.sinks.starrocks.benches import StarrocksBench

from tautochrone.errors import SinkError, SinkFencedError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, TransactionState
from tautochrone.sinks.adapters import has_adapter
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.sinks.starrocks.changes import load_bodies
from tautochrone.sinks.starrocks.client import TransactionClient
from tautochrone.sinks.starrocks.database import StarRocksDatabase
from tautochrone.sinks.starrocks.options import starrocks_options
from tautochrone.sinks.starrocks.tables import MirroredTable
from tautochrone.testing.sink_conformance import LAKE, begin, new_intent, transaction
from tautochrone.testing.sink_conformance import LINES as SHOP_LINES
from tautochrone.testing.sink_conformance import ORDERS as SHOP_ORDERS
from tautochrone.testing.sink_contents_conformance import Rebuild, SinkContentsConformance


@pytest.fixture
def bench() -> Iterator[StarrocksBench]:
    bench = StarrocksBench()
    yield bench
    bench.close()


@pytest.fixture
def sink(bench: StarrocksBench) -> Any:
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), [], Fence(1))
    return sink


class TestStarrocks(FewRefusals):
    @pytest.fixture
    def bench(self) -> Iterator[StarrocksBench]:
        bench = StarrocksBench()
        yield bench
        bench.close()


class TestStarrocksContents(SinkContentsConformance):
    @pytest.fixture
    def bench(self) -> Iterator[StarrocksBench]:
        bench = StarrocksBench()
        yield bench
        bench.close()


def operations(bench: StarrocksBench) -> list[str]:
    return [operation for operation, _ in bench.database.requests]


# -- requests ---------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_transaction_with_the_pointer_in_it(bench: StarrocksBench, sink: Any) -> None:
    deliver(sink, transaction(1), [(1, "one"), (2, None)])
    assert operations(bench) == ["begin", "load", "load", "load", "prepare", "commit"]
    assert len({headers["label"] for _, headers in bench.database.requests}) == 1
    (label,) = bench.database.labels.values()
    assert Counter(table for table, _ in label.loads) == {"orders": 2, "taut_sinks": 1}
    loads = [headers for operation, headers in bench.database.requests if operation == "load"]
    # StarRocks requires that the loads of a transaction differ in their table only.
    varying = ("table", "content-length")
    first, *others = [{k: v for k, v in headers.items() if k not in varying} for headers in loads]
    assert all(headers == first for headers in others)
    assert (first["format"], first["strip_outer_array"], first["max_filter_ratio"]) == ("json", "true", "0")


def test_a_frontend_redirects_to_its_leader(bench: StarrocksBench, sink: Any) -> None:
    bench.database.faults += [("begin", "moved"), ("commit", "moved")]
    deliver(sink, transaction(1), [(1, "one")])
    assert bench.read(ORDERS) == [(1, "one")]


@pytest.mark.parametrize("fault", ["lost", "unsent"])
@pytest.mark.parametrize("operation", ["begin", "prepare", "commit", "rollback"])
def test_a_lost_answer_is_settled_by_the_label(
    bench: StarrocksBench, sink: Any, operation: str, fault: str
) -> None:
    if (operation, fault) == ("prepare", "unsent"):
        bench.database.faults.append((operation, fault))
        with pytest.raises(SinkError):
            stage(sink, transaction(1), [(1, "one")])
        sink.abort(transaction(1), Fence(1))
        assert [label.state for label in bench.database.labels.values()] == ["ABORTED"]
        return
    bench.database.faults.append((operation, fault))
    stage(sink, transaction(1), [(1, "one")])
    if operation == "rollback":
        sink.abort(transaction(1), Fence(1))
        assert [label.state for label in bench.database.labels.values()] == ["ABORTED"]
    else:
        sink.commit(transaction(1), Fence(1))
        assert bench.read(ORDERS) == [(1, "one")]


@pytest.mark.parametrize("fault", ["lost", "unsent", "timed out", "filtered"])
def test_rows_are_loaded_again_with_another_label(bench: StarrocksBench, sink: Any, fault: str) -> None:
    opened = transaction(1)
    begin(sink, Intent(transaction=opened, versions={}))
    chunks = sink.replace(opened, ORDERS, bench.frame([(1, "one"), (1, "one")]))
    bench.database.faults.append(("load", fault))
    with pytest.raises(SinkError):
        sink.prepare(opened, chunks)
    sink.prepare(opened, chunks)
    sink.commit(opened, Fence(1))
    assert bench.read(ORDERS) == [(1, "one"), (1, "one")]
    assert [label.state for label in bench.database.labels.values()] == ["ABORTED", "VISIBLE"]


def test_a_commit_waits_until_readers_see_it(bench: StarrocksBench, sink: Any) -> None:
    bench.database.faults.append(("commit", "slow"))
    deliver(sink, transaction(1), [(1, "one")])
    assert bench.read(ORDERS) == [(1, "one")]


def test_a_transaction_that_timed_out_is_delivered_again(bench: StarrocksBench, sink: Any) -> None:
    stage(sink, transaction(1), [(1, "one")])
    bench.database.faults.append(("commit", "timed out"))
    with pytest.raises(SinkError) as aborted:
        sink.commit(transaction(1), Fence(1))
    assert aborted.value.error_class == "STARROCKS_TRANSACTION_ABORTED"
    assert aborted.value.retryable
    (recovered,) = sink.recover([Intent(transaction=transaction(1), versions={})], Fence(1))
    assert recovered.state is TransactionState.ABORTED
    deliver(sink, transaction(1, attempt=2), [(1, "one")])
    assert bench.read(ORDERS) == [(1, "one")]


def test_a_commit_without_any_answer_is_recovered(bench: StarrocksBench, sink: Any) -> None:
    stage(sink, transaction(1), [(1, "one")])
    bench.database.faults += [("commit", "lost"), ("state", "unsent")]
    with pytest.raises(SinkError) as lost:
        sink.commit(transaction(1), Fence(1))
    assert lost.value.error_class == "SINK_NOT_REACHABLE"
    (recovered,) = sink.recover([Intent(transaction=transaction(1), versions={})], Fence(1))
    assert recovered.state is TransactionState.COMMITTED


def test_a_server_that_does_not_prepare_several_tables_still_commits(
    bench: StarrocksBench, sink: Any
) -> None:
    bench.database.faults.append(("prepare", "unsupported"))
    deliver(sink, transaction(1), [(1, "one")])
    assert bench.read(ORDERS) == [(1, "one")]


def test_a_label_of_somebody_else_is_not_used(bench: StarrocksBench, sink: Any) -> None:
    deliver(sink, transaction(1), [(1, "one")])
    (label,) = bench.database.labels
    with pytest.raises(SinkError) as used:
        sink._client.begin(label, "taut_sinks")
    assert used.value.error_class == "STARROCKS_REFUSED"


# -- owners -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_a_new_owner_rolls_back_what_an_older_one_prepared(
    bench: StarrocksBench, sink: Any, known: bool
) -> None:
    older = transaction(1)
    stage(sink, older, [(1, "one")])
    (label,) = bench.database.labels
    owner = bench.open()
    owner.fence(Fence(2))
    owner.recover([Intent(transaction=older, versions={})] if known else [], Fence(2))
    assert bench.database.labels[label].state == "ABORTED"
    # The older owner looked at the fence before it was raised, and its commit arrives only now.
    sink._require_newest_fence = lambda fence: None
    with pytest.raises(SinkError) as refused:
        sink.commit(older, Fence(1))
    assert refused.value.error_class == "STARROCKS_TRANSACTION_ABORTED"
    assert not bench.read(ORDERS)


def test_a_new_owner_waits_for_a_commit_that_is_under_way(bench: StarrocksBench, sink: Any) -> None:
    stage(sink, transaction(1), [(1, "one")])
    bench.database.faults += [("commit", "slow"), ("state", "unsent")]
    with pytest.raises(SinkError):
        sink.commit(transaction(1), Fence(1))
    owner = bench.open()
    owner.fence(Fence(2))
    (recovered,) = owner.recover([Intent(transaction=transaction(1), versions={})], Fence(2))
    assert recovered.state is TransactionState.COMMITTED
    assert bench.read(ORDERS) == [(1, "one")]


def test_an_older_owner_does_not_begin_after_the_fence_was_raised(bench: StarrocksBench, sink: Any) -> None:
    write_labels = sink._write_labels

    def write_labels_and_lose(fence: Fence, labels: list[str]) -> None:
        write_labels(fence, labels)
        bench.open().fence(Fence(2))

    sink._write_labels = write_labels_and_lose
    with pytest.raises(SinkFencedError):
        deliver(sink, transaction(1), [(1, "one")])
    assert not bench.database.labels
    assert bench.open().highest_fence() == 2


def test_labels_are_seen_by_the_next_owner_before_the_transaction_begins(
    bench: StarrocksBench, sink: Any
) -> None:
    query, hidden = bench.database.query, [2]

    def query_late(statement: str, arguments: Any = ()) -> list[tuple[Any, ...]]:
        if statement.startswith("SELECT `labels`") and hidden[0]:
            hidden[0] -= 1
            assert not bench.database.labels
            return []
        return query(statement, arguments)

    bench.database.query = query_late  # type: ignore[method-assign]
    deliver(sink, transaction(1), [(1, "one")])
    assert not hidden[0]
    assert bench.read(ORDERS) == [(1, "one")]


# -- rows -------------------------------------------------------------------------------------------


def test_keys_are_updated_in_place(bench: StarrocksBench) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), ["word"], Fence(1))
    deliver(sink, transaction(1), [(1, "a"), (1, "A"), (1, "a "), (1, None)])
    deliver(sink, transaction(2), [(2, "a"), (3, "b")], [(1, "a"), (1, "A"), (1, None)])
    expected = [(2, "a"), (3, "b"), (1, "a ")]
    assert Counter(bench.read(ORDERS)) == Counter(expected)
    changes: list[tuple[list[Any], list[Any], str]] = [
        ([(5, "a")], [], "SINK_KEY_NOT_UNIQUE"),
        ([(5, "c"), (6, "c")], [], "SINK_KEY_NOT_UNIQUE"),
        ([(5, "a")], [(1, "a")], "SINK_ROW_MISSING"),
        ([], [(1, "c")], "SINK_ROW_MISSING"),
    ]
    for attempt, (added, removed, error_class) in enumerate(changes, 1):
        opened = transaction(3, attempt=attempt)
        with pytest.raises(SinkError) as refused:
            deliver(sink, opened, added, removed)
        assert refused.value.error_class == error_class
        sink.abort(opened, Fence(1))
    assert Counter(bench.read(ORDERS)) == Counter(expected)
    replacing = transaction(4)
    begin(sink, Intent(transaction=replacing, versions={}, replaced=(ORDERS,)))
    sink.prepare(replacing, sink.replace(replacing, ORDERS, bench.frame([(9, "a")])))
    sink.commit(replacing, Fence(1))
    assert bench.read(ORDERS) == [(9, "a")]
    frame = bench.frame([(9, "a"), (1, "lost")])
    (difference,) = sink.differences(ORDERS, CheckpointNumber(4), frame, 10)
    assert (difference.in_sink, difference.in_lake) == (0, 1)


def test_copies_of_a_row_come_and_go_one_by_one(
    bench: StarrocksBench, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: Counter[tuple[int, str | None]] = Counter()
    full_row, null_row = (1, "one"), (2, None)
    changes: list[tuple[list[Any], list[Any]]] = [
        ([full_row, full_row, full_row, null_row], []),
        ([null_row], [full_row, full_row]),
        ([full_row, full_row], [null_row, null_row]),
        ([null_row], [full_row, full_row, full_row]),
    ]
    for checkpoint, (added, removed) in enumerate(changes, 1):
        if checkpoint == 3:
            monkeypatch.setattr("tautochrone.sinks.starrocks.changes._SCANNED_FROM", 0)
        deliver(sink, transaction(checkpoint), added, removed)
        expected = expected + Counter(added) - Counter(removed)
        assert Counter(bench.read(ORDERS)) == expected
    bench.database.execute(f"DELETE FROM `{bench.database.name}`.`orders`")
    with pytest.raises(SinkError) as missing:
        deliver(sink, transaction(5), [], [null_row])
    assert missing.value.error_class == "SINK_BASE_CHANGED"


NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
VALUES: list[tuple[spark.DataType, Any, Any, Any]] = [
    # The type, the lake's value, what is loaded, and what StarRocks answers.
    (spark.BooleanType(), True, True, 1),
    (spark.LongType(), -(2**62), -(2**62), -(2**62)),
    (spark.DecimalType(38, 2), Decimal("-1234567.50"), "-1234567.50", Decimal("-1234567.50")),
    (spark.DoubleType(), 0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2),
    (spark.StringType(), "a\tb\\N'ü\U0001f600", "a\tb\\N'ü\U0001f600", "a\tb\\N'ü\U0001f600"),
    (spark.BinaryType(), b"\x00\xff", "AP8=", "AP8="),
    (spark.DateType(), dt.date(1582, 10, 4), "1582-10-04", dt.date(1582, 10, 4)),
    (spark.TimestampType(), NOON, "2026-03-01 12:00:00.000001", NOON.replace(tzinfo=None)),
    (spark.ArrayType(spark.DoubleType()), [1e300, None], [1e300, None], f"[{10**300}, null]"),
]


def test_values_are_read_as_they_were_loaded() -> None:
    fields = [spark.StructField(f"c{i}", value[0]) for i, value in enumerate(VALUES)]
    schema = spark.StructType(fields)
    mirrored = MirroredTable("mirror", ORDERS, "orders", "orders", schema, JsonRows("s", ORDERS, schema, []))
    row = {f"c{i}": mirrored.rows.value(f"c{i}", value[1]) for i, value in enumerate(VALUES)}
    assert list(mirrored.spooled(row, 1).columns.values()) == [value[2] for value in VALUES]
    assert list(mirrored.read([[value[3] for value in VALUES]])) == [row]


def test_a_number_that_json_lacks_is_refused() -> None:
    schema = spark.StructType([spark.StructField("f", spark.DoubleType())])
    mirrored = MirroredTable("mirror", ORDERS, "orders", "orders", schema, JsonRows("s", ORDERS, schema, []))
    for value in (math.nan, math.inf):
        with pytest.raises(SinkError) as refused:
            mirrored.spooled({"f": mirrored.rows.value("f", value)}, 1)
        assert refused.value.error_class == "SINK_VALUE_UNSUPPORTED"


def test_loads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": "x" * 10} for _ in range(5)]
    assert [len(body) for body in load_bodies(iter(rows), 2)] == [39, 39, 20]
    monkeypatch.setattr("tautochrone.sinks.starrocks.changes._BODY_BYTES", 60)
    assert [body.count(b"x" * 10) for body in load_bodies(iter(rows), 100)] == [3, 2]


# -- tables and options -----------------------------------------------------------------------------


def test_tables_of_others_are_refused(bench: StarrocksBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    name = f"`{bench.database.name}`.`orders`"
    bench.database.execute(f"CREATE TABLE {name} (id INT)")

    def refused(schema: Any, key: list[str]) -> str:
        with pytest.raises(SinkError) as raised:
            sink.ensure(ORDERS, schema, key, Fence(1))
        return raised.value.error_class

    assert refused(bench.schema(), []) == "SINK_NAME_TAKEN"
    bench.database.execute(f"DROP TABLE {name}")
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))
    assert refused(bench.schema("more", "_taut_x"), ["id"]) == "SINK_COLUMN_NAME_RESERVED"
    assert refused(bench.schema("more", "__OP"), ["id"]) == "SINK_COLUMN_NAME_RESERVED"
    reason = sink.ensure(ORDERS, bench.schema("more"), ["word"], Fence(1))
    assert str(reason) == "its key was id, and is word now"
    bench.database.execute(f"DROP TABLE {name}")
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))


@pytest.mark.parametrize("number", range(5))
def test_a_process_that_dies_around_the_exchange_of_two_tables(
    bench: StarrocksBench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The exchange is the second of five statements after the commit."""
    sink = bench.open()
    sink.claim(LAKE)
    sink.fence(Fence(1))
    for table in (SHOP_ORDERS, SHOP_LINES):
        sink.ensure(table, bench.schema(), (), Fence(1))
    rebuild = Rebuild(bench, ["id", "word"], bench.schema(), bench.numbers(), is_numeric=True)
    rebuild.deliver_older(sink)
    intent = rebuild.stage(sink, new_intent(2))
    execute, left = bench.database.execute, [number]

    def execute_or_die(statement: str, arguments: Any = ()) -> None:
        if not left[0]:
            raise LostAnswerError(statement)
        left[0] -= 1
        execute(statement, arguments)

    with monkeypatch.context() as patched:
        patched.setattr(bench.database, "execute", execute_or_die)
        with pytest.raises(LostAnswerError):
            sink.commit(intent.transaction, Fence(1))
    rebuild.recover_and_go_on(intent)
    assert bench.database.query(f"SELECT name FROM `{bench.database.name}`.taut_tables ORDER BY name") == [
        ("shop__lines",),
        ("shop__orders",),
    ]


def test_a_server_without_transactions_over_tables_is_refused(bench: StarrocksBench) -> None:
    bench.database.version = "3.5.2 0782ad7"
    with pytest.raises(SinkError) as refused:
        bench.open()
    assert refused.value.error_class == "SINK_SERVER_TOO_OLD"
    assert not bench.database.query("SELECT * FROM information_schema.schemata")
    bench.database.version = "main-0782ad7"
    bench.open()


def test_tables_get_the_number_of_copies_of_the_option(bench: StarrocksBench) -> None:
    created: list[str] = []
    execute = bench.database.execute

    def execute_and_note(statement: str, arguments: Any = ()) -> None:
        created.append(statement)
        execute(statement, arguments)

    bench.database.execute = execute_and_note  # type: ignore[method-assign]
    object.__setattr__(bench.options, "replication_num", 1)
    bench.open()
    tables = [statement for statement in created if statement.startswith("CREATE TABLE")]
    assert len(tables) == 3
    assert all('PROPERTIES ("replication_num" = "1")' in statement for statement in tables)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "http://u:secret@h/d"}, "password in its url"),
        ({"url": "starrocks://u@h/d"}, "cannot read the url"),
        ({"url": "http://u@h:x/d"}, "cannot read the port"),
        ({"url": "http://u@h/a-b"}, "has database = a-b"),
        ({"url": "http://u@h/d", "tables": "x"}, "has no option tables"),
        ({}, "needs the option url"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], problem: str) -> None:
    assert has_adapter("starrocks")
    with pytest.raises(SinkError, match=problem):
        starrocks_options("mirror", options)


@pytest.mark.parametrize(
    ("status", "message", "error_class"),
    [
        (401, "Access denied for user 'user' (using password: YES)", "SINK_LOGIN_REFUSED"),
        (200, "Access denied for user 'user' (using password: YES)", "SINK_LOGIN_REFUSED"),
        (200, "Access denied; you need (at least one of) the INSERT privilege(s)", "SINK_RIGHTS_MISSING"),
        (403, "Forbidden", "SINK_RIGHTS_MISSING"),
    ],
)
def test_a_user_who_may_not_load_is_not_tried_again(
    bench: StarrocksBench, status: int, message: str, error_class: str
) -> None:
    client = TransactionClient("mirror", bench.options)
    response = httpx.Response(
        status, json={"Status": "FAILED", "Message": message}, request=httpx.Request("POST", "http://fe")
    )
    with pytest.raises(SinkError, match=error_class) as refused:
        client._read("begin", response)
    assert not refused.value.retryable
    client.close()


def test_a_wrong_password_is_a_log_in_that_was_refused(bench: StarrocksBench) -> None:
    client = TransactionClient("mirror", replace(bench.options, password="wrong-1"))
    with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED") as refused:
        client.begin("label", "orders")
    assert "wrong-1" not in str(refused.value)
    client.close()


@pytest.mark.parametrize(
    ("code", "error_class"),
    [(1045, "SINK_LOGIN_REFUSED"), (1227, "SINK_RIGHTS_MISSING"), (1053, "SINK_NOT_REACHABLE")],
)
def test_statements_of_a_user_who_may_not_are_not_tried_again(
    bench: StarrocksBench, code: int, error_class: str
) -> None:
    database = StarRocksDatabase("mirror", bench.options)
    with pytest.raises(SinkError, match=error_class) as refused, database._errors():
        raise pymysql.OperationalError(code, "no")
    assert refused.value.retryable == (error_class == "SINK_NOT_REACHABLE")
