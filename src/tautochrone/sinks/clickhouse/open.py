"""The factory of the format `clickhouse`."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.engines import open_engine
from tautochrone.sinks.clickhouse.options import clickhouse_options
from tautochrone.sinks.clickhouse.sink import ClickHouseSink

__all__ = ["open_clickhouse_sink"]


def open_clickhouse_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server or folder, create its database.

    Raises:
        SinkError: what is wrong with the options, or `SINK_NOT_REACHABLE`.
    """
    parsed = clickhouse_options(name, options)
    engine = open_engine(name, parsed)
    try:
        return ClickHouseSink(name, engine, parsed)
    except BaseException:
        engine.close()
        raise
