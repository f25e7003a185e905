"""What becomes of source data that a stream does not take in by itself: recreated topics, skipped files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MAX_REPORTED_PATHS", "RecreatedTopic", "SkipReason", "SkippedFiles"]

MAX_REPORTED_PATHS = 20
"""At most this many paths are named in an event and in the store; the count is of all files."""


class RecreatedTopic(StrEnum):
    """What a flow does when a Kafka topic was deleted and created again."""

    FAIL = "fail"
    EARLIEST = "earliest"


class SkipReason(StrEnum):
    """Why a file's content is not in the table, nor will be."""

    REPLACED = "REPLACED_IN_PLACE"
    """Its path was taken in before with another modification time."""
    TOO_OLD = "OLDER_THAN_MAX_FILE_AGE"
    """The reader's own option `maxFileAge` leaves it out."""
    SAME_NAME = "SAME_FILE_NAME"
    """The reader's own option `fileNameOnly` takes it for another file of that name."""
    MISSING = "MISSING_AT_READ"
    """It went away between plan and read, and `ignoreMissingFiles` is set."""


@dataclass(frozen=True, slots=True)
class SkippedFiles:
    """Files of one flow that were skipped for one reason. `paths` are some of the `count`, URL-encoded."""

    flow: str
    reason: SkipReason
    count: int
    paths: tuple[str, ...]
