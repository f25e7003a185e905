"""Paimon tables that views read by their path: their snapshots, columns and deletion vectors."""

from __future__ import annotations

from tautochrone.sources.paimon.table import PaimonTable

__all__ = ["PaimonTable"]
