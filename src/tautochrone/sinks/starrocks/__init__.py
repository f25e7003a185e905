"""The format `starrocks`: mirrors tables in a StarRocks database, one transaction per checkpoint."""

from __future__ import annotations

from tautochrone.sinks.starrocks.options import open_starrocks_sink

__all__ = ["open_starrocks_sink"]
