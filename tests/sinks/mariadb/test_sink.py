"""The MariaDB sink passes the suite of all sinks, and mirrors values, keys and evolving schemas."""

from __future__ import annotations

import datetime as dt
import math
import os
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, FewRefusals, deliver
from tests.sinks.mariadb.benches import MariadbBench
from tests.sinks.observation import RefusesToWrite
from tests.support.mariadb import SINK_PASSWORD, is_installed, open_connection, restart_server, sink_url

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Intent, TransactionState
from tautochrone.sinks import examine_sink
from tautochrone.sinks.mariadb import database
from tautochrone.sinks.mariadb.options import mariadb_options
from tautochrone.sinks.mariadb.sink import MariadbSink
from tautochrone.testing.sink_conformance import LAKE, begin, new_intent, transaction
from tautochrone.testing.sink_conformance import LINES as SHOP_LINES
from tautochrone.testing.sink_conformance import ORDERS as SHOP_ORDERS
from tautochrone.testing.sink_contents_conformance import Rebuild, SinkContentsConformance
from tautochrone.testing.sqlite_sink import ListRows

pytestmark = pytest.mark.skipif(not is_installed(), reason="MariaDB is not installed")

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=dt.UTC)


@pytest.fixture
def bench() -> Iterator[MariadbBench]:
    bench = MariadbBench()
    yield bench
    bench.close()


class TestMariadb(FewRefusals):
    @pytest.fixture
    def bench(self) -> Iterator[MariadbBench]:
        bench = MariadbBench()
        yield bench
        bench.close()


class TestObservedMariadb(RefusesToWrite):
    @pytest.fixture
    def bench(self) -> Iterator[MariadbBench]:
        bench = MariadbBench()
        yield bench
        bench.close()


class TestMariadbContents(SinkContentsConformance):
    @pytest.fixture
    def bench(self) -> Iterator[MariadbBench]:
        bench = MariadbBench()
        yield bench
        bench.close()


VALUES: dict[str, tuple[spark.DataType, Any]] = {
    "flag": (spark.BooleanType(), True),
    "n": (spark.LongType(), -(2**62)),
    "d": (spark.DecimalType(38, 2), Decimal("-123456789012345678901234567890123456.50")),
    "f": (spark.DoubleType(), 0.1 + 0.2),
    "e": (spark.DoubleType(), -1.7e308),
    "g": (spark.FloatType(), 16777217.1),
    "text": (spark.StringType(), "a\tb\\N\n'ü\0\U0001f600 %s "),
    "b": (spark.BinaryType(), b"\x00\xff'\\"),
    "day": (spark.DateType(), dt.date(1582, 10, 4)),
    "t": (spark.TimestampType(), NOON.replace(year=2200)),
    "l": (spark.TimestampNTZType(), NOON.replace(tzinfo=None)),
    "a": (spark.ArrayType(spark.DoubleType()), [0.1, None, 1e300]),
    "m": (spark.MapType(spark.IntegerType(), spark.DateType()), {2: dt.date(2026, 3, 1)}),
    "s": (spark.StructType([spark.StructField("x", spark.LongType())]), {"x": None}),
    "odd `name` 100%": (spark.StringType(), ""),
}
TYPES = spark.StructType([spark.StructField(name, kind) for name, (kind, _) in VALUES.items()])


@pytest.mark.parametrize("key", [[], ["n", "text"]])
def test_values_are_audited_by_what_the_columns_hold(bench: MariadbBench, key: list[str]) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, TYPES, key, Fence(1))
    rows = [tuple(value for _, value in VALUES.values()), (None,) * len(VALUES)]
    deliver(sink, transaction(1), rows, columns=[*VALUES])
    frame = ListRows([*VALUES], rows)
    assert sink.audit(ORDERS, CheckpointNumber(1)) == sink.digest(ORDERS, frame)
    (stored,) = bench.query(
        f"SELECT flag, n, d, f, text, b, day, l, t FROM {bench.database}.orders WHERE n IS NOT NULL"
    )
    names = ("flag", "n", "d", "f", "text", "b", "day", "l")
    expected = [VALUES[name][1] for name in names]
    assert stored == (*expected, NOON.replace(year=2200, tzinfo=None))
    # The hash of the row stays: only its columns tell.
    bench.query(f"UPDATE {bench.database}.orders SET d = 2 WHERE n IS NOT NULL")
    assert sink.audit(ORDERS, CheckpointNumber(1)) != sink.digest(ORDERS, frame)
    differences = sink.differences(ORDERS, CheckpointNumber(1), frame, 10)
    assert sorted((difference.in_sink, difference.in_lake) for difference in differences) == [(0, 1), (1, 0)]


