"""Foreign keys that change rows without a trace in the log: their tables are copied again."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.change_log import MySQLChangeLog

from .conftest import Schema

_TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, note TEXT)",
    "CREATE TABLE `order lines` (id INT PRIMARY KEY, order_id INT, "
    "FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE)",
    "CREATE TABLE notes (id INT PRIMARY KEY, line INT, "
    "FOREIGN KEY (line) REFERENCES `order lines` (id) ON DELETE SET NULL)",
    "CREATE TABLE codes (id INT PRIMARY KEY, code INT, "
    "FOREIGN KEY (code) REFERENCES orders (code) ON UPDATE CASCADE)",
    "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b')",
    "INSERT INTO `order lines` VALUES (1, 1), (2, 2)",
    "INSERT INTO notes VALUES (1, 1), (2, 2)",
    "INSERT INTO codes VALUES (1, 10), (2, 20)",
)


def _copied_again(schema: Schema, log: MySQLChangeLog, after: LogPosition) -> tuple[LogPosition, list[str]]:
    """The position at which all is read, and the tables that are copied from it on."""
    position = after
    while True:
        batch = log.read(position, 1_000)
        position = batch.position
        if batch.caught_up:
            copied = [name.removeprefix(f"{schema.name}.") for name in position.bulk.pending]
            return position, sorted(copied)


def _without_pending(log: MySQLChangeLog, position: LogPosition) -> LogPosition:
    """As if all had been copied."""
    bulk: Any = type(position.bulk)(pending={}, pass_at={})
    return LogPosition(log=position.log, point=position.point, marker=position.marker, bulk=bulk)


@pytest.mark.parametrize("schema", ["mariadb"], indirect=True)
def test_tables_are_copied_again_when_foreign_keys_may_have_changed_them(schema: Schema) -> None:
    schema.run(*_TABLES)
    with pytest.raises(DefinitionError, match="CASCADE") as raised:
        schema.capture()
    assert raised.value.error_class == "CAPTURED_TABLE_NOT_LOGGED"
    assert "cascades='copy'" in str(raised.value.hint)
    log = MySQLChangeLog(schema.capture(follows_cascades=True))
    position = _without_pending(log, log.begin("reader"))
    for statement, copied in (
        ("INSERT INTO orders VALUES (3, 30, 'c')", []),
        ("UPDATE orders SET note = 'd' WHERE id = 1", []),
        ("UPDATE orders SET code = 11 WHERE id = 1", ["codes"]),
        ("DELETE FROM `order lines` WHERE id = 2", ["notes"]),
        ("DELETE FROM orders WHERE id = 3", ["notes", "order lines"]),
    ):
        schema.run(statement)
        position, tables = _copied_again(schema, log, position)
        assert tables == copied, statement
        position = _without_pending(log, position)
    schema.run("ALTER TABLE codes ADD FOREIGN KEY (id) REFERENCES notes (id) ON DELETE CASCADE")
    position, tables = _copied_again(schema, log, position)
    assert tables == ["codes"], "a foreign key that comes later"
    schema.run("DELETE FROM notes WHERE id = 2")
    position, tables = _copied_again(schema, log, _without_pending(log, position))
    assert tables == ["codes"]
    log.close()


@pytest.mark.parametrize("schema", ["mariadb"], indirect=True)
def test_the_other_table_gets_other_columns_before_its_rows_are_read(schema: Schema) -> None:
    """Its rows in the log are those of the table that it was, or in other places than now."""
    schema.run(*_TABLES)
    log = MySQLChangeLog(schema.capture(follows_cascades=True))
    position = _without_pending(log, log.begin("reader"))
    log.close()
    for statements, alter, copied in (
        (
            ["UPDATE orders SET note = 'd', code = 20 WHERE id = 2"],
            "ADD COLUMN place POINT FIRST",
            ["orders"],
        ),
        (["UPDATE orders SET code = 11 WHERE id = 1"], "DROP COLUMN note", ["codes", "orders"]),
        (
            ["UPDATE orders SET code = 12 WHERE id = 1"],
            "ADD COLUMN level INT AFTER id",
            ["codes", "orders"],
        ),
        (
            ["DELETE FROM codes WHERE id = 2", "DELETE FROM orders WHERE id = 2"],
            "DROP COLUMN place",
            ["notes", "order lines", "orders"],
        ),
    ):
        schema.run(*statements, f"ALTER TABLE orders {alter}")
        log = MySQLChangeLog(schema.capture(follows_cascades=True))
        position, tables = _copied_again(schema, log, log.resume(position))
        log.close()
        assert tables == copied, alter
        position = _without_pending(log, position)


@pytest.mark.parametrize("schema", ["mariadb"], indirect=True)
def test_the_other_table_must_be_captured(schema: Schema) -> None:
    schema.run(*_TABLES[:2], f"CREATE DATABASE {schema.name}_other")
    try:
        schema.run(
            f"CREATE TABLE {schema.name}_other.p (id INT PRIMARY KEY)",
            f"CREATE TABLE c (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {schema.name}_other.p (id) "
            f"ON UPDATE CASCADE)",
        )
        with pytest.raises(DefinitionError, match=r"\.c, whose log is not complete") as raised:
            schema.capture(follows_cascades=True)
        assert f"{schema.name}_other.p is captured too" in str(raised.value.hint)
    finally:
        schema.run("DROP TABLE IF EXISTS c", f"DROP DATABASE {schema.name}_other")
