"""Canal's and Maxwell's messages as rows: each kind of message, value and order, and changes of keys."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.sources import canal, maxwell

pytestmark = pytest.mark.spark

PRODUCTS = "id INT, name STRING, weight DECIMAL(9, 3)"

RECORD = "value BINARY, topic STRING, partition INT, offset BIGINT"


def records(spark: SparkSession, messages: Iterable[Any], offsets: Iterable[int] | None = None) -> DataFrame:
    """Records as Kafka's source gives them; None stands for a record without a value."""
    texts = [None if message is None else json.dumps(message).encode() for message in messages]
    both = zip(texts, range(len(texts)) if offsets is None else offsets, strict=True)
    return spark.createDataFrame([(text, "shop", 0, offset) for text, offset in both], RECORD)


def canal_message(kind: str, data: Any, old: Any = None, **others: Any) -> dict[str, Any]:
    """With the fields of Canal's FlatMessage."""
    types = {"id": "INTEGER", "name": "VARCHAR(255)", "weight": "FLOAT"}
    return {
        "data": data, "old": old, "type": kind, "database": "inventory", "table": "products", "id": 3,
        "es": 1589373515000, "ts": 1589373515477, "isDdl": False, "sql": "", "pkNames": ["id"],
        "mysqlType": types, "sqlType": {"id": 4, "name": 12, "weight": 7}, **others,
    }  # fmt: skip


def maxwell_message(kind: str, data: Any, **others: Any) -> dict[str, Any]:
    return {"database": "test", "table": "product", "type": kind, "ts": 1596684883, "data": data, **others}


def order_of(row: Row) -> tuple[Any, ...]:
    """The sequence without the generation, the topic, the partition and the digest."""
    return tuple(row._sequence)[1:-3]


def current(rows: Iterable[Row], keys: int = 1) -> list[tuple[Any, ...]]:
    """What AUTO CDC makes of the rows in any order: of a key the event with the greatest sequence counts."""
    last: dict[Any, Row] = {}

    def order(row: Row) -> Any:
        return [(part is not None, part) for part in row._sequence], row._op == "d"

    for row in rows:
        key = tuple(row)[:keys]
        if key not in last or order(row) > order(last[key]):
            last[key] = row
    return sorted(tuple(row)[:-2] for row in last.values() if row._op != "d")


def test_messages_of_canal(spark: SparkSession) -> None:
    scooter = {"id": "101", "name": "scooter", "weight": "3.14"}
    battery = {"id": "102", "name": "car battery", "weight": "8.1"}
    sent = [
        canal_message("INSERT", [scooter, battery, {**scooter, "id": "111"}]),
        canal_message(
            "UPDATE",
            [{**scooter, "weight": "5.17"}, {**battery, "weight": None}],
            [{"weight": "3.14"}, {"weight": "8.1"}],
        ),
        canal_message("DELETE", [{**scooter, "id": "111"}]),
        canal_message("CREATE", None, isDdl=True, table="user02", sql="CREATE TABLE user02 (uid INT)"),
        canal_message("INSERT", [{"uid": "7", "id": "many"}], table="user02"),
        None,
        canal_message("UPDATE", [{**battery, "id": "202"}], [{"id": "102"}]),
        canal_message("TRUNCATE", None, isDdl=True, sql="TRUNCATE TABLE products"),
        canal_message("INIT", [{"id": "1", "name": "é"}]),
        {"type": "INSERT", "note": "no change of a row"},
        canal_message("INSERT", None),
    ]
    events = canal.events(
        records(spark, sent), PRODUCTS, keys=["id"], ordered_by="offset", table="inventory.products"
    )
    rows = events.collect()
    assert [(row.id, row._op, row._sequence and order_of(row)) for row in rows] == [
        (101, "c", (0, 0, 1)), (102, "c", (0, 1, 1)), (111, "c", (0, 2, 1)),
        (101, "u", (1, 0, 1)), (102, "u", (1, 1, 1)),
        (111, "d", (2, 0, 0)),
        # Without a table: no change, and none that another table's filter hides.
        (102, "d", (6, 0, 0)), (202, "u", (6, 0, 1)),
        (None, "t", (7, 0, 0)), (1, "r", (8, 0, 1)),
        (None, "c", (9, 0, 1)), (None, "c", (10, 0, 1)),
    ]  # fmt: skip
    assert (rows[3].weight, rows[4].weight, rows[6].name) == (Decimal("5.170"), None, None)
    assert rows[9].name == "é"


