"""Reads table versions from the offsets of a stream over Iceberg tables. No I/O."""

from __future__ import annotations

import re

from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import Version

__all__ = ["versions_in_offsets", "waits_for_first_version"]

_SNAPSHOT_ID = re.compile(r'"snapshot_id"\s*:\s*(-?\d+)')


def versions_in_offsets(offsets: str) -> frozenset[Version]:
    """All versions named in offsets of Iceberg's streaming source, of any table.

    >>> sorted(versions_in_offsets('{"version":1,"snapshot_id":42,"position":0,"scan_all_files":false}'))
    ['42']
    """
    return frozenset(Version(snapshot) for snapshot in _SNAPSHOT_ID.findall(offsets))


def waits_for_first_version(offsets: str) -> bool:
    """Whether a stream has read a table that had no version yet.

    >>> waits_for_first_version('{"version":1,"snapshot_id":-1,"position":-1,"scan_all_files":false}')
    True
    """
    return NO_VERSION in versions_in_offsets(offsets)
