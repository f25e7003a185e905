"""The factory of the format `clickhouse`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.engines import Engine, open_engine
from tautochrone.sinks.clickhouse.options import server_options
from tautochrone.sinks.clickhouse.sharded import ShardedClickHouseSink
from tautochrone.sinks.clickhouse.sink import ClickHouseSink

__all__ = ["open_clickhouse_sink", "require_version"]

_OLDEST = (23, 1)
"""The first version with views that take parameters."""


def open_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server or folder, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_NOT_REACHABLE`, or `SINK_SERVER_TOO_OLD`.
    """
    engines: list[Engine] = []
    servers: list[ClickHouseSink] = []
    parsed = server_options(name, options)
    try:
        for number, server in enumerate(parsed, 1):
            engine = open_engine(name, server)
            engines.append(engine)
            require_version(name, engine)
            servers.append(ClickHouseSink(name, engine, server, f"{number}/{len(parsed)}"))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return servers[0] if len(servers) == 1 else ShardedClickHouseSink(name, servers)


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
