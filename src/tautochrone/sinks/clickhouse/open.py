"""The factory of the format `clickhouse`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.engines import Engine, HttpEngine, open_engine
from tautochrone.sinks.clickhouse.ledger import Ledger
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, server_options
from tautochrone.sinks.clickhouse.server import Server
from tautochrone.sinks.clickhouse.sink import ClickHouseSink

__all__ = ["examine_clickhouse_sink", "open_clickhouse_sink", "require_version"]

_OLDEST = (23, 1)
"""The first version with views that take parameters."""


def open_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server or folder, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_NOT_REACHABLE`, `SINK_SERVER_TOO_OLD`, or
            `SINK_SERVERS_SAME`.
    """
    engines: list[Engine] = []
    servers: list[Server] = []
    identities: dict[str, ClickHouseOptions] = {}
    parsed = server_options(name, options)
    try:
        for server in parsed:
            engine = open_engine(name, server)
            engines.append(engine)
            require_version(name, engine)
            identity = Ledger(name, engine, server.database).identity
            if identity in identities:
                raise _same_database(name, identities[identity], server)
            identities[identity] = server
        for number, (engine, server) in enumerate(zip(engines, parsed, strict=True), 1):
            servers.append(Server(name, engine, server, f"{number}/{len(parsed)}"))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return ClickHouseSink(name, servers)


def examine_clickhouse_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in to each server, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_clickhouse_sink`, and `SINK_LOGIN_REFUSED`.
    """
    answers = []
    for server in server_options(name, options):
        if server.folder:
            answers.append(f"the embedded engine in {server.folder}")
            continue
        engine = HttpEngine(name, server)
        try:
            require_version(name, engine)
            ((version, user),) = engine.rows("SELECT version(), currentUser()")
        finally:
            engine.close()
        answers.append(f"ClickHouse {version} at {server.host}:{server.port} lets {user} in")
    return ", ".join(answers)


def _same_database(name: str, first: ClickHouseOptions, second: ClickHouseOptions) -> SinkError:
    return SinkError(
        "SINK_SERVERS_SAME",
        f"Sink {name}: {first.address} and {second.address} are the same database: one server under two "
        "names, or replicas of one",
        hint="Each url must be a server with a part of the rows. Name one replica of each shard.",
        parameters={"sink": name},
        sqlstate="22023",
    )


def require_version(name: str, engine: Engine) -> None:
    """Refuse a server that lacks what the sink needs, before anything is created in it.

    Raises:
        SinkError: `SINK_SERVER_TOO_OLD`.
    """
    ((version,),) = engine.rows("SELECT version()")
    major, minor = map(int, str(version).split(".")[:2])
    if (major, minor) < _OLDEST:
        raise SinkError(
            "SINK_SERVER_TOO_OLD",
            f"Sink {name}: ClickHouse {version} has no views with parameters",
            hint=f"Use ClickHouse {_OLDEST[0]}.{_OLDEST[1]} or newer.",
            sqlstate="0A000",
        )
