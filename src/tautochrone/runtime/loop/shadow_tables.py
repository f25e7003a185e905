"""Brings the shadow tables of foreign tables to the newest versions of these, before a cut is taken.

Whose table cannot be followed gets no version in the cut: its readers fail with the reason, and the others go
on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, TableMissingError, TautochroneError
from tautochrone.model import events
from tautochrone.model.foreign import FOREIGN_PATH_KEY, Followed, ForeignTable
from tautochrone.model.lake import LakeTable, TableDefinition
from tautochrone.model.names import TableName, describe_input, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import Job
from tautochrone.sources.foreign import ForeignTables
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["ShadowTables"]

_SHARE_OF_TIME = 20
_ATTEMPTS = 3


@dataclass(slots=True)
class ShadowTables:
    """The shadow tables of the foreign tables that one job reads.

    Attributes:
        unreadable: shadow tables of tables that could not be followed, with the reason.
    """

    job: Job
    unreadable: dict[TableName, Reason] = field(default_factory=dict)
    _foreign: ForeignTables = field(init=False)
    _tables: dict[TableName, LakeTable] = field(default_factory=dict)
    _shown: dict[TableName, tuple[str, int, str]] = field(default_factory=dict)
    _next_at: float = 0.0

    def __post_init__(self) -> None:
        self._foreign = ForeignTables(self.job.base)

    def synchronize(self) -> None:
        """Look for new versions, unless that was done a moment ago, and take them."""
        started = time.monotonic()
        if started < self._next_at:
            return
        failed_before = dict(self.unreadable)
        self.unreadable.clear()
        for name in sorted(filter(is_shadow_table, self.job.topology.upstream_tables)):
            try:
                self._synchronize(name)
            except (TautochroneError, PySparkException, Py4JError) as error:
                require_live_jvm()
                reason = _reason(error)
                self.unreadable[name] = reason
                if failed_before.get(name) != reason:
                    self.job.emit(events.ForeignTableNotFollowed(table=describe_input(name), reason=reason))
        self._next_at = time.monotonic() + _SHARE_OF_TIME * (time.monotonic() - started)

    def _synchronize(self, name: TableName) -> None:
        foreign = self._foreign.open(self.job.definitions.scope.foreign.sources[name])
        newest = foreign.newest()
        version = newest.identity, newest.number, newest.stamp
        is_observed = name in self.job.observed_tables
        if is_observed and self._shown.get(name) == version:
            return
        followed = self._follow(name, foreign)
        self._shown[name] = version
        if followed.files_added or followed.files_removed or followed.files_with_deletes:
            self.job.emit(
                events.ForeignTableFollowed(
                    table=describe_input(name),
                    version=followed.number,
                    before=followed.before,
                    files_added=followed.files_added,
                    files_removed=followed.files_removed,
                    files_with_deletes=followed.files_with_deletes,
                )
            )

    def _follow(self, name: TableName, foreign: ForeignTable) -> Followed:
        attempt = 1
        while True:
            table = self._tables.get(name) or self._table(name, foreign)
            self._tables[name] = table
            try:
                return table.follow(table.fork(), foreign, self.job.file_table_metadata())
            except (ConflictError, CommitOutcomeUnknownError, TableMissingError):
                # Another job brought it there, or it is unknown whether this one did: the table tells. One
                # that somebody dropped is made again.
                self._tables.pop(name, None)
                if attempt == _ATTEMPTS:
                    raise
                attempt += 1

    def _table(self, name: TableName, foreign: ForeignTable) -> LakeTable:
        if self.job.lake.exists(name):
            return self.job.lake.load(name)
        definition = TableDefinition(
            name=name,
            # The columns come with the first version.
            schema=StructType([]),
            comment=f"the data files of {foreign.source}, where they are",
            # They are not ours: nobody may delete them through this table.
            properties={"gc.enabled": "false", FOREIGN_PATH_KEY: foreign.source.path},
        )
        return self.job.lake.create(definition, self.job.file_table_metadata())


def _reason(error: Exception) -> Reason:
    if isinstance(error, TautochroneError):
        return Reason.of(ReasonCode.INPUT_UNREADABLE, error_class=error.error_class, text=str(error))
    problem = problem_of(error)
    return Reason.of(ReasonCode.INPUT_UNREADABLE, error_class=problem.error_class, text=problem.message)
