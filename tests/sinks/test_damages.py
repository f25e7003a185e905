"""Each object of a sink is dropped, emptied, restored, renamed, swapped or altered by somebody else.

Afterwards the sink shows the lake at its pointer: by itself, or after somebody did what the hint of an error
says, which is to drop the database of the sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.runtime.delivery.test_delivery import LINES, ORDERS, World, bag, world
from tests.sinks.damaged_systems import ADDED, Mariadb, Postgresql, Starrocks, Toy
from tests.sinks.mariadb.benches import MariadbBench
from tests.sinks.starrocks.benches import StarrocksBench
from tests.support.mariadb import is_installed
from tests.support.postgresql import fresh_database

from tautochrone.errors import SinkError
from tautochrone.runtime.delivery.delivery import Delivery, needs_attention
from tautochrone.sinks import register_sink

__all__ = ["world"]

SCHEMA = spark.StructType(
    [spark.StructField("id", spark.LongType()), spark.StructField("word", spark.StringType())]
)
TRIES = 4
"""So often a worker would try in vain before the hint is followed."""


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
        for name in ("drop database", "rename database", "index", "type", *ADDED)
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
SOME = (
    "trigger behind",
    "drop orders",
    "truncate orders",
    "restore the pointer",
    "restore all",
    "swap",
    "drop own table 0",
)


def tried(delivery: Delivery) -> SinkError | None:
    """Deliver what there is; what is against it."""
    try:
        while delivery.deliver():
            pass
    except SinkError as error:
        delivery.reset_after_failure()
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


SYSTEMS = ("postgresql", "mariadb", "mariadb by key", "starrocks", "toy")
_STAND_IN = "SQLite stands in for it, and its tables have nothing of the kind"
_NO_HASHES = "its rows have no hashes"
_ONE_FILE = "the database is a file"
_OWN = {"postgresql": 1, "mariadb": 2, "mariadb by key": 2, "starrocks": 3, "toy": 3}
_INHERITING = ("rule", "child", "empty child", "deferred trigger")
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{
        (system, damage): _STAND_IN for system in ("starrocks", "toy") for damage in ("index", "type", *ADDED)
    },
    **{
        (system, f"{name} database"): _ONE_FILE
        for system in ("starrocks", "toy")
        for name in ("drop", "rename")
    },
    **{
        (system, damage): "MariaDB has nothing of the kind"
        for system in ("mariadb", "mariadb by key")
        for damage in ("rename database", *_INHERITING)
    },
    **{(system, "exchange for an empty table"): _STAND_IN for system in ("starrocks", "toy")},
    **{(system, "double rows"): "the key is unique" for system in ("starrocks", "mariadb by key")},
    ("toy", "drop the hashes"): _NO_HASHES,
    **{
        (system, f"{damage} own table {number}"): f"it has {_OWN[system]} tables of its own"
        for system in SYSTEMS
        for damage in OWN
        for number in range(_OWN[system], 3)
    },
    **{
        (system, f"drop a column of own table {number}"): "no column of it is dropped by name"
        for system, number in (("starrocks", 2), ("toy", 0), ("toy", 1), ("toy", 2))
    },
}
"""Which damages a system cannot have, and why. Every other one is done."""


def schedule() -> list[Any]:
    every = []
    for system in SYSTEMS:
        for damage in (damage for damage in DAMAGES if (system, damage) not in IMPOSSIBLE):
            for moment in ("living", "between", "idle"):
                is_short = damage in SOME and moment == "living" and system in ("postgresql", "mariadb")
                marks = () if is_short else (pytest.mark.slow,)
                every.append(pytest.param(system, damage, moment, marks=marks))
    return every


def test_only_what_is_impossible_is_left_out(systems: Systems, tmp_path: Path) -> None:
    for system in SYSTEMS:
        mirror = systems.mirror(system, tmp_path)
        undone = {damage for damage in DAMAGES if not statements_of(mirror, damage)}
        assert undone == {damage for of_system, damage in IMPOSSIBLE if of_system == system}, system


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
    assert statements, "the table of what is impossible lacks it"

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
