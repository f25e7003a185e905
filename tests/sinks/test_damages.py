"""Each object of a sink is dropped, emptied, restored, renamed, swapped or altered by somebody else.

Afterwards the sink shows the lake at its pointer: by itself, or after somebody did what the hint of an error
says, which is to drop the database of the sink.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from pyspark.sql import types as spark
from tests.mariadb_sink.benches import MariadbBench
from tests.sinks.test_delivery import LINES, ORDERS, World, bag, world
from tests.starrocks_sink.benches import StarrocksBench

from tautochrone.errors import SinkError
from tautochrone.runtime.delivery.delivery import Delivery
from tautochrone.runtime.delivery.delivery_worker import needs_attention
from tautochrone.sinks import register_sink
from tautochrone.testing.mariadb import SINK_PASSWORD, is_installed, sink_url
from tautochrone.testing.postgresql import fresh_database
from tautochrone.testing.sqlite_sink import FORMAT

__all__ = ["world"]

SCHEMA = spark.StructType(
    [spark.StructField("id", spark.LongType()), spark.StructField("word", spark.StringType())]
)
TRIES = 4
"""So often a worker would try in vain before the hint is followed."""


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
            "trigger": None,
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


# -- damages ----------------------------------------------------------------------------------------


def restore(*tables: str) -> list[str]:
    """The rows of an older copy, in the place of the newer ones."""
    return [
        statement.replace("{table}", table)
        for table in tables
        for statement in (
            "DELETE FROM {db}.{table}",
            "INSERT INTO {db}.{table} SELECT * FROM {db}.saved_{table}",
        )
    ]


def swap(mirror: Any) -> list[str]:
    rename = mirror.dialect["rename"]
    return [
        rename.replace("{table}", table).replace("{to}", to)
        for table, to in (("orders", "third"), ("lines", "orders"), ("third", "lines"))
    ]


def exchange(mirror: Any, create: str) -> list[str]:
    """Another table in the place of one, as some tools alter tables."""
    copy, rename = mirror.dialect[create], mirror.dialect["rename"]
    if copy is None:
        return []
    return [
        copy.replace("{table}", "orders").replace("{to}", "other"),
        "DROP TABLE {db}.orders",
        rename.replace("{table}", "other").replace("{to}", "orders"),
    ]


Statements = Callable[[Any], "list[str] | None"]


def damages_of(table: str) -> dict[str, Statements]:
    def named(damage: str, *default: str) -> Statements:
        return lambda mirror: [
            statement.replace("{table}", table) for statement in mirror.dialect.get(damage, default) or ()
        ]

    return {
        f"drop {table}": named("drop", "DROP TABLE {db}.{table}"),
        f"rename {table}": lambda mirror: [
            mirror.dialect["rename"].replace("{table}", table).replace("{to}", f"{table}_away")
        ],
        f"empty {table}": named("empty", "DELETE FROM {db}.{table}"),
        f"truncate {table}": named("truncate", "TRUNCATE TABLE {db}.{table}"),
    }


_DOUBLE = "INSERT INTO {db}.{table} SELECT * FROM {db}.{table}"
MIRRORED: dict[str, Statements] = {
    **damages_of("orders"),
    **damages_of("lines"),
    "delete a row": lambda _: ["DELETE FROM {db}.orders WHERE id = 1"],
    "delete a row that goes": lambda _: ["DELETE FROM {db}.orders WHERE id = 2"],
    "double rows": lambda mirror: [
        statement.replace("{table}", "orders")
        for statement in mirror.dialect.get(
            "duplicate", ["INSERT INTO {db}.{table} SELECT * FROM {db}.{table}"]
        )
        or ()
    ],
    "restore orders": lambda _: restore("orders"),
    "restore both": lambda _: restore("orders", "lines"),
    "restore the pointer": lambda mirror: restore(mirror.own[0]),
    "restore all": lambda mirror: restore("orders", "lines", mirror.own[0]),
    "restore orders and the pointer": lambda mirror: restore("orders", mirror.own[0]),
    "swap": swap,
    "exchange for an empty table": lambda mirror: exchange(mirror, "like"),
    "exchange for a copy": lambda mirror: exchange(mirror, "copy"),
    "drop a column": lambda _: ["ALTER TABLE {db}.orders DROP COLUMN word"],
    "rename a column": lambda mirror: ["ALTER TABLE {db}.orders RENAME COLUMN word TO text"],
    "add a column": lambda _: ["ALTER TABLE {db}.orders ADD COLUMN other INT"],
    "drop the hashes": lambda mirror: mirror.dialect.get(
        "drop hash", ["ALTER TABLE {db}.orders DROP COLUMN _taut_hash"]
    ),
    **{
        name: lambda mirror, name=name: [  # type: ignore[misc]
            statement.replace("{table}", "orders") for statement in mirror.dialect[name] or ()
        ]
        for name in ("index", "type", "trigger", "drop database", "rename database")
    },
}
OWN = ("drop", "rename", "empty", "truncate", "drop a column of")
DAMAGES = [*MIRRORED, *(f"{damage} own table {number}" for number in range(3) for damage in OWN)]


def statements_of(mirror: Any, damage: str) -> list[str]:
    if damage in MIRRORED:
        return MIRRORED[damage](mirror) or []
    verb, _, number = damage.partition(" own table ")
    if int(number) >= len(mirror.own):
        return []
    table = mirror.own[int(number)]
    if verb == "drop a column of":
        column = {"taut_sinks": "published", "taut_tables": "mirrors"}.get(table)
        return [] if column is None else [f"ALTER TABLE {{db}}.{table} DROP COLUMN {column}"]
    return damages_of(table)[f"{verb} {table}"](mirror) or []


# -- what happens -----------------------------------------------------------------------------------

CHANGES = [([2, 3], [4, 5]), ([1, 2, 2, 6], [4]), ([1, 2, 6, 7], [4, 8])]
SOME = ("drop orders", "truncate orders", "restore the pointer", "restore all", "swap", "drop own table 0")


def tried(delivery: Delivery) -> SinkError | None:
    """Deliver what there is; what is against it."""
    try:
        while delivery.deliver():
            pass
    except SinkError as error:
        delivery.failed()
        return error
    return None


def settle(mirror: Any, delivery: Delivery) -> str:
    """Deliver as a worker does, and do what the hint says when that does not help; answers the error."""
    answer, failures = "", 0
    while (error := tried(delivery)) is not None:
        failures += 1
        assert failures < 3 * TRIES, error
        if needs_attention(error) or failures == TRIES:
            assert "drop" in (error.hint or "").lower(), (error, error.hint)
            answer = error.error_class
            mirror.drop()
    return answer


@dataclass
class Systems:
    """Opens a new mirror of each system."""

    url: str
    number: int = 0

    def mirror(self, name: str, folder: Path) -> Any:
        self.number += 1
        if name == "postgresql":
            return Postgresql(self.url, f"damaged_{self.number}")
        if name in ("mariadb", "mariadb by key"):
            if not is_installed():
                pytest.skip("MariaDB is not installed")
            mirror = Mariadb(MariadbBench())
            if name == "mariadb by key":
                mirror.key = ("id",)
                mirror.dialect = {
                    **mirror.dialect,
                    "duplicate": None,
                    "index": ["ALTER TABLE {db}.{table} DROP PRIMARY KEY"],
                }
            return mirror
        if name == "starrocks":
            bench = StarrocksBench()
            register_sink("starrocks-stand-in", lambda _name, _options: bench.open())
            return Starrocks(bench)
        return Toy(str(folder / "mirror.db"))


@pytest.fixture(scope="module")
def systems() -> Iterator[Systems]:
    return Systems(fresh_database())  # type: ignore[return-value]


def schedule() -> list[Any]:
    every = []
    for system in ("postgresql", "mariadb", "mariadb by key", "starrocks", "toy"):
        for damage in DAMAGES:
            for moment in ("living", "between", "idle"):
                is_short = damage in SOME and moment == "living" and system in ("postgresql", "mariadb")
                marks = () if is_short else (pytest.mark.slow,)
                every.append(pytest.param(system, damage, moment, marks=marks))
    return every


@pytest.mark.parametrize(("system", "damage", "moment"), schedule())
def test_a_damaged_sink_shows_the_lake_again(
    world: World,
    systems: Systems,
    tmp_path: Path,
    system: str,
    damage: str,
    moment: str,
) -> None:
    """`living`: the next delivery of the same process. `between`: a new process has news. `idle`: it has
    none."""
    mirror = systems.mirror(system, tmp_path)
    statements = statements_of(mirror, damage)
    if not statements:
        pytest.skip("the system cannot be damaged so")

    def publish(number: int) -> None:
        bags = [bag(*ids) for ids in CHANGES[number]]
        if getattr(mirror, "key", ()):
            bags = [Counter(set(rows)) for rows in bags]
        world.publish(bags)

    def opened() -> Delivery:
        return world.mirrored(mirror.format, mirror.options, SCHEMA, getattr(mirror, "key", ()))

    delivery = opened()
    publish(0)
    assert not settle(mirror, delivery)
    for table in ("orders", "lines", mirror.own[0]):
        copy = mirror.dialect["copy"].replace("{table}", table).replace("{to}", f"saved_{table}")
        mirror.run(copy.replace("{db}", mirror.schema))
    publish(1)
    assert not settle(mirror, delivery)
    for statement in statements:
        mirror.run(statement.replace("{db}", mirror.schema))
    if moment != "living":
        delivery.close()
        world.take_over()
        delivery = opened()
    if moment != "idle":
        publish(2)
    answer = settle(mirror, delivery)
    shown = delivery._published
    assert shown is not None
    for table, name in ((ORDERS, "orders"), (LINES, "lines")):
        rows = mirror.rows(name)
        assert rows == world.tables[table].content[shown.versions[table]], (name, answer)
    assert shown.versions == {name: table.main for name, table in world.tables.items()}
    delivery.close()
    mirror.drop()