def test_keys_are_updated_in_place_and_told_apart_by_every_byte(bench: MariadbBench) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), ["word"], Fence(1))
    words = ["a", "A", "a ", "ä", "x" * 5000, "x" * 4999 + "y", None]
    deliver(sink, transaction(1), [(1, word) for word in words])
    deliver(sink, transaction(2), [(2, "a"), (3, "b")], [(1, "a"), (1, "A"), (1, None)])
    expected = [(2, "a"), (3, "b"), *((1, word) for word in words[2:6])]
    assert Counter(bench.read(ORDERS)) == Counter(expected)
    for added, removed, error_class in (
        ([(5, "a")], [], "SINK_KEY_NOT_UNIQUE"),
        ([(5, "c"), (6, "c")], [], "SINK_KEY_NOT_UNIQUE"),
        ([(5, "a")], [(1, "a")], "SINK_ROW_MISSING"),
        ([], [(1, "c")], "SINK_ROW_MISSING"),
    ):
        opened = transaction(3, attempt=1 + len(added) * 2 + len(removed))
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


def test_a_number_that_mariadb_lacks_is_refused(bench: MariadbBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, spark.StructType([spark.StructField("f", spark.DoubleType())]), [], Fence(1))
    for value in (math.nan, math.inf):
        with pytest.raises(SinkError) as refused:
            deliver(sink, transaction(1), [(value,)], columns=["f"])
        assert refused.value.error_class == "SINK_VALUE_UNSUPPORTED"


def test_a_lost_connection_aborts_what_was_staged_and_no_commit(bench: MariadbBench) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), [], Fence(1))
    lost = transaction(1)
    begin(sink, Intent(transaction=lost, versions={}))
    restart_server()
    with pytest.raises(SinkError) as unreachable:
        sink.replace(lost, ORDERS, bench.frame([(1, "one")]))
    assert unreachable.value.error_class == "SINK_NOT_REACHABLE"
    assert unreachable.value.retryable
    (recovered,) = sink.recover([Intent(transaction=lost, versions={})], Fence(1))
    assert recovered.state is TransactionState.ABORTED
    deliver(sink, transaction(1, attempt=2), [(1, "one")])
    bench.query("KILL USER sink")
    with pytest.raises(SinkError):
        sink.published()
    (recovered,) = sink.recover([Intent(transaction=transaction(1, attempt=2), versions={})], Fence(1))
    assert recovered.state is TransactionState.COMMITTED
    assert bench.read(ORDERS) == [(1, "one")]


def test_tables_of_others_are_refused(bench: MariadbBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    bench.query(f"CREATE TABLE {bench.database}.orders (id INT)")

    def refused(schema: Any, key: list[str]) -> str:
        with pytest.raises(SinkError) as raised:
            sink.ensure(ORDERS, schema, key, Fence(1))
        return raised.value.error_class

    assert refused(bench.schema(), []) == "SINK_NAME_TAKEN"
    bench.query(f"DROP TABLE {bench.database}.orders")
    bench.query(f"CREATE VIEW {bench.database}.orders AS SELECT 1 AS id")
    assert refused(bench.schema(), []) == "SINK_NAME_TAKEN"
    assert bench.query(f"SELECT id FROM {bench.database}.orders") == [(1,)]
    bench.query(f"DROP VIEW {bench.database}.orders")
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))
    assert refused(bench.schema("more", "_taut_x"), ["id"]) == "SINK_COLUMN_NAME_RESERVED"
    reason = sink.ensure(ORDERS, bench.schema("more"), ["word"], Fence(1))
    assert str(reason) == "its key was id, and is word now"
    bench.query(f"DROP TABLE {bench.database}.orders")
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mariadb://u:secret@h/d", "password in its url"),
        ("mariadb://u@h/d?ssl=1", "has ssl in its url"),
        ("postgresql://u@h/d", "cannot read the url"),
        ("mariadb://u@h:x/d", "cannot read the port"),
    ],
)
def test_urls_that_are_refused(url: str, problem: str) -> None:
    with pytest.raises(SinkError, match=problem):
        mariadb_options("mirror", {"url": url})


