"""A lake without Spark: tables as chains of commits with commit metadata, each guarded as a commit of
the real one is.

Rows are what a table holds per group, so that a view that is made from the wrong versions, or from a state
in the wrong order, provably has the wrong rows. A version also knows its `origin`: how many rows of each
source below it are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tautochrone.errors import ConflictError
from tautochrone.iceberg.commits.compare_and_set import check_fence, check_main
from tautochrone.iceberg.commits.metadata import carry_forward, snapshot_metadata
from tautochrone.meta import LakeVersion
from tautochrone.model.lake import NO_VERSION, ChangeKind, CommitMetadata, Fork
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["GROUPS", "Batch", "Lake", "Run", "Snapshot", "VirtualTable", "query", "source_rows", "weight"]

Rows = Mapping[int, int]
GROUPS = range(3)


@cache
def source_rows(count: int) -> Rows:
    """What the first `count` rows of a source add to each group."""
    rows = dict.fromkeys(GROUPS, 0)
    for row in range(1, count + 1):
        rows[row % len(GROUPS)] += row * row + 1
    return rows


def weight(table: TableName) -> int:
    """By which a view multiplies what it reads of `table`."""
    return 2 * int(table.table.removeprefix("t")) + 3


def query(inputs: Mapping[TableName, Rows]) -> Rows:
    """Every view: of each group the weighted sum over its inputs."""
    return {group: sum(weight(name) * rows[group] for name, rows in inputs.items()) for group in GROUPS}


@dataclass(frozen=True, slots=True)
class Run:
    """What a refresh leaves of one group in a view's state. `number` orders the log."""

    number: int
    group: int
    value: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table. `log` is that of a state; `moved` tells whether the commit changed rows."""

    version: Version
    parent: Version
    commit_metadata: CommitMetadata
    at_ms: int
    rows: Rows = field(default_factory=dict)
    origin: Mapping[TableName, int] = field(default_factory=dict)
    log: tuple[Run, ...] = ()
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What was prepared beside main."""

    fork: Fork
    rows: Rows
    origin: Mapping[TableName, int]
    commit_metadata: CommitMetadata


