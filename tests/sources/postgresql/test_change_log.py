"""The change log of a real server behind the port: begin, read, acknowledge, copy; and what can go wrong."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.support.postgresql import restart_server

from tautochrone.errors import DefinitionError, IngestError, SettingsError, SourceUnreachableError
from tautochrone.model.source import LogBatch
from tautochrone.model.source_position import BulkProgress
from tautochrone.sources.postgresql import bulk, change_log, server
from tautochrone.sources.postgresql.change_log import IDLE_BYTES, Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import checked_url
from tautochrone.sources.postgresql.server import slot_of
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

SLOT = "tautochrone_shop"


def url_of(connection: psycopg.Connection) -> str:
    info = connection.info
    return f"host={info.host} dbname={info.dbname} user=postgres"


def capture_of(connection: psycopg.Connection, url: str | None = None, *patterns: str) -> Capture:
    tables = read_tables(connection, SLOT)
    return Capture(
        name="shop",
        url=url or url_of(connection),
        tables=captured_tables(tables, patterns or ("public.*",), (), "shop"),
        slot=f"{SLOT}_{connection.info.dbname[-6:]}",
        publication=SLOT,
    )


@pytest.fixture
def log(shop: psycopg.Connection) -> Iterator[PostgreSQLChangeLog]:
    opened = PostgreSQLChangeLog(capture_of(shop))
    yield opened
    opened.close()


def rows(batch: LogBatch) -> list[tuple[Any, ...]]:
    listed = batch.rows.to_pylist()
    return [
        (row["relation"], row["operation"], dict(row["columns"]) if row["columns"] else None)
        for row in listed
    ]


def error_class(raised: pytest.ExceptionInfo[Any]) -> str:
    assert raised.value.hint or raised.value.error_class == "CAPTURE_QUERY_FAILED"
    return str(raised.value.error_class)


def test_reads_whole_transactions(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    position = log.begin("reader")
    for number in range(4):
        with shop.transaction():
            shop.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 1")
            shop.execute("UPDATE accounts SET balance = %s WHERE id = 2", [number])
    points = []
    seen = 0
    while True:
        batch = log.read(position, 5)
        assert log.read(position, 5).rows == batch.rows, "a read can be repeated"
        assert batch.rows.num_rows % 2 == 0
        seen += batch.rows.num_rows
        points += batch.rows["point"].to_pylist()
        assert all(
            position.point < point <= batch.position.point for point in batch.rows["point"].to_pylist()
        )
        position = batch.position
        log.acknowledge(position)
        if batch.caught_up:
            break
    assert seen == 8
    assert points == sorted(points)
    assert len(set(points)) == 4
    assert batch.source_ms is None or batch.source_ms > 1_700_000_000_000


def test_bound_is_smaller_than_what_the_table_has(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    """The owner died before it acknowledged: the slot is behind the table."""
    position = log.begin("reader")
    for _ in range(5):
        shop.execute("UPDATE accounts SET balance = balance - 1")
    position = log.read(position, 1000).position
    shop.execute("DELETE FROM accounts WHERE id = 3")
    batch = log.read(position, 1)
    assert rows(batch) == [("public.accounts", "delete", {"id": "3", "balance": None})]


def test_acknowledged_log_is_forgotten(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    begun = log.begin("reader")
    shop.execute("UPDATE accounts SET balance = 0")
    position = log.read(begun, 100).position
    log.acknowledge(position)
    log.acknowledge(begun)
    log.acknowledge(position)
    assert log.lag(position)["bytes"] >= 0
    with pytest.raises(IngestError) as raised:
        log.read(begun, 100)
    assert error_class(raised) == "SOURCE_LOG_LOST"
    assert "ahead" in str(raised.value)


def test_begin_can_be_repeated(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    log.begin("reader")
    shop.execute("UPDATE accounts SET balance = 0")
    position = log.begin("reader")
    shop.execute("UPDATE accounts SET balance = 1 WHERE id = 1")
    assert len(rows(log.read(position, 100))) == 1


def test_begin_waits_for_transactions_that_the_slot_left_out(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit may be in the log before the slot, and visible after the first statement that copies."""
    committed = []

    def create_slot(*arguments: Any, **options: Any) -> int:
        point = server.create_slot(*arguments, **options)
        other = psycopg.connect(url_of(shop))
        other.execute("INSERT INTO accounts VALUES (100, 1)")

        def commit() -> None:
            other.commit()
            committed.append(True)
            other.close()

        threading.Timer(0.3, commit).start()
        return point

    monkeypatch.setattr(change_log, "create_slot", create_slot)
    log.begin("reader")
    assert committed