# -- tables that are built anew -------------------------------------------------------------------


def rebuilding(bench: MariadbBench, *columns: str) -> tuple[Any, Rebuild]:
    """A sink with rows of checkpoint 1."""
    sink: Any = bench.open()
    sink.claim(LAKE)
    sink.fence(Fence(1))
    sink.ensure(SHOP_LINES, bench.schema(), [], Fence(1))
    older = bench.schema(*columns)
    sink.ensure(SHOP_ORDERS, older, [], Fence(1))
    rebuild = Rebuild(bench, ["id", "word", *columns], older, bench.numbers(), is_numeric=True)
    return sink, rebuild


def leftovers(bench: MariadbBench) -> list[str]:
    """The sink's own tables and views beyond its registries."""
    names = {str(name) for (name,) in bench.query(f"SHOW TABLES FROM {bench.database} LIKE 'taut%'")}
    return sorted(names - {"taut_sinks", "taut_swaps", "taut_tables"})


def reading(bench: MariadbBench) -> Any:
    """A connection that has read the table in a transaction, which stays open."""
    reader = open_connection()
    with reader.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute(f"SELECT COUNT(*) FROM {bench.database}.shop__orders")
    return reader


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_ALTERING_WAIT_S", 0)


def test_a_column_that_is_gone_does_not_keep_a_table_from_being_built_anew(bench: MariadbBench) -> None:
    sink, rebuild = rebuilding(bench, "more")
    rebuild.deliver_older(sink)
    bench.query(f"ALTER TABLE {bench.database}.shop__orders DROP COLUMN more")
    sink.commit(rebuild.stage(sink, new_intent(2)).transaction, Fence(1))
    assert rebuild.shown() == rebuild.NEWER


@pytest.mark.usefixtures("short_waits")
def test_a_reader_before_the_swap_delays_it_and_nobody_else(bench: MariadbBench) -> None:
    sink, rebuild = rebuilding(bench)
    rebuild.deliver_older(sink)
    intent = rebuild.stage(sink, new_intent(2))
    reader = reading(bench)
    with pytest.raises(SinkError) as busy:
        sink.commit(intent.transaction, Fence(1))
    assert busy.value.error_class == "SINK_TABLE_BUSY"
    assert busy.value.retryable
    assert rebuild.shown() == rebuild.OLDER
    reader.close()
    sink.commit(intent.transaction, Fence(1))
    assert rebuild.shown() == rebuild.NEWER
    assert not leftovers(bench)


@pytest.mark.usefixtures("short_waits")
def test_a_reader_during_the_swap_delays_its_end_and_no_delivery(bench: MariadbBench) -> None:
    sink, rebuild = rebuilding(bench)
    rebuild.deliver_older(sink)
    intent = rebuild.stage(sink, new_intent(2))
    readers, decide = [], sink._tables.decide

    def read_and_decide(*arguments: Any) -> None:
        readers.append(reading(bench))
        decide(*arguments)

    sink._tables.decide = read_and_decide
    sink.commit(intent.transaction, Fence(1))
    assert rebuild.shown() == rebuild.NEWER
    assert leftovers(bench)
    again: Any = bench.open()
    for opened in (sink, again):
        assert not opened.changed_tables((SHOP_ORDERS, SHOP_LINES), None)
    # The delta goes to the table behind the view; a further rebuild waits.
    again.fence(Fence(2))
    again.recover([], Fence(2))
    assert again.ensure(SHOP_ORDERS, rebuild.after, [], Fence(2)) is None
    rebuild.deliver_delta(again)
    with pytest.raises(SinkError, match="SINK_TABLE_BUSY"):
        again.ensure(SHOP_ORDERS, rebuild.before, [], Fence(2))
    readers[0].close()
    again._settle_at = 0.0
    intent = begin(again, new_intent(4, fence=2))
    again.prepare(intent.transaction, [])
    again.commit(intent.transaction, Fence(2))
    assert not leftovers(bench)
    assert not again.changed_tables((SHOP_ORDERS, SHOP_LINES), None)
    assert again.ensure(SHOP_ORDERS, rebuild.after, [], Fence(2)) is None
    assert rebuild.shown()[0] == Counter([2, 3, 4])


