"""What a role needs that captures tables which belong to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tautochrone.errors import DefinitionsOutdatedError, IngestError
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog

from .test_change_log import SLOT, capture_of, error_class, url_of


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"user": "taut_nobody"}, "CAPTURE_LOGIN_REFUSED"),
        ({"dbname": "taut_nowhere"}, "CAPTURE_DATABASE_MISSING"),
    ],
)
def test_a_refused_connection_is_not_an_absent_server(
    shop: psycopg.Connection, wrong: dict[str, str], expected: str
) -> None:
    reader = PostgreSQLChangeLog(capture_of(shop, make_conninfo(url_of(shop), **wrong)))
    with pytest.raises(IngestError) as raised:
        reader.begin("reader")
    assert (error_class(raised), raised.value.retryable) == (expected, False)


def test_rights(shop: psycopg.Connection) -> None:
    shop.execute("DROP ROLE IF EXISTS reader")
    shop.execute("CREATE ROLE reader LOGIN REPLICATION")
    capture = capture_of(shop, url_of(shop).replace("user=postgres", "user=reader"))
    reader = PostgreSQLChangeLog(capture)
    with pytest.raises(IngestError) as raised:
        reader.begin("reader")
    assert error_class(raised) == "CAPTURE_RIGHTS_MISSING"
    owner = PostgreSQLChangeLog(capture_of(shop))
    owner.begin("reader")
    owner.close()
    # With a publication that its owner made, REPLICATION and SELECT are enough.
    shop.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    position = reader.begin("reader")
    shop.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    chunk = position.bulk.next_chunks(1)[0]
    reader.read_chunk(*chunk)
    batch = reader.read(position, 100)
    assert batch.rows.num_rows == 1
    reader.acknowledge(batch.position)
    reader.close()
    shop.execute("DROP OWNED BY reader")


def test_a_table_that_the_publication_lacks_is_named_with_the_statement(shop: psycopg.Connection) -> None:
    """Its owner made the publication before there was this table, in a schema that the role may not use."""
    shop.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE accounts WITH (publish_via_partition_root = true)")
    shop.execute("CREATE SCHEMA sales")
    shop.execute("CREATE TABLE sales.orders (id int PRIMARY KEY)")
    shop.execute("DROP ROLE IF EXISTS guest")
    shop.execute("CREATE ROLE guest LOGIN REPLICATION")
    shop.execute("GRANT SELECT ON accounts, sales.orders TO guest")
    as_guest = url_of(shop).replace("user=postgres", "user=guest")
    guest = PostgreSQLChangeLog(capture_of(shop, as_guest, "public.accounts", "sales.orders"))

    def missing(step: Callable[[], object]) -> str:
        with pytest.raises(IngestError) as raised:
            step()
        assert error_class(raised) == "CAPTURE_RIGHTS_MISSING"
        return str(raised.value.hint).partition(": ")[2]

    statement = missing(guest.check_prerequisites)
    assert statement == 'GRANT USAGE ON SCHEMA "sales" TO "guest"'
    shop.execute(statement)
    statement = missing(guest.check_prerequisites)
    assert statement == f'ALTER PUBLICATION "{SLOT}" ADD TABLE ONLY "sales"."orders"'
    assert missing(lambda: guest.begin("reader")) == statement
    # Who owns publication and tables needs to do nothing.
    owner = PostgreSQLChangeLog(capture_of(shop, None, "public.accounts", "sales.orders"))
    assert "extended by the next run" in owner.check_prerequisites()
    owner.close()
    shop.execute(statement)
    assert f"publication {SLOT};" in guest.check_prerequisites()
    guest.begin("reader")
    guest.close()
    shop.execute("DROP OWNED BY guest")


def test_new_tables_without_rights_leave_the_flow_alone(shop: psycopg.Connection) -> None:
    shop.execute("DROP ROLE IF EXISTS guest")
    shop.execute("CREATE ROLE guest LOGIN REPLICATION")
    shop.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    PostgreSQLChangeLog(capture_of(shop)).begin("other")
    as_guest = capture_of(shop, url_of(shop).replace("user=postgres", "user=guest"))
    guest = PostgreSQLChangeLog(replace(as_guest, patterns=["public.*"]))
    position = guest.begin("reader")
    shop.execute("CREATE TABLE cards (number int PRIMARY KEY)")
    for statement in ("GRANT SELECT ON cards TO guest", f"ALTER PUBLICATION {SLOT} ADD TABLE cards"):
        shop.execute("UPDATE accounts SET balance = balance + 1")
        position = guest.read(position, 100).position
        shop.execute(statement)
    shop.execute("UPDATE accounts SET balance = balance + 1")
    with pytest.raises(DefinitionsOutdatedError, match=r"public\.cards came since definitions were loaded"):
        guest.read(position, 100)
    assert guest.read(position, 100).rows.num_rows == 3, "it goes on if definitions do not load"
    guest.close()
    shop.execute("DROP OWNED BY guest")
