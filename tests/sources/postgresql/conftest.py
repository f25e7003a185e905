"""A database of its own for each test, on one server for all."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.support.postgresql import fresh_database


@pytest.fixture
def database() -> Iterator[psycopg.Connection]:
    """A connection in autocommit; at the end the database's slots are dropped, so that no log is kept."""
    url = fresh_database()
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
    # Another connection: a test may have restarted the server.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )


@pytest.fixture
def shop(database: psycopg.Connection) -> psycopg.Connection:
    database.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int)")
    database.execute('CREATE TABLE "Odd ""Name" (a text, b int, v jsonb, PRIMARY KEY (b, a))')
    database.execute("INSERT INTO accounts SELECT i, 100 FROM generate_series(1, 3) i")
    database.execute("""INSERT INTO "Odd ""Name" VALUES ('x', 1, '{"k": 1}'), ('y', 1, NULL)""")
    return database
