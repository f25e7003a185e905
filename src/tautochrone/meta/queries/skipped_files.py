"""Files that the sources of streaming tables skipped, as their jobs tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tautochrone.meta.database import tables as t
from tautochrone.model.sources import MAX_REPORTED_PATHS, SkippedFiles, SkipReason

__all__ = ["merged_skipped_files", "skipped_of"]

_D = t.datasets.c


def skipped_of(found: Mapping[str, Any] | None) -> tuple[SkippedFiles, ...]:
    """What is stored of a dataset."""
    return tuple(
        SkippedFiles(flow, SkipReason(reason), said["count"], tuple(said["paths"]))
        for flow, reasons in sorted((found or {}).items())
        for reason, said in sorted(reasons.items())
    )


def merged_skipped_files(known: dict[str, Any], told: dict[str, Any] | None) -> dict[str, Any]:
    if told is None:
        return known
    new = [path for path in told["paths"] if path not in known["paths"]]
    unnamed = max(0, told["count"] - len(told["paths"])) if new else 0
    return {
        "count": known["count"] + len(new) + unnamed,
        "paths": [*new, *known["paths"]][:MAX_REPORTED_PATHS],
    }
