"""What must be true in the simulated protocol, as readers see it: the invariants of `docs/jobs.md`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tests.meta.simulation.store_faults import StoreFaults, Stores
from tests.meta.simulation.virtual_lake import Lake
from tests.meta.simulation.writing import Sources

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.names import TableName, Version

__all__ = ["Judged"]


class Judged:
    """The readers' side of a simulation.

    `published` holds what was seen at each checkpoint of each incarnation, and after how many replacements of
    the store; `seen` the highest of its numbers; `taken_back` what revisions took away.
    """

    random: random.Random
    stores: Stores
    store: Store
    faults: StoreFaults
    lake: Lake
    sources: Sources
    one_pipeline: bool
    entries: dict[str, list[DatasetEntry]]

    def __init__(self) -> None:
        self.published: dict[tuple[str, int], tuple[dict[TableName, Version], int]] = {}
        self.seen: dict[str, int] = {}
        self.taken_back: list[tuple[int, TableName, set[Version]]] = []

    def incarnation(self) -> str:
        """The store's identity as somebody reads it who asks now."""
        return str(self.stores.live().execute("SELECT incarnation FROM stores").fetchone()[0])

    def check(self) -> None:
        if self.faults.wrong is not None:
            return  # nobody of ours reads there
        if self.random.random() < 0.2:
            for checkpoint in self.store.checkpoints.newest(3):
                self.look_at(checkpoint)
        if self.random.random() < 0.1:
            self._read()
        if self.random.random() < 0.1:
            self.sources.read(self)
        if self.random.random() < 0.1:
            self.faults.check()

    def look_at(self, checkpoint: Checkpoint) -> None:
        """A published checkpoint is true and stays what it is."""
        if checkpoint.state is not CheckpointState.PUBLISHED:
            return
        # What unrelated jobs show here may still be undecided.
        part = {p.job for p in self.store.checkpoints.progress(checkpoint.number)} & self.entries.keys()
        own = {e.name for job in part for e in self.entries[job]}
        seen = self.store.checkpoints.versions_at(checkpoint.number)
        versions = {name: version for name, version in seen.items() if name in own}
        incarnation = self.incarnation()
        key = incarnation, checkpoint.number
        known, faults = self.published.setdefault(key, (versions, self.faults.count))
        # A copy from before it was published may publish it again, with commits that carry the same rows.
        same = (
            known == versions
            if faults == self.faults.count
            else self._rows_of(known) == self._rows_of(versions)
        )
        assert same, f"published checkpoint {checkpoint.number} changed"
        self.published[key] = versions, self.faults.count
        if part:
            self.seen[incarnation] = max(self.seen.get(incarnation, 0), checkpoint.number)
        self._assert_one_cut(versions)
        behind = {e.name for job in self.faults.behind for e in self.entries[job]}
        for _, name, removed in self.taken_back:
            shown = name not in behind and versions.get(name) in removed
            assert not shown, f"{name} was taken back, checkpoint {checkpoint.number} shows it"

    def forget_unnamed(self) -> None:
        """After the store was replaced nobody can tell what no commit in the lake names, and a pipeline
        asks its own tables only."""
        named: dict[str, int] = {}
        metadata = [table.commit_metadata for table in self.lake.tables.values() if self.one_pipeline]
        for commit_metadata in metadata:
            if commit_metadata is not None and commit_metadata.checkpoint is not None:
                named[commit_metadata.store] = max(
                    named.get(commit_metadata.store, 0), commit_metadata.checkpoint
                )
        self.seen = {known: min(number, named.get(known, 0)) for known, number in self.seen.items()}
        self.published = {
            (known, number): seen
            for (known, number), seen in self.published.items()
            if number <= named.get(known, 0)
        }

    def forget_above(self, number: int | None) -> None:
        """Numbers above this one may be given again; None: no."""
        if number is None:
            return
        self.seen = {known: min(seen, number) for known, seen in self.seen.items()}
        self.published = {key: shown for key, shown in self.published.items() if key[1] <= number}

    def _rows_of(self, versions: Mapping[TableName, Version]) -> dict[TableName, Mapping[int, int]]:
        return {name: self.lake.rows(name, version) for name, version in versions.items()}

    def _assert_one_cut(self, versions: Mapping[TableName, Version]) -> None:
        """All tables hold the same rows of each source, and views what their query gives of them."""
        seen: dict[TableName, int] = {}
        for name, version in versions.items():
            for source, rows in self.lake.origin(name, version).items():
                assert seen.setdefault(source, rows) == rows, f"{name} shows {source} at another instant"
        for name, version in versions.items():
            expected = self.lake.expected(name, self.lake.origin(name, version))
            assert self.lake.rows(name, version) == expected, f"{name} has wrong rows"

    def _read(self) -> None:
        tables = [entry.name for entries in self.entries.values() for entry in entries]
        first_tables, more_tables = (self.random.sample(tables, self.random.randint(1, 2)) for _ in range(2))
        try:
            first = self.store.reads.resolve(tables=first_tables, lease_ms=0)
            second = self.store.reads.resolve(tables=[*first_tables, *more_tables], lease_ms=0)
        except CheckpointUnavailableError:
            return
        self._assert_one_cut(dict(second.versions))
        if second.checkpoint == first.checkpoint:
            self._assert_one_cut({**first.versions, **second.versions})

    def settled(self) -> bool:
        for group in self._groups():
            newest = max((s.newest_done or 0 for s in self.store.jobs.states() if s.name in group), default=0)
            if not newest or self.store.checkpoints.get(newest).state is not CheckpointState.PUBLISHED:
                return False
            self.look_at(self.store.checkpoints.get(newest))
            versions = self.store.checkpoints.versions_at(newest)
            group_entries = [e for job in group for e in self.entries[job]]
            if not all(e.name in versions for e in group_entries):
                return False
            for entry in group_entries:
                if entry.is_root:
                    rows = self.lake.origin(entry.name, versions[entry.name])[entry.name]
                    assert rows == self.sources.rows.get(entry.name, 0), f"rows of {entry.name} vanished"
        return True

    def _groups(self) -> list[set[str]]:
        groups: list[set[str]] = []
        owner = {e.name: job for job, entries in self.entries.items() for e in entries}
        for job, entries in self.entries.items():
            joined = {job} | {owner[name] for e in entries for name in e.inputs}
            touching = [g for g in groups if g & joined]
            groups = [g for g in groups if not g & joined] + [joined.union(*touching)]
        return groups
