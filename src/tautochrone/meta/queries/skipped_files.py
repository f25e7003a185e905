"""Files that the sources of streaming tables skipped, as their jobs tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tautochrone.meta.database import tables as t
from tautochrone.model.source import MAX_REPORTED_PATHS, SkippedFiles, SkipReason

__all__ = ["merged_skipped_files", "skipped_files_of"]

_D = t.datasets.c


def skipped_files_of(stored: Mapping[str, Any] | None) -> tuple[SkippedFiles, ...]:
    """What is stored of a dataset."""
    return tuple(
        SkippedFiles(flow, SkipReason(reason), files["count"], tuple(files["paths"]))
        for flow, reasons in sorted((stored or {}).items())
        for reason, files in sorted(reasons.items())
    )


def merged_skipped_files(known: dict[str, Any], reported: dict[str, Any] | None) -> dict[str, Any]:
    if reported is None:
        return known
    new = [path for path in reported["paths"] if path not in known["paths"]]
    unnamed = max(0, reported["count"] - len(reported["paths"])) if new else 0
    return {
        "count": known["count"] + len(new) + unnamed,
        "paths": [*new, *known["paths"]][:MAX_REPORTED_PATHS],
    }
