"""The factory of the format `clickhouse`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.engines import Engine, open_engine
from tautochrone.sinks.clickhouse.options import clickhouse_options
from tautochrone.sinks.clickhouse.sink import ClickHouseSink

__all__ = ["open_clickhouse_sink", "require_version"]

_OLDEST = (23, 1)
"""The first version with views that take parameters."""


def open_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server or folder, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_NOT_REACHABLE`, or `SINK_SERVER_TOO_OLD`.
    """
    parsed = clickhouse_options(name, options)
    engine = open_engine(name, parsed)
    try:
        require_version(name, engine)
        return ClickHouseSink(name, engine, parsed)
    except BaseException:
        engine.close()
        raise


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