@dataclass(eq=False)
class VirtualTable:
    """A table and its guard: a commit needs a fence that is not older and main where it forked."""

    name: TableName
    lake: Lake
    main: Version = NO_VERSION
    commit_metadata: CommitMetadata | None = None
    snapshots: dict[Version, Snapshot] = field(default_factory=dict)
    prepared: Batch | None = None
    tags: set[str] = field(default_factory=set)

    @property
    def identity(self) -> str:
        """What tells the table from another one of its name."""
        return f"{self.name} of this lake"

    @property
    def newest(self) -> Snapshot:
        return self.snapshots[self.main]

    def fork(self) -> Fork:
        fence = Fence(0) if self.commit_metadata is None else self.commit_metadata.fence
        return Fork(table=self.name, version=self.main, fence=fence, commit_metadata=self.commit_metadata)

    def commit(
        self,
        fork: Fork,
        commit_metadata: CommitMetadata,
        rows: Rows,
        origin: Mapping[TableName, int],
        log: tuple[Run, ...] = (),
        *,
        moved: bool = True,
    ) -> Version:
        """As every commit of the real table: what it is built on must be what is there."""
        check_main(self.name, self._guard(), fork.version, commit_metadata.fence)
        return self._add(
            fork.version,
            carry_forward(self.commit_metadata, commit_metadata),
            commit_metadata,
            rows,
            origin,
            log,
            moved,
        )

    def clear(self, commit_metadata: CommitMetadata) -> None:
        """No rows, no positions, and a history that starts anew."""
        check_main(self.name, self._guard(), self.main, commit_metadata.fence)
        says = carry_forward(self.commit_metadata, commit_metadata)
        self._add(NO_VERSION, says, commit_metadata, source_rows(0), {self.name: 0}, (), True)

    def prepare(self, batch: Batch) -> None:
        check_main(self.name, self._guard(), batch.fork.version, batch.commit_metadata.fence)
        self.prepared = batch

    def commit_prepared(self, fence: Fence) -> Version:
        batch = self.prepared
        if batch is None:
            # A newer owner has committed or dropped what a paused process prepared.
            raise ConflictError("TABLE_MOVED", f"{self.name} has nothing prepared")
        version = self.commit(
            batch.fork, replace(batch.commit_metadata, fence=fence), batch.rows, batch.origin
        )
        self.prepared = None
        return version

    def raise_fence(self, commit_metadata: CommitMetadata) -> None:
        now = self.snapshots.get(self.main)
        rows, origin, log = ({}, {}, ()) if now is None else (now.rows, now.origin, now.log)
        self.commit(self.fork(), commit_metadata, rows, origin, log, moved=False)

    def commit_metadata_only(self, fork: Fork, commit_metadata: CommitMetadata) -> None:
        check_main(self.name, self._guard(), fork.version, commit_metadata.fence)
        self.commit_metadata = carry_forward(self.commit_metadata, commit_metadata)

    def roll_back(self, version: Version, commit_metadata: CommitMetadata) -> None:
        """Main goes back, as that of a state does."""
        check_main(self.name, self._guard(), self.main, commit_metadata.fence)
        assert self.goes_back_to(version)
        self.main, self.commit_metadata = version, commit_metadata

    def revert(self, version: Version, commit_metadata: CommitMetadata, tag: str) -> set[Version]:
        """Main goes back for good; answers the versions that are no longer in its history."""
        if tag in self.tags:
            return set()
        check_fence(self.name, self._guard(), commit_metadata.fence)
        removed = {snapshot.version for snapshot in self.chain(self.main)} - {
            snapshot.version for snapshot in self.chain(version)
        }
        to = self.snapshots[version]
        says = replace(commit_metadata, checkpoint=None)
        self.tags.add(tag)
        self._add(version, commit_metadata, says, to.rows, to.origin, to.log, False)
        return removed

    def chain(self, version: Version) -> Iterable[Snapshot]:
        """A version and all that are below it, newest first."""
        while version != NO_VERSION:
            snapshot = self.snapshots[version]
            yield snapshot
            version = snapshot.parent

    def goes_back_to(self, version: Version) -> bool:
        return any(snapshot.version == version for snapshot in self.chain(self.main))

    def merged_commit_metadata_at(self, version: Version) -> CommitMetadata | None:
        """What the table said of itself at a version."""
        combined: CommitMetadata | None = None
        for snapshot in reversed(list(self.chain(version))):
            combined = carry_forward(combined, snapshot.commit_metadata)
        return combined

    def change_between(self, old: Version, new: Version) -> ChangeKind:
        """As far as the chain between the versions tells."""
        kind = ChangeKind.NONE
        for snapshot in self.chain(new):
            if snapshot.version == old:
                return kind
            kind = ChangeKind.CHANGED if snapshot.moved else kind
        return ChangeKind.UNKNOWN

    def history(self) -> list[LakeVersion]:
        """As `runtime.loop.takeover` gives it to the store."""
        versions = [
            LakeVersion(
                version=snapshot.version,
                commit_metadata=snapshot.commit_metadata,
                committed_at_ms=snapshot.at_ms,
            )
            for snapshot in reversed(list(self.chain(self.main)))
        ]
        checkpoints = {version.checkpoint for version in versions}
        if versions and self.commit_metadata is not None:
            number = (
                None if self.commit_metadata.checkpoint in checkpoints else self.commit_metadata.checkpoint
            )
            versions.append(
                replace(versions[-1], commit_metadata=replace(self.commit_metadata, checkpoint=number))
            )
        return versions

    def says(self) -> list[LakeVersion]:
        """What the table says of itself now."""
        return [LakeVersion(version=self.main, commit_metadata=self.commit_metadata, committed_at_ms=0)]

    def _guard(self) -> Any:
        # The real guards look at `main` and `commit_metadata` only.
        return self

    def _add(
        self,
        parent: Version,
        commit_metadata: CommitMetadata,
        says: CommitMetadata,
        rows: Rows,
        origin: Mapping[TableName, int],
        log: tuple[Run, ...],
        moved: bool,
    ) -> Version:
        version = self.lake.next_version()
        says = snapshot_metadata(self.commit_metadata, says)
        self.snapshots[version] = Snapshot(version, parent, says, self.lake.now, rows, origin, log, moved)
        self.main, self.commit_metadata = version, commit_metadata
        return version


@dataclass
class Lake:
    """All tables. `now` is what a commit takes for its time."""

    tables: dict[TableName, VirtualTable] = field(default_factory=dict)
    inputs: dict[TableName, frozenset[TableName]] = field(default_factory=dict)
    counter: int = 0
    now: int = 0

    def next_version(self) -> Version:
        self.counter += 1
        return Version(str(self.counter))

    def __getitem__(self, name: TableName) -> VirtualTable:
        return self.tables[name]

    def create(self, name: TableName, commit_metadata: CommitMetadata) -> VirtualTable:
        table = self.tables[name] = VirtualTable(name, self)
        empty: dict[int, int] = dict.fromkeys(GROUPS, 0)
        origin = {name: 0} if not self.inputs.get(name) else {}
        table.commit(table.fork(), commit_metadata, empty, origin, moved=False)
        return table

    def origin(self, name: TableName, version: str) -> Mapping[TableName, int]:
        return self.tables[name].snapshots[Version(version)].origin

    def rows(self, name: TableName, version: str) -> Rows:
        return self.tables[name].snapshots[Version(version)].rows

    def expected(self, name: TableName, origin: Mapping[TableName, int]) -> Rows:
        """The rows of a table when so many rows of each source are in it."""
        inputs = self.inputs.get(name, frozenset())
        if not inputs:
            return source_rows(origin[name])
        return query({above: self.expected(above, origin) for above in inputs})