def test_the_copy_of_a_new_table_waits_for_transactions(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One writes before the table is published, and would end after the copy."""
    monkeypatch.setattr(server, "TRANSACTIONS_WAIT_S", 0.3)
    position = log.begin("reader")
    shop.execute("CREATE TABLE cards (number bigint PRIMARY KEY)")
    later = PostgreSQLChangeLog(capture_of(shop))
    with psycopg.connect(url_of(shop)) as other:
        other.execute("INSERT INTO cards VALUES (1)")
        with pytest.raises(IngestError) as raised:
            later.resume(position)
        assert error_class(raised) == "CAPTURE_WAITS_FOR_TRANSACTIONS"
        other.commit()
    (chunk,) = later.resume(position).bulk.pending["public.cards"]
    copied, _pass_at = later.read_chunk("public.cards", chunk)
    assert [dict(columns) for columns in copied["columns"].to_pylist()] == [{"number": "1"}]
    later.close()


def test_each_table_has_a_slot_of_its_own(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    ours = log.begin("0123456789")
    shop.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    theirs = log.begin("abcdefghij")
    assert {slot_of(ours)[-9:], slot_of(theirs)[-9:]} == {"_01234567", "_abcdefgh"}
    log.acknowledge(log.read(theirs, 100).position)
    assert len(rows(log.read(ours, 100))) == 1
    assert "each keeps log for one lake" in log.check_prerequisites()
    # Another capture, whose name begins with that of this one.
    other = replace(capture_of(shop), slot=f"{capture_of(shop).slot}_eu")
    PostgreSQLChangeLog(other).begin("0123456789")
    kept = {entry.name: entry.is_own for entry in log.kept_logs(ours)}
    assert kept == {slot_of(ours): True, slot_of(theirs): False}
    assert {entry.is_own for entry in log.kept_logs(None)} == {None}, "one may be of a copy that begins"
    # Our next copy replaces our slot only.
    log.begin("0123456789")
    assert rows(log.read(theirs, 100)) == []


def test_idle_log_moves_only_after_much_of_it(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    position = log.begin("reader")
    shop.execute("CREATE TABLE other (v text)")
    shop.execute("INSERT INTO other VALUES ('x')")
    assert log.read(position, 100).position == position
    for _ in range(2):
        # The rest of the file is skipped: 16 MB in all.
        shop.execute("SELECT pg_switch_wal()")
        shop.execute("INSERT INTO other VALUES ('x')")
    batch = log.read(position, 100)
    assert batch.rows.num_rows == 0
    assert batch.position.point >= position.point + IDLE_BYTES


def test_log_passes_the_copy_although_nobody_writes(
    shop: psycopg.Connection, log: PostgreSQLChangeLog
) -> None:
    position = log.begin("reader")
    chunk = position.bulk.next_chunks(1)[0]
    shop.execute("SET synchronous_commit = off")
    shop.execute("UPDATE accounts SET balance = 0")
    _rows, pass_at = log.read_chunk(*chunk)
    position = replace(position, bulk=position.bulk.copied(*chunk, pass_at))
    assert log.read(position, 100).position.point >= pass_at


@pytest.mark.parametrize("chunk_bytes", [bulk.CHUNK_BYTES, 2000])
def test_copy_has_every_row_once(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_BYTES", chunk_bytes)
    shop.execute("INSERT INTO accounts SELECT i, NULL FROM generate_series(4, 500) i")
    shop.execute("""INSERT INTO "Odd ""Name" SELECT 'é' || i, i % 7, '[]' FROM generate_series(1, 300) i""")
    shop.execute("ANALYZE")
    capture = capture_of(shop)
    log = PostgreSQLChangeLog(capture)
    position = log.begin("reader")
    copied: dict[str, list[dict[str, str]]] = {}
    count = 0
    while chunks := position.bulk.next_chunks(1):
        table, pass_at = log.read_chunk(*chunks[0])
        count += 1
        for row in table.to_pylist():
            assert row["operation"] == "copy"
            assert row["snapshot"].count(":") == 2
            copied.setdefault(row["relation"], []).append(dict(row["columns"]))
        position = replace(position, bulk=position.bulk.copied(*chunks[0], pass_at))
    log.close()
    assert (count > 4) == (chunk_bytes == 2000)
    ids = [int(row["id"]) for row in copied["public.accounts"]]
    assert sorted(ids) == list(range(1, 501))
    odd = copied['public.Odd "Name']
    assert len(odd) == len({(row["a"], row["b"]) for row in odd}) == 302
    assert {"a": "x", "b": "1", "v": '{"k": 1}'} in odd


def test_transaction_numbers_are_complete(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    position = log.begin("reader")
    with shop.transaction():
        (xid,) = shop.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (None,)
        shop.execute("DELETE FROM accounts")
    assert set(log.read(position, 100).rows["transaction"].to_pylist()) == {xid}


def _read_after(connection: psycopg.Connection, log: PostgreSQLChangeLog, statement: str) -> str:
    position = log.begin("reader")
    connection.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    connection.execute(statement)
    connection.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    with pytest.raises(IngestError) as raised:
        log.read(position, 100)
    return error_class(raised)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"DROP PUBLICATION {SLOT}", "CAPTURE_PUBLICATION_MISSING"),
        (f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')", "CAPTURE_PUBLICATION_INCOMPLETE"),
        (
            f"ALTER PUBLICATION {SLOT} SET TABLE accounts WHERE (id > 1)",
            "CAPTURE_PUBLICATION_INCOMPLETE",
        ),
        ("ALTER TABLE accounts ADD COLUMN z int DEFAULT 7", "CAPTURED_TABLE_CHANGED"),
        ("ALTER TABLE accounts ALTER COLUMN balance TYPE bigint", "CAPTURED_TABLE_CHANGED"),
        ('DROP TABLE "Odd ""Name"', "CAPTURED_TABLE_CHANGED"),
        ("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", "SOURCE_LOG_LOST"),
    ],
)
def test_losses_are_found(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, statement: str, expected: str
) -> None:
    assert _read_after(shop, log, statement) == expected


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER PUBLICATION {SLOT} DROP TABLE accounts",
        f"DROP PUBLICATION {SLOT}; CREATE PUBLICATION {SLOT} FOR ALL TABLES "
        "WITH (publish_via_partition_root = true)",
    ],
)
def test_other_publication_means_another_copy(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, statement: str
) -> None:
    position = log.begin("reader")
    shop.execute(statement)
    assert "public.accounts" in log.read(position, 100).copied_again
    refused = PostgreSQLChangeLog(replace(capture_of(shop), follows_columns=False))
    for call in (lambda: refused.read(position, 100), lambda: refused.resume(position)):
        with pytest.raises(IngestError) as raised:
            call()
        assert error_class(raised) == "CAPTURED_TABLE_CHANGED"
    refused.close()
    resumed = log.resume(position)
    assert "public.accounts" in resumed.bulk.waiting
    shop.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    assert rows(log.read(resumed, 100)) == [("public.accounts", "update", {"id": "1", "balance": "0"})]


def test_a_table_is_copied_anew_on_demand(log: PostgreSQLChangeLog) -> None:
    position = replace(log.begin("reader"), bulk=BulkProgress())
    assert not log.resume(position, ["elsewhere.accounts"]).bulk.pending
    resumed = log.resume(position, ["public.accounts"])
    assert (set(resumed.bulk.pending), resumed.bulk.partial) == ({"public.accounts"}, ())
    completed = log.completed_rows(["public.accounts"], resumed)
    assert completed["operation"].to_pylist() == ["truncate", "completed"]


def test_publication_was_missing_for_a_while(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    """It is back under its name, but the log was written without it."""
    position = log.begin("reader")
    shop.execute(f"DROP PUBLICATION {SLOT}")
    shop.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    tables = 'accounts, "Odd ""Name"'
    shop.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE {tables} WITH (publish_via_partition_root = true)")
    with pytest.raises(IngestError) as raised:
        log._messages(shop, slot_of(position), 2**62, 100)
    assert error_class(raised) == "CAPTURE_PUBLICATION_MISSING"
    assert len(log.read(position, 100).copied_again) == 2
    with pytest.raises(IngestError) as raised:
        log.read(log.resume(position), 100)
    assert error_class(raised) == "CAPTURE_PUBLICATION_MISSING"


def test_other_logs_are_refused(log: PostgreSQLChangeLog) -> None:
    position = log.begin("reader")
    for other in (replace(position, log="1/1/other"), replace(position, point=position.point + 2**40)):
        with pytest.raises(IngestError) as raised:
            log.read(other, 100)
        assert error_class(raised) == "SOURCE_LOG_LOST"


def test_slot_of_another_plugin_is_left_alone(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    slot = f"{capture_of(shop).slot}_reader"
    shop.execute("SELECT pg_create_physical_replication_slot(%s)", [slot])
    with pytest.raises(IngestError) as raised:
        log.begin("reader")
    assert error_class(raised) == "CAPTURE_SLOT_NOT_USABLE"
    shop.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def test_the_check_of_prerequisites_says_what_is_missing(
    shop: psycopg.Connection, log: PostgreSQLChangeLog
) -> None:
    shop.execute("DROP ROLE IF EXISTS guest")
    shop.execute("CREATE ROLE guest LOGIN")
    guest = PostgreSQLChangeLog(capture_of(shop, url_of(shop).replace("user=postgres", "user=guest")))
    expected = [
        ['ALTER ROLE "guest" REPLICATION', 'GRANT SELECT ON "public"."accounts" TO "guest"'],
        ["CREATE PUBLICATION"],
    ]
    for statements in expected:
        with pytest.raises(IngestError) as raised:
            guest.check_prerequisites()
        assert error_class(raised) == "CAPTURE_RIGHTS_MISSING"
        assert all(statement in str(raised.value.hint) for statement in statements), raised.value.hint
        for statement in str(raised.value.hint).partition(": ")[2].split("; "):
            shop.execute(statement)
    assert "made by the first run" in guest.check_prerequisites()
    guest.close()
    shop.execute("DROP OWNED BY guest")
    assert "2 tables" in log.check_prerequisites()
    log.begin("reader")
    assert "MB behind" in log.check_prerequisites()


def test_publication_of_partitions_is_refused(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    shop.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    shop.execute("CREATE TABLE parts_1 PARTITION OF parts DEFAULT")
    shop.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE parts")
    partitioned = PostgreSQLChangeLog(capture_of(shop, None, "public.parts"))
    with pytest.raises(IngestError) as raised:
        partitioned.begin("reader")
    assert error_class(raised) == "CAPTURE_PUBLICATION_INCOMPLETE"
    assert "publish_via_partition_root is false" in str(raised.value)
    assert "publish_via_partition_root = true" in str(raised.value.hint)
    partitioned.close()


def test_rows_of_tables_that_inherit_are_not_copied(shop: psycopg.Connection) -> None:
    """The log has them as rows of these tables."""
    shop.execute("CREATE TABLE savings () INHERITS (accounts)")
    shop.execute("INSERT INTO savings VALUES (1, 7), (9, 7)")
    log = PostgreSQLChangeLog(capture_of(shop, None, "public.accounts"))
    position = log.begin("reader")
    chunk = position.bulk.next_chunks(1)[0]
    copied = [dict(row)["id"] for row in log.read_chunk(*chunk)[0]["columns"].to_pylist()]
    assert sorted(copied) == ["1", "2", "3"]
    # Were it published, it would refuse updates, since it has no key.
    shop.execute("UPDATE accounts SET balance = 0")
    batch = log.read(position, 100)
    assert [columns["id"] for _, _, columns in rows(batch)] == ["1", "2", "3"]
    log.close()


def test_tables_without_a_key_are_refused(shop: psycopg.Connection) -> None:
    shop.execute("CREATE TABLE keyless (v int)")
    tables = read_tables(shop, SLOT)
    with pytest.raises(DefinitionError) as raised:
        captured_tables(tables, ["public.*"], [], "shop")
    assert raised.value.error_class == "CAPTURED_TABLE_WITHOUT_KEY"
    names = [table.name for table in captured_tables(tables, ["public.*"], ["*.keyless"], "shop")]
    assert names == ['public.Odd "Name', "public.accounts"]
    with pytest.raises(DefinitionError) as raised:
        captured_tables(tables, ["public.*", "sales.*"], [], "shop")
    assert raised.value.error_class == "CAPTURE_WITHOUT_TABLES"


def test_url() -> None:
    with pytest.raises(SettingsError) as raised:
        checked_url("postgresql//nonsense", "shop")
    assert raised.value.error_class == "CAPTURE_URL_INVALID"
    assert "connect_timeout=3" in checked_url("host=h connect_timeout=3", "shop")


def test_database_restarts(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    """The read in the middle fails as not reachable; the next one connects again."""
    position = log.begin("reader")
    shop.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    restart_server()
    with pytest.raises(SourceUnreachableError) as raised:
        log.read(position, 100)
    assert error_class(raised) == "CAPTURE_DATABASE_NOT_REACHABLE"
    batch = log.read(position, 100)
    assert batch.rows.num_rows == 1
    log.acknowledge(batch.position)


def test_copied_rows_survive_a_crash_of_the_server(
    shop: psycopg.Connection, log: PostgreSQLChangeLog
) -> None:
    """Another transaction would get the number of one that the copy saw and the server forgot."""
    shop.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    shop.execute("SELECT pg_reload_conf()")
    log.begin("reader")
    shop.execute("SET synchronous_commit = off")
    shop.execute("INSERT INTO accounts SELECT i, 0 FROM generate_series(4, 9) i")
    copied, _pass_at = log.read_chunk("public.accounts", "{}")
    log.close()
    restart_server(crash=True)
    with psycopg.connect(url_of(shop), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM RESET wal_writer_delay")
        connection.execute("SELECT pg_reload_conf()")
        ids = [str(row[0]) for row in connection.execute("SELECT id FROM accounts").fetchall()]
    assert sorted(dict(columns)["id"] for columns in copied["columns"].to_pylist()) == sorted(ids)


@pytest.mark.parametrize(
    ("statements", "is_copied"),
    [
        (("ALTER TABLE accounts ALTER COLUMN balance TYPE int USING balance * 2",), True),
        (("ALTER TABLE accounts DROP balance", "ALTER TABLE accounts ADD balance int DEFAULT 5"), True),
        (("VACUUM FULL accounts", "TRUNCATE accounts"), False),
        (("ALTER TABLE accounts ALTER COLUMN balance SET DEFAULT 7", "ANALYZE accounts"), False),
    ],
)
def test_rewritten_tables_are_copied(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, statements: tuple[str, ...], is_copied: bool
) -> None:
    """The log does not have what ALTER TABLE writes, and its columns are the same afterwards."""
    begun = log.begin("reader")
    position = replace(begun, bulk=BulkProgress())
    for statement in statements:
        shop.execute(statement)
    assert set(log.read(position, 100).copied_again) == ({"public.accounts"} if is_copied else set())
    resumed = log.resume(position)
    assert set(resumed.bulk.pending) == ({"public.accounts"} if is_copied else set())
    log.read(resumed, 100)
    assert log.resume(resumed).bulk == resumed.bulk


@pytest.mark.parametrize("is_passed", [False, True])
def test_columns_that_come_while_a_table_is_copied(
    shop: psycopg.Connection, log: PostgreSQLChangeLog, is_passed: bool
) -> None:
    """The copy may be without them, and have rows that changed before it, which count as it has them."""
    position = log.begin("reader")
    if is_passed:
        position = replace(log.read(position, 100).position, bulk=BulkProgress())
    shop.execute("ALTER TABLE accounts ADD COLUMN note text; UPDATE accounts SET note = 'new' WHERE id = 1")
    if not is_passed:
        chunk = next(chunk for chunk in position.bulk.next_chunks(9) if chunk[0] == "public.accounts")
        copied, pass_at = log.read_chunk(*chunk)
        assert not any("note" in dict(row["columns"]) for row in copied.to_pylist())
        position = replace(position, bulk=position.bulk.copied(*chunk, pass_at))
    with contextlib.closing(PostgreSQLChangeLog(capture_of(shop))) as widened:
        resumed = widened.resume(position)
        assert ("public.accounts" in resumed.bulk.pending) == (not is_passed)
        [update] = [row for row in rows(widened.read(resumed, 100)) if row[1] == "update"]
        assert update[2]["note"] == "new"


def test_server_without_logical_log(shop: psycopg.Connection, log: PostgreSQLChangeLog) -> None:
    shop.execute("ALTER SYSTEM SET wal_level = replica")
    restart_server()
    try:
        with pytest.raises(IngestError) as raised:
            log.begin("reader")
        assert error_class(raised) == "CAPTURE_SERVER_NOT_USABLE"
        assert "wal_level = logical" in str(raised.value.hint)
    finally:
        with psycopg.connect(url_of(shop), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
        restart_server()
