"""The format `hudi-publication`: tables as Hudi tables, over the lake's own data files."""

from __future__ import annotations

from tautochrone.sinks.hudi.sink import open_hudi_publication

__all__ = ["open_hudi_publication"]
