"""Versions of snapshots: values of a few Python types that order the snapshots of a table.

Each has a type by Spark's name and a text, so that a commit can hold it and SQL can read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tautochrone.errors import IngestError
from tautochrone.model.source_position import SnapshotPosition

__all__ = ["SNAPSHOT_VERSION_TYPES", "position_of_version", "require_later", "version_at"]

_LONG = range(-(2**63), 2**63)
_DECIMAL = "decimal(38,18)"

_READERS: dict[str, Callable[[str], Any]] = {
    "bigint": int,
    "string": str,
    "double": float,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    _DECIMAL: Decimal,
}
SNAPSHOT_VERSION_TYPES = tuple(_READERS)
"""The types that a version may have, by Spark's names."""


def position_of_version(version: Any, flow: str) -> SnapshotPosition:
    """The position of a table whose newest snapshot has this version.

    >>> position_of_version(20260105, "customers")
    SnapshotPosition(version_type='bigint', version='20260105')

    Args:
        version: what the function returned.
        flow: for the error.

    Raises:
        IngestError: `AUTO_CDC_SNAPSHOT_VERSION_TYPE`.
    """
    number = _as_int(version)
    if number is not None and number in _LONG:
        return SnapshotPosition(version_type="bigint", version=str(number))
    match version:
        case str():
            return SnapshotPosition(version_type="string", version=str(version))
        case datetime():
            return SnapshotPosition(version_type="timestamp", version=version.isoformat())
        case date():
            return SnapshotPosition(version_type="date", version=version.isoformat())
        case Decimal() if version.is_finite() and _fits(version):
            return SnapshotPosition(version_type=_DECIMAL, version=str(version))
        case float() if math.isfinite(version):
            return SnapshotPosition(version_type="double", version=repr(float(version)))
    raise IngestError(
        "AUTO_CDC_SNAPSHOT_VERSION_TYPE",
        f"The snapshot function of flow {flow} returned the version {version!r}, a {type(version).__name__}",
        sqlstate="42804",
        hint="return a whole number of 64 bits, a text, a date, a datetime, a Decimal of at most 20 digits "
        "before and 18 behind the point, or a finite float",
    )


def version_at(position: SnapshotPosition | None) -> Any:
    """The version of a position as the function gets it; None if there is none."""
    return None if position is None else _READERS[position.version_type](position.version)


def require_later(position: SnapshotPosition, newest: SnapshotPosition | None, flow: str) -> None:
    """Refuse a snapshot that does not follow the newest one of the table.

    Raises:
        IngestError: `AUTO_CDC_SNAPSHOT_VERSION_TYPE`, `AUTO_CDC_SNAPSHOT_VERSION_ORDER`.
    """
    if newest is None:
        return
    new, old = version_at(position), version_at(newest)
    if position.version_type != newest.version_type or _has_zone(new) != _has_zone(old):
        raise IngestError(
            "AUTO_CDC_SNAPSHOT_VERSION_TYPE",
            f"The snapshot function of flow {flow} returned the version {_shown(position)}, and the one "
            f"before was {_shown(newest)}",
            sqlstate="42804",
            hint="return versions of one type, times all with or all without a time zone; to change the "
            "type, start over with --full-refresh of the table of the flow's events and of its target",
        )
    if new > old:
        return
    how = "again" if new == old else f"after {_shown(newest)}"
    raise IngestError(
        "AUTO_CDC_SNAPSHOT_VERSION_ORDER",
        f"The snapshot function of flow {flow} returned the version {_shown(position)} {how}",
        sqlstate="22000",
        hint="return the snapshot that follows the version which the function is called with, or None if "
        "there is none",
    )


def _as_int(version: Any) -> int | None:
    """A whole number, also one of NumPy; a bool is none."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        return None
    return int(version.__index__())


def _fits(version: Decimal) -> bool:
    exponent = version.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -18 and version.adjusted() < 20


def _has_zone(version: Any) -> bool:
    return isinstance(version, datetime) and version.tzinfo is not None


def _shown(position: SnapshotPosition) -> str:
    return f"{position.version} ({position.version_type})"
