"""Delta tables that views read by their path: their log, columns and deletion vectors."""

from __future__ import annotations

from tautochrone.sources.delta.table import DeltaTable

__all__ = ["DeltaTable"]
