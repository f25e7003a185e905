"""Where a flow stands in its source, as the table that it writes remembers it.

A position is a value with a type. It is stored in the commit that brings the rows, so rows and position
become durable together; who starts the flow again goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["BulkProgress", "LogPosition", "SourcePosition", "SparkPosition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPosition:
    """A position that Spark's Structured Streaming keeps, for all sources of one query.

    Attributes:
        query_id: the streaming query's id.
        offsets: text of Spark's `offsets/<batch>` file.
        commit: text of Spark's `commits/<batch>` file.
        source_files: side files that hold what the sources keep under `sources/`, oldest first.
        stateful: whether the query keeps state.
        topics: by number of the source (as text) the ids that Kafka gave to the topics in the offsets, as
            far as they are known.
    """

    query_id: str
    batch_id: int
    offsets: str
    commit: str
    source_files: tuple[str, ...] = ()
    stateful: bool = False
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Positions with another origin cannot be compared with this one."""
        return self.query_id

    def brief(self) -> SparkPosition:
        """The same position without its texts, which may be long."""
        return SparkPosition(query_id=self.query_id, batch_id=self.batch_id, offsets="", commit="")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """How far the first copy of a database's tables is.

    Attributes:
        pending: relation → chunks that are not copied yet. A relation without chunks left is not in it.
        pass_at: relation → the point of the log that it must have passed before its rows are a state that
            the database had: the latest of the points that were read after its chunks.
        waiting: relations whose rows are not such a state yet.
    """

    pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pass_at: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A position in the change log of a database, always at the end of a transaction.

    Attributes:
        log: which log it is. Numbers of another log mean nothing here, even of one that was made anew
            under the same name.
        point: everything up to this point is in the table. Points of one log are ordered (an LSN, a
            binlog file's number and offset put into one integer).
        marker: what else the source needs to read on (a GTID set, a file's name); only the source reads it.
        bulk: how far the first copy is.
    """

    log: str
    point: int
    marker: Mapping[str, str] = field(default_factory=dict)
    bulk: BulkProgress = field(default_factory=BulkProgress)

    @property
    def origin(self) -> str:
        """Positions with another origin cannot be compared with this one."""
        return self.log

    def brief(self) -> LogPosition:
        """The position itself: it has no long texts."""
        return self


SourcePosition: TypeAlias = SparkPosition | LogPosition
