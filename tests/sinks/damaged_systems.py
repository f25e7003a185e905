"""The systems that are damaged in `test_damages`, and how each is damaged where they differ."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from tests.sinks.mariadb.benches import MariadbBench
from tests.sinks.starrocks.benches import StarrocksBench
from tests.support.mariadb import SINK_PASSWORD, sink_url

from tautochrone.testing.sqlite_sink import FORMAT

ADDED = (
    "trigger", "trigger behind", "deferred trigger", "rule", "child", "empty child", "foreign key",
    "computed column", "unique", "check",
)  # fmt: skip
"""What somebody adds to a table, by which it may hold other rows than those that are sent."""


class Mirror(Protocol):
    """A system that a sink delivers to."""

    format: str
    options: Mapping[str, str]
    own: tuple[str, ...]
    """The sink's own tables, that of the pointer first."""
    dialect: Mapping[str, str]
    """Statements by damage, in place of those of `DAMAGES`; None: the system cannot be damaged so."""

    def run(self, statement: str) -> None: ...

    def rows(self, table: str) -> Counter[tuple[Any, ...]]: ...

    def drop(self) -> None:
        """What the hints say: drop the database of the sink."""


@dataclass
class Postgresql:
    url: str
    schema: str
    format: str = "postgresql"
    own: tuple[str, ...] = ("taut_sinks",)
    dialect: Mapping[str, Any] = field(
        default_factory=lambda: {
            "drop database": ["DROP SCHEMA {db} CASCADE"],
            "rename database": ["ALTER SCHEMA {db} RENAME TO {db}_away"],
            "rename": "ALTER TABLE {db}.{table} RENAME TO {to}",
            "index": ["DROP INDEX {db}.{table}__taut_hash_idx"],
            "copy": "CREATE TABLE {db}.{to} AS SELECT * FROM {db}.{table}",
            "type": ["ALTER TABLE {db}.{table} ALTER COLUMN id TYPE integer"],
            "like": "CREATE TABLE {db}.{to} (LIKE {db}.{table} INCLUDING ALL)",
            "trigger": [
                "CREATE FUNCTION {db}.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
                "CREATE TRIGGER t BEFORE INSERT ON {db}.{table} FOR EACH ROW EXECUTE FUNCTION {db}.nothing()",
            ],
            "trigger behind": [
                "CREATE FUNCTION {db}.drops() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN DELETE FROM {db}.{table} WHERE id = 1; RETURN NULL; END'",
                "CREATE TRIGGER t AFTER INSERT ON {db}.{table} EXECUTE FUNCTION {db}.drops()",
            ],
            "deferred trigger": [
                "CREATE FUNCTION {db}.sets() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN UPDATE {db}.{table} SET word = ''other''; RETURN NULL; END'",
                "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {db}.{table} DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION {db}.sets()",
            ],
            "rule": ["CREATE RULE r AS ON DELETE TO {db}.{table} DO INSTEAD NOTHING"],
            "child": [
                "CREATE TABLE {db}.child () INHERITS ({db}.{table})",
                "INSERT INTO {db}.child SELECT * FROM {db}.{table} LIMIT 1",
            ],
            "empty child": ["CREATE TABLE {db}.child () INHERITS ({db}.{table})"],
            "foreign key": [
                "CREATE TABLE {db}.refs (id bigint PRIMARY KEY)",
                "INSERT INTO {db}.refs SELECT generate_series(1, 9)",
                "ALTER TABLE {db}.{table} ADD FOREIGN KEY (id) REFERENCES {db}.refs ON DELETE SET NULL",
                "DELETE FROM {db}.refs WHERE id = 1",
            ],
            "computed column": [
                "ALTER TABLE {db}.{table} DROP COLUMN word",
                "ALTER TABLE {db}.{table} ADD COLUMN word text GENERATED ALWAYS AS ('other') STORED",
            ],
            "unique": ["CREATE UNIQUE INDEX u ON {db}.{table} ((id > 5)) WHERE id > 5"],
            "check": ["ALTER TABLE {db}.{table} ADD CHECK (id < 7)"],
        }
    )

    @property
    def options(self) -> Mapping[str, str]:
        return {"url": self.url, "schema": self.schema}

    def run(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return Counter(connection.execute(f"SELECT id, word FROM {self.schema}.{table}").fetchall())

    def drop(self) -> None:
        self.run(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")


@dataclass
class Mariadb:
    bench: MariadbBench
    key: tuple[str, ...] = ()
    format: str = "mariadb"
    own: tuple[str, ...] = ("taut_sinks", "taut_tables")
    dialect: Mapping[str, Any] = field(
        default_factory=lambda: {
            "drop database": ["DROP DATABASE {db}"],
            "rename database": None,
            "rename": "RENAME TABLE {db}.{table} TO {db}.{to}",
            "index": ["ALTER TABLE {db}.{table} DROP INDEX _taut_hash"],
            "copy": "CREATE TABLE {db}.{to} AS SELECT * FROM {db}.{table}",
            "type": ["ALTER TABLE {db}.{table} MODIFY id INT"],
            "like": "CREATE TABLE {db}.{to} LIKE {db}.{table}",
            "duplicate": [
                "INSERT INTO {db}.{table} (id, word, _taut_hash) "
                "SELECT id, word, _taut_hash FROM {db}.{table}"
            ],
            "trigger": [
                "CREATE TRIGGER {db}.t BEFORE INSERT ON {db}.{table} FOR EACH ROW SET NEW.word = 'other'"
            ],
            "trigger behind": [
                "CREATE TRIGGER {db}.t AFTER INSERT ON {db}.{table} FOR EACH ROW "
                "UPDATE {db}.lines SET word = 'other'"
            ],
            "deferred trigger": None,
            "rule": None,
            "child": None,
            "empty child": None,
            "foreign key": [
                "CREATE TABLE {db}.refs (id BIGINT PRIMARY KEY)",
                "INSERT INTO {db}.refs VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)",
                "ALTER TABLE {db}.{table} ADD FOREIGN KEY (id) REFERENCES {db}.refs (id) ON DELETE SET NULL",
                "DELETE FROM {db}.refs WHERE id = 1",
            ],
            "computed column": [
                "ALTER TABLE {db}.{table} MODIFY word LONGTEXT GENERATED ALWAYS AS ('other') STORED"
            ],
            "unique": [
                "ALTER TABLE {db}.{table} ADD COLUMN late INT AS (IF(id > 5, 1, NULL)) STORED, "
                "ADD UNIQUE (late)"
            ],
            "check": ["ALTER TABLE {db}.{table} ADD CHECK (id < 7)"],
        }
    )

    @property
    def schema(self) -> str:
        return self.bench.database

    @property
    def options(self) -> Mapping[str, str]:
        return {"url": sink_url(self.schema), "password": SINK_PASSWORD}

    def run(self, statement: str) -> None:
        self.bench.query(statement)

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.bench.query(f"SELECT id, word FROM {self.schema}.{table}"))

    def drop(self) -> None:
        self.run(f"DROP DATABASE IF EXISTS {self.schema}")


@dataclass
class Starrocks:
    bench: StarrocksBench
    format: str = "starrocks-stand-in"
    own: tuple[str, ...] = ("taut_sinks", "taut_tables", "taut_fences")
    options: Mapping[str, str] = field(default_factory=dict)
    dialect: Mapping[str, Any] = field(
        default_factory=lambda: {
            "drop database": None,
            "rename database": None,
            "rename": "ALTER TABLE {db}.{table} RENAME TO {to}",
            "index": None,
            "copy": "CREATE TABLE {db}.{to} AS SELECT * FROM {db}.{table}",
            "type": None,
            "like": None,
            "truncate": ["DELETE FROM {db}.{table}"],
            "duplicate": None,
            **dict.fromkeys(ADDED),
            "drop hash": ["ALTER TABLE {db}.orders DROP COLUMN _taut_hash"],
        }
    )

    @property
    def schema(self) -> str:
        return self.bench.database.name

    def run(self, statement: str) -> None:
        database = self.bench.database
        database._sqlite.execute(statement)
        database._read_columns()

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.bench.database.query(f"SELECT id, word FROM {self.schema}.{table}"))

    def drop(self) -> None:
        tables = self.bench.database.query(
            f"SELECT name FROM {self.schema}.sqlite_master WHERE type = 'table'"
        )
        for (table,) in tables:
            self.run(f"DROP TABLE {self.schema}.{table}")


@dataclass
class Toy:
    path: str
    format: str = FORMAT
    schema: str = "main"
    own: tuple[str, ...] = ("taut_pointer", "taut_transactions", "taut_staged")
    dialect: Mapping[str, Any] = field(
        default_factory=lambda: {
            **Starrocks.__dataclass_fields__["dialect"].default_factory(),  # type: ignore[misc]
            "drop hash": None,
            "duplicate": ["INSERT INTO {db}.{table} SELECT * FROM {db}.{table}"],
            "like": None,
        }
    )

    @property
    def options(self) -> Mapping[str, str]:
        return {"path": self.path}

    def run(self, statement: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        with sqlite3.connect(self.path) as connection:
            return Counter(connection.execute(f"SELECT id, word FROM {table}"))

    def drop(self) -> None:
        with sqlite3.connect(self.path) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            self.run(f"DROP TABLE IF EXISTS {table}")
