"""Databases and files that are others than the captured ones and have their names, numbers and slots."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import psycopg
import pytest
from _pytest.mark import ParameterSet
from tests.support.postgresql_servers import PostgreSQLServer

from tautochrone.sources.postgresql.server import slot_of

from .followed import Followed

_TABLE = "CREATE TABLE a (id int PRIMARY KEY, v text)"


class Shop:
    """A server of its own, with a captured database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = PostgreSQLServer.create(folder / "data")
        self.number = 0

    def begin(self) -> None:
        """A new database and a lake that captures it."""
        self.number += 1
        self.name = f"shop{self.number}"
        self.execute(f"CREATE DATABASE {self.name}", database="postgres")
        self.fill()
        url = self.server.url.replace("postgres ", f"{self.name} ")
        self.lake = Followed(url, f"shop{self.number}", ["public.a"])

    def fill(self) -> None:
        self.execute(f"{_TABLE}; INSERT INTO a VALUES (1, 'x'), (2, 'y')")

    def execute(self, statement: str, database: str = "") -> None:
        url = self.server.url.replace("postgres ", f"{database or self.name} ")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def insert(self, *numbers: int) -> None:
        """Each by a transaction of its own."""
        with psycopg.connect(self.lake.url, autocommit=True) as connection:
            for number in numbers:
                connection.execute("INSERT INTO a VALUES (%s, 'i')", [number])

    def back_up(self) -> None:
        """The files, as a snapshot of the disk has them."""
        self.server.stop(crash=True)
        shutil.rmtree(self.folder / "backup", ignore_errors=True)
        shutil.copytree(self.server.data, self.folder / "backup")
        self.server.start()

    def back_up_and_insert(self) -> None:
        self.back_up()
        self.insert(3, 4)

    def restore(self) -> None:
        self.server.stop(crash=True)
        shutil.rmtree(self.server.data)
        shutil.copytree(self.folder / "backup", self.server.data)
        self.server._own(self.server.data)
        self.server.start()

    def run(self, *, anew: bool = False) -> None:
        """Again if the connection was cut."""
        self.lake.run(anew=anew)
        if self.lake.problem is not None and self.lake.problem.retryable:
            self.lake.run(anew=True)

    def drop_slots(self) -> None:
        """The server has few."""
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()",
        )

    def require_equal(self) -> str:
        """The class of the error, if there was one, whose hint was followed; then the lake has what the
        source has."""
        problem = self.lake.problem
        if problem is not None:
            assert "--full-refresh" in str(problem.hint)
            if "capture(…, slot=…)" in str(problem.hint):
                self.lake.slot += "_own"
            self.lake.full_refresh()
            assert self.lake.problem is None
        with psycopg.connect(self.lake.url, autocommit=True) as connection:
            assert not self.lake.difference(connection)
        return "" if problem is None else problem.error_class


@pytest.fixture(scope="module")
def server() -> Iterator[Shop]:
    folder = Path(tempfile.mkdtemp(prefix="pgsame"))
    folder.chmod(0o755)
    shop = Shop(folder)
    yield shop
    shop.server.remove()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shop(server: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    Followed.without_datasets(monkeypatch)
    server.begin()
    yield server
    server.lake.close()
    server.drop_slots()


def drop_and_create(shop: Shop) -> None:
    shop.execute(f"DROP DATABASE {shop.name} WITH (FORCE)", database="postgres")
    shop.execute(f"CREATE DATABASE {shop.name}", database="postgres")
    shop.fill()


def drop_and_create_with_its_number(shop: Shop) -> None:
    with psycopg.connect(shop.lake.url) as connection:
        (oid,) = connection.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone() or (0,)
    shop.execute(f"DROP DATABASE {shop.name} WITH (FORCE)", database="postgres")
    shop.execute(f"CREATE DATABASE {shop.name} OID {oid}", database="postgres")
    shop.fill()


def and_its_slot(shop: Shop) -> None:
    drop_and_create_with_its_number(shop)
    assert shop.lake.position is not None
    shop.execute(f"SELECT pg_create_logical_replication_slot('{slot_of(shop.lake.position)}', 'pgoutput')")
    shop.insert(60)


def database_in_its_place(shop: Shop) -> None:
    shop.lake.close()
    away = f"{shop.name}_away"
    shop.execute(f"ALTER DATABASE {shop.name} RENAME TO {away}", database="postgres")
    shop.execute(f"CREATE DATABASE {shop.name}", database="postgres")
    shop.fill()


def reset_log(shop: Shop) -> None:
    shop.server.stop()
    shop.server._execute("pg_resetwal", "-D", str(shop.server.data))
    shop.server.start()


def restored(shop: Shop) -> None:
    shop.back_up()
    shop.insert(70)
    shop.run()
    shop.restore()


def restored_and_written(shop: Shop) -> None:
    restored(shop)
    shop.insert(*range(71, 90))


DAMAGES: dict[Callable[[Shop], None], str] = {
    drop_and_create: "SOURCE_LOG_LOST",
    drop_and_create_with_its_number: "SOURCE_LOG_LOST",
    and_its_slot: "SOURCE_LOG_LOST",
    database_in_its_place: "CAPTURE_SLOT_NOT_USABLE",
    reset_log: "SOURCE_LOG_LOST",
    restored: "SOURCE_LOG_LOST",
    restored_and_written: "SOURCE_LOG_LOST",
}


def _cases() -> Iterator[ParameterSet]:
    for number, (damage, anew) in enumerate(product(DAMAGES, (False, True))):
        yield pytest.param(damage, anew, marks=() if number % 6 == 3 else pytest.mark.slow)


@pytest.mark.parametrize(("damage", "anew"), list(_cases()))
def test_damage(shop: Shop, damage: Callable[[Shop], None], anew: bool) -> None:
    shop.lake.run()
    shop.insert(50)
    shop.lake.run()
    damage(shop)
    shop.insert(99)
    shop.run(anew=anew)
    assert shop.require_equal() == DAMAGES[damage]


@pytest.mark.parametrize("written", [0, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (10, 60))])
def test_files_restored_during_the_copy(shop: Shop, written: int) -> None:
    """The copied rows of the server of before are in the lake, and none of its transactions."""
    shop.lake.copy_first_chunk(shop.back_up_and_insert)
    shop.restore()
    shop.insert(*range(10, 10 + written))
    shop.run(anew=True)
    shop.insert(*range(200, 260))
    shop.run()
    assert shop.require_equal() == "SOURCE_LOG_LOST"
