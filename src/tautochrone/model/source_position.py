"""Where a flow stands in its source, as the table that it writes remembers it.

A position is a value with a type. It is stored in the commit that brings the rows, so rows and position
become durable together; who starts the flow again goes on from there.

Versions of snapshots are values of a few Python types that order the snapshots of a table. Each has a type by
Spark's name and a text, so that a commit can hold it and SQL can read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, TypeAlias

from tautochrone.errors import IngestError

__all__ = [
    "SNAPSHOT_VERSION_TYPES",
    "BulkProgress",
    "LogPosition",
    "SnapshotPosition",
    "SourcePosition",
    "SparkPosition",
    "is_wider_number",
    "position_of_version",
    "require_later",
    "version_at",
]


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
        sources: by number of the source (as text) a hash of what it reads.
    """

    query_id: str
    batch_id: int
    offsets: str
    commit: str
    source_files: tuple[str, ...] = ()
    stateful: bool = False
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Positions with another origin cannot be compared with this one."""
        return self.query_id

    def brief(self) -> SparkPosition:
        """The same position without its texts, which may be long."""
        return SparkPosition(query_id=self.query_id, batch_id=self.batch_id, offsets="", commit="")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """How far the bulk of a database's tables is, while the log is read beside it.

    Attributes:
        pending: relation → chunks that are not copied yet.
        pass_at: relation → the point that the log must have passed before the copied rows together with the
            log are a state that the database had: the latest of the points that were read after its chunks.
            A relation whose log has passed it is no longer in here.
        done: relation → number of its chunks that are copied; empty when the bulk of all is complete.
        partial: those that are copied again in part, beside the rows that the log has of them.
        in_files: relation → since when (epoch ms) rows of it may be in data files of its table: those of
            its first copy, and changes (`model.log_table`); until the relation is copied again.
    """

    pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pass_at: Mapping[str, int] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    in_files: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> frozenset[str]:
        """Relations whose rows are no state that the database had, yet. That is no error."""
        return frozenset({*self.pending, *self.pass_at})

    @property
    def chunks_left(self) -> int:
        return sum(map(len, self.pending.values()))

    @property
    def chunks_done(self) -> int:
        """Of the relations whose bulk runs, and of those that it completed since it began."""
        return sum(self.done.values())

    def next_chunks(self, limit: int) -> tuple[tuple[str, str], ...]:
        """So many of the relations and chunks that are to be copied next.

        >>> BulkProgress(pending={"b": ("1",), "a": ("1", "2")}).next_chunks(2)
        (('a', '1'), ('a', '2'))
        """
        chunks = ((relation, chunk) for relation, chunks in sorted(self.pending.items()) for chunk in chunks)
        return tuple(islice(chunks, limit))

    def copied(self, relation: str, chunk: str, pass_at: int) -> BulkProgress:
        """After a chunk was copied, behind which the log must pass the point `pass_at`."""
        remaining = tuple(other for other in self.pending[relation] if other != chunk)
        pending = {name: chunks for name, chunks in self.pending.items() if name != relation}
        if remaining:
            pending[relation] = remaining
        latest = max(pass_at, self.pass_at.get(relation, pass_at))
        return BulkProgress(
            pending=pending,
            pass_at={**self.pass_at, relation: latest},
            done={**self.done, relation: self.done.get(relation, 0) + 1},
            partial=self.partial,
            in_files=self.in_files,
        )

    def copied_again(
        self, kept: Collection[str], chunks: Mapping[str, tuple[str, ...]], partial: Collection[str] = ()
    ) -> BulkProgress:
        """When the chunks of some relations must be copied from their beginning.

        Args:
            kept: the relations whose bulk goes on; all others are left out.
            partial: those of which the chunks are only a part.

        >>> bulk = BulkProgress(pending={"a": ("2",), "b": ("2",)}, done={"a": 1, "b": 1})
        >>> bulk.copied_again(["a"], {"c": ("1",)}).pending
        {'a': ('2',), 'c': ('1',)}
        """
        return BulkProgress(
            pending={name: left for name, left in self.pending.items() if name in kept} | dict(chunks),
            pass_at={name: point for name, point in self.pass_at.items() if name in kept},
            done={name: count for name, count in self.done.items() if name in kept},
            partial=tuple(sorted({*(name for name in self.partial if name in kept), *partial})),
            in_files={name: at_ms for name, at_ms in self.in_files.items() if name in {*kept, *partial}},
        )

    def at(self, point: int) -> BulkProgress:
        """When everything up to a point of the log is in the table.

        >>> BulkProgress(pass_at={"accounts": 7}).at(7).waiting
        frozenset()
        """
        not_passed = {
            name: pass_point
            for name, pass_point in self.pass_at.items()
            if name in self.pending or pass_point > point
        }
        is_complete = not self.pending and not not_passed
        return BulkProgress(
            pending=self.pending,
            pass_at=not_passed,
            done={} if is_complete else self.done,
            partial=tuple(name for name in self.partial if name in self.pending or name in not_passed),
            in_files=self.in_files,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A position in the change log of a database, always at the end of a transaction.

    Attributes:
        log: which log it is. Numbers of another log mean nothing here, even of one that was made anew
            under the same name.
        point: everything up to this point is in the table. Points of one log are ordered (an LSN, a
            binlog file's number and offset put into one integer).
        marker: what else the source needs to read on (a GTID set, a file's name); only the source reads its
            values. It has an entry for each relation that the log is read for, by the relation's name.
        bulk: how far the bulk is.
        source_ms: when the newest transaction up to the point was committed, by the source's clock, as far
            as the table has its rows; None: not known.
    """

    log: str
    point: int
    marker: Mapping[str, str] = field(default_factory=dict)
    bulk: BulkProgress = field(default_factory=BulkProgress)
    source_ms: int | None = None

    @property
    def origin(self) -> str:
        """Positions with another origin cannot be compared with this one."""
        return self.log

    def is_waiting(self, relation: str) -> bool:
        """Whether the rows that the table has of a relation are no state that the database had: its bulk is
        not complete, or the log is not read for it yet, since it was captured later.

        >>> LogPosition(log="db", point=7, marker={"accounts": ""}).is_waiting("cards")
        True
        """
        return relation not in self.marker or relation in self.bulk.waiting

    @property
    def phase(self) -> str:
        """`copying`: chunks are left; `passing`: all is copied, and the log has not passed it yet;
        `following`."""
        return "copying" if self.bulk.pending else "passing" if self.bulk.waiting else "following"

    def lag_ms(self, lag: Mapping[str, int], now_ms: int) -> int | None:
        """By at most how many milliseconds the table is behind in time: 0 if it has all of the log, else the
        age of the newest transaction that it has. None: not known.

        Args:
            lag: how far the log is ahead of the position, by unit.

        >>> LogPosition(log="db", point=7, source_ms=1_000).lag_ms({"bytes": 12}, 5_000)
        4000
        """
        if lag and not any(lag.values()):
            return 0
        return None if self.source_ms is None else max(0, now_ms - self.source_ms)

    def copied_since(self, before: LogPosition) -> frozenset[str]:
        """Relations that were copied as a whole, and whose bulk is complete now and was not before.

        >>> before = LogPosition(log="db", point=7, marker={"a": ""}, bulk=BulkProgress(pass_at={"a": 9}))
        >>> sorted(LogPosition(log="db", point=9, marker={"a": ""}).copied_since(before))
        ['a']
        """
        return frozenset(
            name
            for name in before.bulk.waiting - {*before.bulk.partial}
            if name in self.marker and name not in self.bulk.waiting
        )

    def brief(self) -> LogPosition:
        """The position itself: it has no long texts."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPosition:
    """The newest snapshot that a table took from a function which returns snapshots one after the other.

    Attributes:
        version_type: the type of the snapshot's version, one of `SNAPSHOT_VERSION_TYPES`.
        version: the version as a text.
    """

    version_type: str
    version: str

    @property
    def origin(self) -> str:
        """Positions with another origin cannot be compared with this one."""
        return self.version_type

    def brief(self) -> SnapshotPosition:
        """The position itself: it has no long texts."""
        return self


SourcePosition: TypeAlias = SparkPosition | LogPosition | SnapshotPosition


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
        case Decimal() if version.is_finite() and _fits_lake_decimal(version):
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
            f"The snapshot function of flow {flow} returned the version {_version_text(position)}, and "
            f"the one before was {_version_text(newest)}",
            sqlstate="42804",
            hint="return versions of one type, times all with or all without a time zone; to change the "
            "type, start over with --full-refresh of the table of the flow's events and of its target",
        )
    if new > old:
        return
    how = "again" if new == old else f"after {_version_text(newest)}"
    raise IngestError(
        "AUTO_CDC_SNAPSHOT_VERSION_ORDER",
        f"The snapshot function of flow {flow} returned the version {_version_text(position)} {how}",
        sqlstate="22000",
        hint="return the snapshot that follows the version which the function is called with, or None if "
        "there is none",
    )


def _as_int(version: Any) -> int | None:
    """A whole number, also one of NumPy; a bool is none."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        return None
    return int(version.__index__())


def _fits_lake_decimal(version: Decimal) -> bool:
    exponent = version.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -18 and version.adjusted() < 20


def _has_zone(version: Any) -> bool:
    return isinstance(version, datetime) and version.tzinfo is not None


def _version_text(position: SnapshotPosition) -> str:
    return f"{position.version} ({position.version_type})"


_ORDERS = (("tinyint", "smallint", "int", "bigint", "double"), ("float", "double"))


def is_wider_number(kind: str, than: str) -> bool:
    """Whether a column of one type takes the numbers that a reader found to be of another.

    >>> is_wider_number("double", "bigint"), is_wider_number("int", "bigint")
    (True, False)
    """
    return any(kind in order and than in order and order.index(kind) > order.index(than) for order in _ORDERS)
