"""Whatever settings the profile of its user has: the sink shows what was delivered, or names the setting."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.dashboards import Client
from tests.sinks.clickhouse.test_server import Server

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Sink
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse import engines
from tautochrone.sinks.clickhouse.statements import _LIMITS, OWN
from tautochrone.testing.sink_conformance import LAKE, new_intent
from tautochrone.testing.sqlite_sink import ListRows

TABLE = TableName("lake", ("default",), "orders")
SCHEMA = spark.StructType(
    [
        spark.StructField("id", spark.LongType()),
        spark.StructField("word", spark.StringType()),
        spark.StructField("price", spark.DecimalType(12, 4)),
        spark.StructField("tags", spark.ArrayType(spark.StringType())),
    ]
)


def is_limit(name: str) -> bool:
    return _LIMITS.fullmatch(name) is not None


def halves(profile: Mapping[str, str]) -> list[dict[str, str]]:
    names = sorted(profile)
    return [{name: profile[name] for name in half} for half in (names[::2], names[1::2])]


def taken(server: Server, profile: Mapping[str, str]) -> dict[str, str]:
    """The settings of a profile with values that the server takes."""
    if not profile or use_profile(server, profile):
        return dict(profile)
    if len(profile) == 1:
        return {}
    return {name: value for half in halves(profile) for name, value in taken(server, half).items()}


def wrong(server: Server, profile: Mapping[str, str]) -> list[str]:
    """The settings of a profile with which something is wrong, or refused."""
    try:
        deliver_and_compare(server, profile)
    except (SinkError, AssertionError) as error:
        if len(profile) == 1:
            return [f"{profile}: {error}"]
        return [each for half in halves(profile) for each in wrong(server, half)]
    return []


_databases = itertools.count()
_OF_THE_SHELL = frozenset({"database", "readonly", "allow_ddl"})
"""Who logs in where, and what nobody could deliver with."""
_BY_TYPE: Mapping[str, Sequence[str]] = {
    "Bool": ("0", "1"),
    "BoolAuto": ("0", "1"),
    "UInt64": ("0", "1", "3"),
    "UInt64Auto": ("0", "1"),
    "NonZeroUInt64": ("1", "2"),
    "Int64": ("-1", "1"),
    "Int32": ("-1", "1"),
    "MaxThreads": ("1",),
    "Float": ("0", "0.5", "1"),
    "Double": ("0", "0.5", "1"),
    "FloatAuto": ("0", "1"),
    "Milliseconds": ("1",),
    "Seconds": ("1",),
    "String": ("id = 1", "x"),
    "Char": ("x",),
    "Map": ("{}",),
    "OverflowMode": ("break",),
    "OverflowModeGroupBy": ("any",),
    "Timezone": ("Asia/Tokyo",),
    "Dialect": ("kusto",),
    "DateTimeOutputFormat": ("iso",),
    "DateTimeInputFormat": ("basic",),
    "JoinStrictness": ("ANY",),
    "SetOperationMode": ("DISTINCT",),
    "ShortCircuitFunctionEvaluation": ("force_enable", "disable"),
}
"""By type of a setting the values that are tried."""
_BY_NAME: Mapping[str, Sequence[str]] = {
    "compatibility": ("22.3", "24.1"),
    # Any other text is an error of the server.
    "distributed_plan_force_exchange_kind": (),
}
_THROTTLE = ("1000000",)
"""Bytes a second, for every setting of a bandwidth: with few of them a statement takes minutes."""
_TOGETHER: Mapping[str, str] = {
    "limit": "1",
    "offset": "1",
    "result_overflow_mode": "break",
    "additional_result_filter": "0",
    "aggregate_functions_null_for_empty": "1",
    "data_type_default_nullable": "1",
    "force_primary_key": "1",
    "final": "1",
    "async_insert": "1",
    "wait_for_async_insert": "0",
    "mutations_sync": "0",
    "alter_sync": "0",
    "extremes": "1",
    "dialect": "kusto",
    "session_timezone": "Asia/Tokyo",
    "output_format_json_quote_64bit_integers": "1",
    "use_query_cache": "1",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("settings") / "engine")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _plain_profile(server: Server) -> Iterator[None]:
    yield
    use_plain_profile(server)


def use_profile(server: Server, settings: Mapping[str, str], refused: Sequence[str] = ()) -> bool:
    """Whether the server takes the profile: with some settings the engine does not end a statement."""
    sent = OWN if settings else {}
    body = json.dumps({"settings": settings, "refused": refused, "sent": sent}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/profile", body)
    try:
        with urllib.request.urlopen(request, timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def use_plain_profile(server: Server) -> None:
    """With some limits the server does not even take the statement that ends them."""
    if not use_profile(server, {}):
        server.stop()
        server.start()


def opened(server: Server, database: str) -> Sink:
    sink = open_sink(
        "mirror", "clickhouse", {"url": f"clickhouse://127.0.0.1:{server.port}/{database}", "chunk_rows": "2"}
    )
    sink.claim(LAKE)
    sink.fence(Fence(1))
    return sink


def rows(count: int) -> list[tuple[Any, ...]]:
    return [(number, f"a/{number}\u2028\x85'", None, ["x", None]) for number in range(count)]


def deliver(sink: Sink, number: int, added: Sequence[Any], removed: Sequence[Any], *, whole: bool) -> None:
    shown = sink.published()
    sink.ensure(TABLE, SCHEMA, (), Fence(1))
    intent = replace(
        new_intent(number),
        versions={TABLE: Version(str(number))},
        base=None if shown is None else shown.transaction,
        replaced=(TABLE,) if whole else (),
    )
    sink.begin(intent)
    frames = [ListRows(SCHEMA.names, each) for each in (added, removed)]
    if whole:
        chunks = sink.replace(intent.transaction, TABLE, frames[0])
    else:
        change = RowChange(added=frames[0], removed=frames[1], rows=len(added) + len(removed))
        chunks = sink.write(intent.transaction, TABLE, change)
    sink.prepare(intent.transaction, chunks)
    sink.commit(intent.transaction, Fence(1))


def deliver_and_compare(server: Server, profile: Mapping[str, str], refused: Sequence[str] = ()) -> None:
    """Deliver and audit with the profile, and read what is there without it.

    Raises:
        SinkError: the sink refuses the profile.
    """
    database = f"settings_{next(_databases)}"
    try:
        assert use_profile(server, profile, refused)
        sink = opened(server, database)
        deliver(sink, 1, rows(5), [], whole=True)
        deliver(sink, 2, rows(7)[5:], rows(2), whole=False)
        assert not sink.changed_tables([TABLE], None)
        expected = sink.digest(TABLE, ListRows(SCHEMA.names, rows(7)[2:]))
        assert sink.audit(TABLE, CheckpointNumber(2)) == expected
        sink.close()
        use_plain_profile(server)
        client = Client(server.port)
        assert Counter(map(str, client.rows(f"SELECT id FROM {database}.orders"))) == Counter(
            str([number]) for number in range(2, 7)
        )
        types = client.rows(
            f"SELECT DISTINCT type FROM system.columns WHERE database = '{database}' "
            "AND table = 'taut_rows_orders' AND name IN ('id', '_ck')"
        )
        assert sorted(types) == [["Nullable(Int64)"], ["UInt64"]]
        client.close()
    finally:
        use_plain_profile(server)
        client = Client(server.port)
        client.run(f"DROP DATABASE IF EXISTS {database} SYNC")
        client.close()


def is_right_or_refused(server: Server, profile: Mapping[str, str]) -> str:
    """The class of the refusal; empty if everything is right."""
    try:
        deliver_and_compare(server, profile)
    except SinkError as error:
        return error.error_class
    return ""


def hostile_values(server: Server) -> list[tuple[str, str]]:
    """Every setting of the server with other values than its default."""
    client = Client(server.port)
    listed = client.rows(
        "SELECT name, type, default FROM system.settings WHERE NOT is_obsolete AND alias_for = ''"
    )
    client.close()
    return [
        (name, value)
        for name, kind, default in listed
        if name not in _OF_THE_SHELL
        for value in _BY_NAME.get(name, _THROTTLE if "bandwidth" in name else _BY_TYPE.get(kind, ()))
        if value != default
    ]


def test_settings_that_falsify_answers_change_nothing(server: Server) -> None:
    deliver_and_compare(server, _TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_setting_at_another_value_changes_nothing(server: Server, number: int) -> None:
    """All of them together, as far as the server takes them; the limits of an operator are left out."""
    values: dict[str, list[str]] = defaultdict(list)
    for name, value in hostile_values(server):
        if not is_limit(name):
            values[name].append(value)
    assert len(values) > 1000
    profile = {name: each[number] for name, each in values.items() if len(each) > number}
    possible = taken(server, profile)
    use_plain_profile(server)
    assert len(possible) > 0.9 * len(profile)
    assert not wrong(server, possible)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_every_setting_alone_changes_nothing_or_is_an_error(server: Server, part: int) -> None:
    outcomes = Counter[str]()
    for name, value in hostile_values(server)[part::8]:
        if not use_profile(server, {name: value}):
            outcomes["not taken"] += 1
            continue
        outcome = is_right_or_refused(server, {name: value})
        outcomes[outcome] += 1
        assert outcome in ("", "CLICKHOUSE_REFUSED", "SINK_NOT_REACHABLE"), (name, value, outcome)
        assert not outcome or is_limit(name), (name, value, outcome)
    assert outcomes[""] > 125, outcomes


@pytest.mark.parametrize("name", ["limit", "mutations_sync", "optimize_read_in_order"])
def test_a_setting_that_the_user_may_not_set_is_named(server: Server, name: str) -> None:
    with pytest.raises(SinkError, match="SINK_SETTING_REFUSED") as refused:
        deliver_and_compare(server, {"optimize_read_in_order": "0"}, [name])
    assert name in str(refused.value)
    assert name in str(refused.value.hint)
    assert not refused.value.retryable


def test_a_setting_that_comes_while_a_sink_is_open_changes_nothing(server: Server) -> None:
    sink = opened(server, "settings_later")
    deliver(sink, 1, rows(5), [], whole=True)
    assert use_profile(server, {**_TOGETHER, "optimize_read_in_order": "0"})
    deliver(sink, 2, rows(7)[5:], rows(2), whole=False)
    expected = sink.digest(TABLE, ListRows(SCHEMA.names, rows(7)[2:]))
    assert sink.audit(TABLE, CheckpointNumber(2)) == expected
    sink.close()


def test_settings_that_an_older_server_does_not_know_are_left_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "OWN", {**OWN, "setting_of_the_future": "1"})
    deliver_and_compare(server, {})


def test_strings_that_are_not_utf8_are_read() -> None:
    assert engines._parsed(b'["a\xff\xe2\x80\xa8b"]\n["c"]\n') == [["a\\xff\u2028b"], ["c"]]
