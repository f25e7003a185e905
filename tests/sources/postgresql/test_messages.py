"""Decoding pgoutput's messages: written by hand after PostgreSQL's documentation, and by a real server."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tautochrone.errors import IngestError
from tautochrone.sources.postgresql import messages as module
from tautochrone.sources.postgresql.messages import DecodedBatch, decode

ROWS = list[dict[str, Any]]
KEYS = {"public.t": ("id",), "public.u": ("id",)}
UNCHANGED = object()


def begin(xid: int, microseconds: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", 1, microseconds, xid)


def commit(end: int, microseconds: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, end - 1, end, microseconds)


def relation(oid: int, name: str, columns: Sequence[str], keys: Sequence[str] = ("id",)) -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0d"
    parts = [
        bytes([column in keys]) + column.encode() + b"\0" + struct.pack(">Ii", 25, -1) for column in columns
    ]
    return head + struct.pack(">H", len(columns)) + b"".join(parts)


def tuple_of(*values: Any) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value.encode())) + value.encode())
    return b"".join(parts)


def insert(oid: int, *values: Any) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + tuple_of(*values)


def update(oid: int, new: Sequence[Any], key: Sequence[Any] = (), full: Sequence[Any] = ()) -> bytes:
    old = b"K" + tuple_of(*key) if key else b"O" + tuple_of(*full) if full else b""
    return b"U" + struct.pack(">I", oid) + old + b"N" + tuple_of(*new)


def delete(oid: int, *key: Any) -> bytes:
    return b"D" + struct.pack(">I", oid) + b"K" + tuple_of(*key)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def rows_of(batch: DecodedBatch) -> ROWS:
    rows: ROWS = batch.rows.to_pylist()
    for row in rows:
        row["columns"] = None if row["columns"] is None else dict(row["columns"])
    return rows


def brief(batch: DecodedBatch) -> list[tuple[Any, ...]]:
    names = ("point", "relation", "operation", "columns")
    return [tuple(row[name] for name in names) for row in rows_of(batch)]


def test_changes_of_two_transactions() -> None:
    batch = decode(
        [
            begin(7, 5),
            relation(1, "t", ["id", "name"]),
            insert(1, "1", "ä"),
            insert(1, "2", None),
            commit(100, 5),
            begin(8, 1_000_000),
            relation(2, "u", ["id"]),
            insert(2, ""),
            update(1, ["1", "b"]),
            delete(1, "2", None),
            commit(200, 1_000_000),
        ],
        KEYS,
    )
    assert brief(batch) == [
        (100, "public.t", "insert", {"id": "1", "name": "ä"}),
        (100, "public.t", "insert", {"id": "2", "name": None}),
        (200, "public.u", "insert", {"id": ""}),
        (200, "public.t", "update", {"id": "1", "name": "b"}),
        (200, "public.t", "delete", {"id": "2", "name": None}),
    ]
    assert batch.rows["transaction"].to_pylist() == [7, 7, 8, 8, 8]
    assert batch.end_point == 200
    assert batch.committed_ms == 946_684_801_000
    order = [(row["point"], row["sequence"]) for row in rows_of(batch)]
    assert order == sorted(set(order))


def test_new_key_is_a_delete_and_an_insert() -> None:
    batch = decode(
        [
            begin(7),
            relation(1, "t", ["id", "name"]),
            update(1, ["2", "a"], key=["1", None]),
            update(1, ["3", "b"]),
            commit(100),
        ],
        KEYS,
    )
    assert [row[2:] for row in brief(batch)] == [
        ("delete", {"id": "1", "name": None}),
        ("insert", {"id": "2", "name": "a"}),
        ("update", {"id": "3", "name": "b"}),
    ]


def test_unchanged_values() -> None:
    """They come from the full old row, where there is one; else they are named."""
    batch = decode(
        [
            begin(7),
            relation(1, "t", ["id", "name", "large"], ["id", "name", "large"]),
            update(1, ["1", "a", UNCHANGED]),
            update(1, ["1", UNCHANGED, None], full=["1", "old", "large"]),
            update(1, ["1", UNCHANGED, UNCHANGED], full=["1", None, "large"]),
            commit(100),
        ],
        KEYS,
    )
    rows = rows_of(batch)
    assert [row["operation"] for row in rows] == ["update"] * 3
    assert [row["unchanged"] for row in rows] == [["large"], [], []]
    assert [row["columns"] for row in rows] == [
        {"id": "1", "name": "a"},
        {"id": "1", "name": "old", "large": None},
        {"id": "1", "name": None, "large": "large"},
    ]


def test_unchanged_value_of_a_new_key_is_refused() -> None:
    with pytest.raises(IngestError) as raised:
        decode(
            [
                begin(7),
                relation(1, "t", ["id", "large"]),
                update(1, ["2", UNCHANGED], key=["1", None]),
                commit(100),
            ],
            KEYS,
        )
    assert raised.value.error_class == "UNCHANGED_VALUE_OF_NEW_KEY"
    assert "REPLICA IDENTITY FULL" in str(raised.value.hint)


def test_partition_without_full_identity_has_no_old_values() -> None:
    """The log writes its changes as those of its root, which has REPLICA IDENTITY FULL: the old row has only
    the key, and NULL for all else."""
    root, part = relation(1, "t", ["id", "large"], ["id", "large"]), relation(2, "t_low", ["id", "large"])
    moved = update(1, ["2", UNCHANGED], full=["1", None])
    with pytest.raises(IngestError) as raised:
        decode([begin(7), root, part, moved, commit(100)], KEYS)
    assert raised.value.error_class == "UNCHANGED_VALUE_OF_NEW_KEY"
    batch = decode([begin(7), root, part, update(1, ["1", UNCHANGED], full=["1", None]), commit(100)], KEYS)
    assert [(row["columns"], row["unchanged"]) for row in rows_of(batch)] == [({"id": "1"}, ["large"])]


def test_relation_changes_between_rows() -> None:
    batch = decode(
        [
            begin(7),
            relation(1, "t", ["id"]),
            insert(1, "1"),
            commit(100),
            begin(8),
            relation(1, "t", ["id", "name"]),
            insert(1, "2", "b"),
            truncate(1, 2),
            commit(200),
        ],
        KEYS,
    )
    assert [row[2:] for row in brief(batch)] == [
        ("insert", {"id": "1"}),
        ("insert", {"id": "2", "name": "b"}),
        ("truncate", None),
    ]
    assert [len(version.columns) for version in batch.relations] == [1, 2]


def test_other_messages_and_relations_are_left_out() -> None:
    batch = decode(
        [
            begin(7),
            b"O" + bytes(8) + b"origin\0",
            b"Y" + struct.pack(">I", 9) + b"public\0mood\0",
            b"M" + bytes(9) + b"prefix\0" + struct.pack(">I", 2) + b"hi",
            relation(3, "other", ["id"]),
            insert(3, "1"),
            truncate(3),
            commit(100),
        ],
        KEYS,
    )
    assert batch.rows.num_rows == 0
    assert batch.end_point == 100


def test_empty_and_unknown() -> None:
    assert decode([], KEYS).end_point is None
    with pytest.raises(IngestError) as raised:
        decode([begin(1), b"S", commit(2)], KEYS)
    assert raised.value.error_class == "CHANGE_LOG_MESSAGE_UNKNOWN"


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random rows, decoded in pieces of few bytes."""
    pick = random.Random(3)

    def value() -> Any:
        return pick.choice([None, UNCHANGED, "", "é" * pick.randint(0, 9)])

    log = [begin(7), relation(1, "t", ["id", "a", "b"])]
    expected = []
    for number in range(50):
        row = [str(number), value(), value()]
        log.append(update(1, row))
        names = zip(["id", "a", "b"], row, strict=True)
        expected.append({name: text for name, text in names if text is not UNCHANGED})
    log.append(commit(100))
    whole = decode(log, KEYS)
    monkeypatch.setattr(module, "_SLICE_BYTES", 60)
    assert decode(log, KEYS).rows == whole.rows
    assert [row["columns"] for row in rows_of(whole)] == expected


