"""Tables whose metadata is from the future: the clock went back since, or another host's is ahead.

Iceberg refuses each commit to a table of which the metadata is more than a minute newer than the clock says,
until the clock has caught up. Times mean nothing to Tautochrone's own reads: versions are named by number. So
such metadata is first rewritten, as a commit of its own, with the times of its logs no later than now. The
snapshots keep their times.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tautochrone.iceberg.java.api import Iceberg

__all__ = ["SEAL_KEY", "is_of_the_future", "now_ms", "of_now", "staged_at_ms"]

SEAL_KEY = "tautochrone.orphans-before"
"""A property of a table: see `maintenance.orphans`."""

_TOLERANCE_MS = 30_000
"""Less than the minute that Iceberg allows."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def staged_at_ms(table: Any) -> int:
    """When files are staged for a Java table, from now on. They come after its seal, whatever the clock said
    when it was sealed."""
    return max(now_ms(), int(table.properties().getOrDefault(SEAL_KEY, "0")))


def is_of_the_future(metadata: Any) -> bool:
    """Whether Iceberg would refuse commits to a table with this Java TableMetadata."""
    latest = int(metadata.lastUpdatedMillis())
    if latest <= (now := now_ms()):
        # The entries of its logs are not more than a minute newer.
        return False
    log = metadata.snapshotLog()
    if log.size():
        latest = max(latest, int(log.get(log.size() - 1).timestampMillis()))
    return latest > now + _TOLERANCE_MS


def of_now(iceberg: Iceberg, metadata: Any) -> Any:
    """The same Java TableMetadata, made now."""
    parser = iceberg.api.TableMetadataParser
    fields, now = json.loads(str(parser.toJson(metadata))), now_ms()
    for entry in fields.get("snapshot-log") or ():
        entry["timestamp-ms"] = min(entry["timestamp-ms"], now)
    # Iceberg deletes files that the log loses, so an entry with another time would name a deleted file.
    fields["metadata-log"] = [
        entry for entry in fields.get("metadata-log") or () if entry["timestamp-ms"] <= now
    ]
    fields["last-updated-ms"] = now
    earlier = parser.fromJson(metadata.metadataFileLocation(), json.dumps(fields))
    # Without a change the builder would not note the metadata file of before.
    return iceberg.api.TableMetadata.buildFrom(earlier).setProperties(metadata.properties()).build()
