"""Read points: names for the versions of all tables that one reader sees.

A read point is `strong` (the newest published checkpoint), `weak` (each table at its newest version),
`checkpoint-42`, or a name that this process registered with a `Lookup` of its own. The read-only REST
catalog serves each read point as a warehouse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from tautochrone.model.names import TableName, Version

__all__ = ["NEWEST", "FullSnapshotRead", "Lookup", "ReadPointServer", "Streamed", "job_read_point"]

NEWEST = "newest"
"""What a `Lookup` answers for a table that it does not care about: its newest version."""


@dataclass(frozen=True, slots=True)
class FullSnapshotRead:
    """A version of which a stream takes all rows, and not only those that it added."""

    version: Version
    files: int
    """Data files of the table at the version."""
    manifests: str | None = None
    """Location of a list of them that remembers no deleted files; None: the version's own does."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A table as a stream is shown it: the versions that it takes whole as appends of all their files.

    Iceberg's source asks a version what it added even where it is told to take everything.
    """

    version: Version | str
    whole: tuple[FullSnapshotRead, ...]
    folder: str
    """Where the metadata files go that are written for this stream alone."""


Lookup = Callable[[TableName], Version | str | Streamed | None]
"""From a table to its version at the read point; None: it has none there."""


class ReadPointServer(Protocol):
    """Serves read points as a read-only Iceberg REST catalog."""

    @property
    def uri(self) -> str: ...

    def show(self, read_point: str, lookup: Lookup) -> None:
        """Make an internal read point readable; asked anew at each table load."""


def job_read_point(purpose: str, job: str) -> str:
    """The read point that a job registers for one of its purposes.

    Iceberg's REST client puts a read point into URLs as it is, so a name with other characters than
    letters, digits, `-` and `_` is replaced by its digest.

    >>> job_read_point("refresh", "orders")
    'refresh-orders'
    """
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", job)
    return f"{purpose}-{job}" if plain else f"{purpose}.{sha256(job.encode()).hexdigest()[:32]}"