def test_real_server(database: psycopg.Connection) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric, large text)")
    database.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot('decode', 'pgoutput')")
    large = "x" * 5000
    with database.transaction():
        database.execute("INSERT INTO t VALUES (1, 1.50, %s), (2, 'NaN', NULL)", [large])
        with database.transaction():
            database.execute("INSERT INTO t VALUES (3, 1e30, 'é')")
    database.execute("UPDATE t SET n = 2 WHERE id = 1")
    database.execute("UPDATE t SET id = 20 WHERE id = 2")
    database.execute("DELETE FROM t WHERE id = 3")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("ALTER TABLE t ADD COLUMN z int DEFAULT 7")
    database.execute("UPDATE t SET n = 3 WHERE id = 1")
    database.execute("UPDATE t SET id = 10 WHERE id = 1")
    database.execute("TRUNCATE t")
    with database.cursor(binary=True) as cursor:
        cursor.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('decode', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'p')"
        )
        batch = decode([data for (data,) in cursor], {"public.t": ("id",)})
    rows = [(row["operation"], row["columns"], row["unchanged"]) for row in rows_of(batch)]
    assert rows == [
        ("insert", {"id": "1", "n": "1.50", "large": large}, []),
        ("insert", {"id": "2", "n": "NaN", "large": None}, []),
        ("insert", {"id": "3", "n": "1000000000000000000000000000000", "large": "é"}, []),
        ("update", {"id": "1", "n": "2"}, ["large"]),
        ("delete", {"id": "2", "n": None, "large": None}, []),
        ("insert", {"id": "20", "n": "NaN", "large": None}, []),
        ("delete", {"id": "3", "n": None, "large": None}, []),
        ("update", {"id": "1", "n": "3", "large": large, "z": "7"}, []),
        ("delete", {"id": "1", "n": "3", "large": large, "z": "7"}, []),
        ("insert", {"id": "10", "n": "3", "large": large, "z": "7"}, []),
        ("truncate", None, None),
    ]