def test_an_older_owner_swaps_nothing(bench: MariadbBench) -> None:
    sink, rebuild = rebuilding(bench)
    rebuild.deliver_older(sink)
    intent = rebuild.stage(sink, new_intent(2))
    before = leftovers(bench)
    bench.open().fence(Fence(2))
    for operation in (
        lambda: sink.commit(intent.transaction, Fence(1)),
        lambda: sink.ensure(SHOP_ORDERS, rebuild.after, [], Fence(1)),
        lambda: sink._settle(Fence(1)),
    ):
        with pytest.raises(SinkFencedError):
            operation()
    assert leftovers(bench) == before


def test_a_swap_that_somebody_took_back_is_not_decided(bench: MariadbBench) -> None:
    sink, rebuild = rebuilding(bench)
    rebuild.deliver_older(sink)
    intent = rebuild.stage(sink, new_intent(2))
    bench.query(f"DELETE FROM {bench.database}.taut_swaps")
    with pytest.raises(SinkError, match="SINK_BASE_CHANGED"):
        sink.commit(intent.transaction, Fence(1))
    assert rebuild.shown() == rebuild.OLDER


# -- killed processes -----------------------------------------------------------------------------


def deliver_and_die(bench: MariadbBench, statements: int, *, keyed: bool) -> bool:
    """Deliver checkpoint 2 in a process that is killed at a statement; whether it came to its end before."""

    def deliver_second(sink: Any) -> None:
        sink.fence(Fence(2))
        sink.ensure(ORDERS, bench.schema("more"), ["id"] if keyed else [], Fence(2))
        deliver(sink, transaction(2, fence=2), [(1, "two"), (3, "three")], [(1, "one")])

    return run_and_die(bench, statements, deliver_second)


