"""Adapters of sinks, by format. One folder each; the rest of the project knows only `model.sink`."""

from __future__ import annotations

from tautochrone.sinks.adapters import (
    can_observe,
    check_mirrored_table,
    check_sink,
    columns_of_key,
    compare_mirrored_tables,
    examine_sink,
    has_adapter,
    known_formats,
    observe_sink,
    open_sink,
    register_sink,
    uses_keys,
)

__all__ = [
    "can_observe",
    "check_mirrored_table",
    "check_sink",
    "columns_of_key",
    "compare_mirrored_tables",
    "examine_sink",
    "has_adapter",
    "known_formats",
    "observe_sink",
    "open_sink",
    "register_sink",
    "uses_keys",
]
