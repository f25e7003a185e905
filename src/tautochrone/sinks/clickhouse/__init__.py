"""The format `clickhouse`: mirrors tables in a ClickHouse server, or in its engine inside this process."""

from __future__ import annotations

from tautochrone.sinks.clickhouse.sink import open_clickhouse_sink

__all__ = ["open_clickhouse_sink"]