def run_and_die(bench: MariadbBench, statements: int, run: Callable[[Any], None]) -> bool:
    """Run in a process that is killed at a statement; whether it came to its end before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return not os.WIFSIGNALED(status)
    status = 1
    try:
        sink: Any = bench.open()
        connection = sink._database._connected()
        query, left = connection.query, [statements]

        def query_or_die(*arguments: Any, **named: Any) -> Any:
            if not left[0]:
                # The statement is sent, and nobody waits for its answer.
                connection._execute_command(3, arguments[0])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return query(*arguments, **named)

        connection.query = query_or_die
        run(sink)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def rebuild_and_die(bench: MariadbBench, statements: int) -> bool:
    """The same of a delivery whose table gets other columns."""

    def deliver_rebuilt(sink: Any) -> None:
        rebuild = Rebuild(bench, ["id", "word"], bench.schema(), bench.numbers(), is_numeric=True)
        sink.commit(rebuild.stage(sink, new_intent(2)).transaction, Fence(1))

    return run_and_die(bench, statements, deliver_rebuilt)


def await_end_of_statements(bench: MariadbBench) -> None:
    """The server may still run the last statement of a process that is gone."""
    running = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'sink'"
    while bench.query(running) != [(0,)]:
        pass


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_swaps_a_table_leaves_one_of_both(step: int) -> None:
    statements, is_over = (60 if step > 1 else 0), False
    while not is_over:
        bench = MariadbBench()
        try:
            sink: Any = bench.open()
            sink.claim(LAKE)
            sink.fence(Fence(1))
            for table in (SHOP_ORDERS, SHOP_LINES):
                sink.ensure(table, bench.schema(), [], Fence(1))
            rebuild = Rebuild(bench, ["id", "word"], bench.schema(), bench.numbers(), is_numeric=True)
            rebuild.deliver_older(sink)
            sink.close()
            is_over = rebuild_and_die(bench, statements)
            await_end_of_statements(bench)
            assert rebuild.shown() in (rebuild.OLDER, rebuild.NEWER)
            rebuild.recover_and_go_on(new_intent(2))
            left = bench.query(f"SHOW TABLES FROM {bench.database} LIKE 'taut%'")
            assert sorted(name for (name,) in left) == ["taut_sinks", "taut_swaps", "taut_tables"]
        finally:
            bench.close()
        statements += step


def deliver_again(sink: Any) -> None:
    """As a worker does: what may succeed by a further try is tried again."""
    change = [(1, "two"), (3, "three")], [(1, "one")]
    try:
        deliver(sink, transaction(2, fence=3), *change)
    except SinkError as error:
        # The killed process's last statement altered the table after it was compared.
        if error.error_class != "SINK_BASE_CHANGED" or not error.retryable:
            raise
        sink.fence(Fence(4))
        sink.recover([], Fence(4))
        if sink.changed_tables([ORDERS], 0):
            raise
        deliver(sink, transaction(2, fence=4), *change)


@pytest.mark.parametrize(
    ("keyed", "step"),
    [
        (True, 17),
        pytest.param(True, 1, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.slow),
    ],
)
def test_a_process_killed_at_any_statement_leaves_a_whole_checkpoint(keyed: bool, step: int) -> None:
    statements, ends = 0, set()
    while True:
        bench = MariadbBench()
        try:
            sink: Any = bench.open()
            sink.fence(Fence(1))
            key = ["id"] if keyed else []
            sink.ensure(ORDERS, bench.schema(), key, Fence(1))
            deliver(sink, transaction(1), [(1, "one")])
            sink.close()
            is_over = deliver_and_die(bench, statements, keyed=keyed)
            sink = bench.open()
            sink.fence(Fence(3))
            (recovered,) = sink.recover([Intent(transaction=transaction(2, fence=2), versions={})], Fence(3))
            ends.add(recovered.state)
            assert sink.published().checkpoint == (2 if recovered.state is TransactionState.COMMITTED else 1)
            # The process may have altered the table before its end.
            assert not sink.changed_tables([ORDERS], 0)
            sink.ensure(ORDERS, bench.schema("more"), key, Fence(3))
            if recovered.state is TransactionState.ABORTED:
                assert bench.read(ORDERS) == [(1, "one", None)]
                deliver_again(sink)
            assert Counter(bench.read(ORDERS)) == Counter([(1, "two", None), (3, "three", None)])
            frame = bench.frame([(1, "two"), (3, "three")])
            assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, frame)
        finally:
            bench.close()
        if is_over:
            break
        statements += step
    assert ends == {TransactionState.ABORTED, TransactionState.COMMITTED}


def test_a_row_changed_by_somebody_else_is_noticed_when_it_goes(bench: MariadbBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), [], Fence(1))
    deliver(sink, transaction(1), [(1, "one"), (1, "one"), (2, "two")])
    bench.query(f"DELETE FROM {bench.database}.orders LIMIT 1")
    with pytest.raises(SinkContentError) as missing:
        deliver(sink, transaction(2), [], [(1, "one"), (1, "one")])
    assert missing.value.error_class == "SINK_ROW_MISSING"


def test_a_user_who_may_not_is_not_tried_again(bench: MariadbBench) -> None:
    for wrong in ({"password": "wrong-1"}, {"user": "nobody_here"}):
        with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED") as refused:
            MariadbSink("mirror", replace(bench.options, **wrong)).published()
        assert not refused.value.retryable
        assert "wrong-1" not in str(refused.value)
    other = replace(bench.options, database=f"{bench.database}_other")
    with pytest.raises(SinkError, match="SINK_RIGHTS_MISSING") as refused:
        MariadbSink("mirror", other).fence(Fence(1))
    assert not refused.value.retryable
    options = {"url": sink_url(bench.database), "password": SINK_PASSWORD}
    assert "lets sink@% in" in str(examine_sink("mirror", "mariadb", options))
    with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED"):
        examine_sink("mirror", "mariadb", {**options, "password": "wrong-1"})
    assert not bench.query(f"SHOW DATABASES LIKE '{bench.database}'")
