"""The format `paimon-publication`: tables as Paimon tables, over the lake's own data files."""

from __future__ import annotations

from tautochrone.sinks.paimon.sink import open_paimon_publication

__all__ = ["open_paimon_publication"]