def test_messages_of_ticdc_are_ordered_by_their_commit(spark: SparkSession) -> None:
    def message(kind: str, commit_ts: int, data: Any, old: Any = None) -> dict[str, Any]:
        return canal_message(kind, data, old, _tidb={"commitTs": commit_ts})

    full = {"id": "1", "name": "b", "weight": "1"}
    sent = [
        message("UPDATE", 429918007904436227, [full], [{**full, "name": "a"}]),
        message("INSERT", 429918007904436226, [{**full, "name": "a"}]),
        # The keys 1 and 2 exchange their rows in one transaction: TiCDC sends the deletions first.
        message("INSERT", 429918007904436229, [{**full, "name": "was 2"}]),
        message("DELETE", 429918007904436229, [full]),
        canal_message("TIDB_WATERMARK", None, table="", _tidb={"watermarkTs": 429918007904436230}),
        canal_message("INSERT", [full]),
    ]
    rows = canal.events(records(spark, sent), PRODUCTS, keys=["id"], ordered_by="commit_ts").collect()
    assert [row.name for row in rows if row._sequence is None] == ["b"]
    assert current(row for row in rows if row._sequence) == [(1, "was 2", Decimal(1))]


def test_messages_of_maxwell(spark: SparkSession) -> None:
    scooter = {"id": 111, "name": "scooter", "weight": 5.18}
    position = {"xid": 7125, "position": "master.000006:800911"}
    sent = [
        maxwell_message("bootstrap-start", {}),
        maxwell_message("bootstrap-insert", {**scooter, "id": 1}),
        maxwell_message("bootstrap-complete", {}),
        maxwell_message("insert", scooter, **position, xoffset=0),
        maxwell_message("insert", {**scooter, "id": 112, "weight": None}, **position, commit=True),
        maxwell_message(
            "update",
            {**scooter, "id": 113},
            old={"id": 111, "name": None},
            position="master.000006:800999",
            commit=True,
        ),
        maxwell_message("delete", {**scooter, "id": 112}, position="master.1000000:4", xoffset=3),
        maxwell_message("insert", {"id": "many"}, table="other"),
        {"type": "table-alter", "database": "test", "table": "product", "old": {"columns": []}, "def": {}},
        maxwell_message("insert", scooter),
        {"database": "test", "type": "heartbeat"},
    ]
    rows = maxwell.events(
        records(spark, sent), PRODUCTS, keys=["id"], ordered_by="position", table="test.product"
    ).collect()
    last = 2**63 - 1
    assert [(row.id, row._op, row._sequence and order_of(row)) for row in rows] == [
        (1, "r", (None, None, None, None, 1, 1)),
        (111, "c", (13, "master.000006", 800911, 0, 3, 1)),
        (112, "c", (13, "master.000006", 800911, last, 4, 1)),
        (111, "d", (13, "master.000006", 800999, last, 5, 0)),
        (113, "u", (13, "master.000006", 800999, last, 5, 1)),
        (112, "d", (14, "master.1000000", 4, 3, 6, 0)),
        (111, "c", None), (None, None, None),
    ]  # fmt: skip
    assert (rows[1].weight, rows[2].weight) == (Decimal("5.180"), None)
    by_offset = maxwell.events(records(spark, sent[-2:]), PRODUCTS, keys=["id"], ordered_by="offset")
    assert [row._sequence and order_of(row) for row in by_offset.collect()] == [(0, 1), None]


@pytest.mark.parametrize("door", [canal, maxwell])
def test_values_of_each_type(spark: SparkSession, door: ModuleType) -> None:
    columns = (
        "id BIGINT, big DECIMAL(20, 0), amount DECIMAL(38, 18), flag BOOLEAN, real DOUBLE, day DATE, "
        "at TIMESTAMP_NTZ, zoned TIMESTAMP, raw BINARY, tags STRING"
    )
    amount = "12345678901234567890.123456789012345678"
    fields: list[Any]
    others: dict[str, Any]
    if door is canal:
        fields = ["-9223372036854775808", "18446744073709551615", amount, "1", "1.0E10"]
        others = {"raw": "\u0005ÿ&", "tags": "3"}
    else:
        fields = [-9223372036854775808, 18446744073709551615, exact_number(amount), 1, 1.0e10]
        others = {"raw": "Bf8m", "tags": ["a", "b"]}
    row = dict(zip(("id", "big", "amount", "flag", "real"), fields, strict=True)) | others
    row |= {
        "day": "2026-01-31",
        "at": "2026-07-01 12:00:00.123456",
        "zoned": "2026-07-01 12:00:00.5",
    }
    empty = {"id": fields[0]}
    make = canal_message if door is canal else maxwell_message
    sent = [make("insert" if door is maxwell else "INSERT", [row] if door is canal else row)]
    sent.append(make("insert" if door is maxwell else "INSERT", [empty] if door is canal else empty))
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    texts = [json.dumps(message).replace('"@', "").replace('@"', "").encode() for message in sent]
    kafka_records = session.createDataFrame([(text, "shop", 0, 0) for text in texts], RECORD)
    rows = door.events(kafka_records, columns, keys=["id"], ordered_by="offset", time_zone="Europe/Berlin")
    full, nulls = rows.withColumn("zoned", rows.zoned.cast("string")).collect()
    assert tuple(full[:-2]) == (
        -9223372036854775808, Decimal(18446744073709551615),
        Decimal("12345678901234567890.123456789012345678"), True, 1.0e10, date(2026, 1, 31),
        datetime.fromisoformat("2026-07-01T12:00:00.123456"), "2026-07-01 10:00:00.5", b"\x05\xff&",
        "3" if door is canal else '["a","b"]',
    )  # fmt: skip
    assert tuple(nulls[1:-2]) == (None,) * 9


