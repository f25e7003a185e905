"""Events longer than the session's max_allowed_packet: the log goes on, and its position is known."""

from __future__ import annotations

from contextlib import closing

from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.markers import FILE

from .conftest import Schema
from .test_change_log import events

_PACKET = 1024 * 1024


def test_a_position_behind_a_long_event_is_known(schema: Schema) -> None:
    schema.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a LONGTEXT)", "INSERT INTO t VALUES (1, REPEAT('x', 3000000))"
    )
    log = schema.change_log()
    ((before,),) = schema.rows("SELECT @@GLOBAL.max_allowed_packet")
    known = log.begin("reader")
    schema.run(f"SET GLOBAL max_allowed_packet = {_PACKET}")
    try:
        log.close()
        log = schema.change_log()
        begun = log.begin("reader")
        assert begun.marker == known.marker
        with closing(log._connect()) as connection:
            beyond = (begun.marker[FILE], 10**12)
            assert flavor_of(connection).transactions_before(connection, log._connect, *beyond) is None
        schema.run("INSERT INTO t VALUES (2, 'b')")
        # As after a restart: the log is recognised by the transactions before the position.
        log.close()
        log = schema.change_log()
        log.resume(begun)
        assert events(log.read(begun, 100).rows) == [("insert", "2", "b")]
    finally:
        schema.run(f"SET GLOBAL max_allowed_packet = {before}")
        log.close()
