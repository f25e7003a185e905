"""The time of a checkpoint, read and followed like a table."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.lake import ChangeKind, RowChange, TableChange
from tautochrone.model.names import NOW, TableName, Version, describe_clock, time_zone_of
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.analysis.current_time import clock_row, date_in_zone

__all__ = ["ClockTable"]


@dataclass(frozen=True, slots=True)
class ClockTable:
    """A clock of `model.names` as a `ReadableTable` of one row."""

    name: TableName
    session: SparkSession

    def version_at(self, now_us: int) -> Version:
        """The clock's version at an instant, in microseconds since 1970."""
        if self.name == NOW:
            return Version(str(now_us))
        return Version(str(date_in_zone(self.session, time_zone_of(self.name), now_us)))

    def change_between(self, old: Version, new: Version) -> TableChange:
        kind = ChangeKind.NONE if old == new else ChangeKind.CHANGED
        return TableChange(
            kind=kind, reason=Reason.of(ReasonCode.TIME_MOVED, clock=describe_clock(self.name))
        )

    def changed_rows(self, session: SparkSession, old: Version, new: Version) -> RowChange:
        added, removed = clock_row(session, self.name, new), clock_row(session, self.name, old)
        return RowChange(added=added, removed=removed, rows=2)

    def row_count(self, version: Version) -> int:  # noqa: ARG002
        return 1

    def read(self, session: SparkSession, version: Version) -> DataFrame:
        return clock_row(session, self.name, version)