def exact_number(text: str) -> str:
    """Stands for a number of JSON with more digits than Python's float has."""
    return f"@{text}@"


@pytest.mark.parametrize("is_ansi", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_values_that_do_not_fit_fail(spark: SparkSession, is_ansi: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", is_ansi)
    for kind, value in (("INT", "many"), ("DATE", "0000-00-00"), ("DECIMAL(3, 2)", "100")):
        sent = records(session, [canal_message("INSERT", [{"id": "1", "value": value}])])
        rows = canal.events(sent, f"id INT, value {kind}", keys=["id"], ordered_by="offset")
        with pytest.raises(Exception, match=f"column value: {value} is no value of"):
            rows.collect()
    sent = records(session, [maxwell_message("insert", {"id": 1, "value": 100})])
    rows = maxwell.events(sent, "id INT, value DECIMAL(3, 2)", keys=["id"], ordered_by="offset")
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        rows.collect()


def history(randoms: random.Random, count: int) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Changes of single rows in the database's order, and the rows at their end. Keys change, too."""
    table: dict[int, str] = {}
    changes: list[dict[str, Any]] = []
    for number in range(count):
        free = [key for key in range(6) if key not in table]
        operation = randoms.choice(["insert", "update", "move", "delete"])
        if operation == "insert" and free:
            key = randoms.choice(free)
            table[key] = f"value {number}"
            changes.append({"kind": "insert", "row": (key, table[key]), "old": None})
        elif table:
            key = randoms.choice(list(table))
            if operation == "delete":
                changes.append({"kind": "delete", "row": (key, table.pop(key)), "old": None})
                continue
            target = randoms.choice(free) if operation == "move" and free else key
            old: dict[str, Any] = {"name": table.pop(key)} | ({} if target == key else {"id": key})
            table[target] = f"value {number}"
            changes.append({"kind": "update", "row": (target, table[target]), "old": old})
    return changes, table


def as_maxwell(number: int, change: Mapping[str, Any]) -> dict[str, Any]:
    """Three rows of each event of the binlog have one position."""
    old = {"old": change["old"]} if change["old"] else {}
    row = dict(zip(("id", "name"), change["row"], strict=True))
    file, number_in_file = divmod(number, 30)
    position = {"position": f"bin.{999990 + file}:{number_in_file // 3}", "xoffset": number_in_file % 3}
    return maxwell_message(change["kind"], row, **old, **position)


def as_ticdc(number: int, change: Mapping[str, Any]) -> dict[str, Any]:
    row = {"id": str(change["row"][0]), "name": change["row"][1]}
    old = [{**row, **{name: str(value) for name, value in change["old"].items()}}] if change["old"] else None
    return canal_message(change["kind"].upper(), [row], old, _tidb={"commitTs": 4 * 10**17 + number})


@pytest.mark.parametrize(
    ("door", "order", "encode"), [(maxwell, "position", as_maxwell), (canal, "commit_ts", as_ticdc)]
)
def test_any_order_of_messages_gives_the_rows_of_the_database(
    spark: SparkSession,
    door: ModuleType,
    order: str,
    encode: Callable[[int, Mapping[str, Any]], dict[str, Any]],
) -> None:
    randoms = random.Random(11)
    changes, table = history(randoms, 400)
    sent = [encode(number, change) for number, change in enumerate(changes)]
    sent += randoms.choices(sent, k=100)
    randoms.shuffle(sent)
    offsets = [randoms.randrange(1000) for _ in sent]
    rows = door.events(
        records(spark, sent, offsets), "id INT, name STRING", keys=["id"], ordered_by=order
    ).collect()
    assert any(change["old"] and "id" in change["old"] for change in changes)
    assert current(rows) == sorted(table.items())


def test_canal_rows_of_a_message_count_in_their_order(spark: SparkSession) -> None:
    """`UPDATE products SET id = id + 1 ORDER BY id DESC`."""
    data = [{"id": "3", "name": "b"}, {"id": "2", "name": "a"}]
    sent = [
        canal_message("INSERT", [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]),
        canal_message("UPDATE", data, [{"id": "2"}, {"id": "1"}]),
    ]
    rows = canal.events(records(spark, sent), "id INT, name STRING", keys=["id"], ordered_by="offset")
    assert current(rows.collect()) == [(2, "a"), (3, "b")]


def test_unknown_options_are_refused(spark: SparkSession) -> None:
    sent = records(spark, [])
    for door, options in (
        (canal, {"keys": ["id"], "ordered_by": "es"}),
        (canal, {"keys": [], "ordered_by": "offset"}),
        (maxwell, {"keys": ["id"], "ordered_by": "xid"}),
        (maxwell, {"keys": ["key"], "ordered_by": "offset"}),
    ):
        with pytest.raises(DefinitionError) as refused:
            door.events(sent, "id INT", **options)
        assert refused.value.error_class == "CHANGE_EVENTS_OPTION_UNKNOWN"
