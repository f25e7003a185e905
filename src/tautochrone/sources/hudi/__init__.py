"""Hudi tables that views read by their path: their timeline, columns and base files."""

from __future__ import annotations

from tautochrone.sources.hudi.table import HudiTable

__all__ = ["HudiTable"]
