"""The format `delta-publication`: tables as Delta tables, over the lake's own data files."""

from __future__ import annotations

from tautochrone.sinks.delta.sink import open_delta_publication

__all__ = ["open_delta_publication"]
