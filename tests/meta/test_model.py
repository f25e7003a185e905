"""The store against a dictionary: whatever is called in whatever order, both say the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError, FencedError
from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified

pytestmark = pytest.mark.thorough

ROOT, A, B = (TableName("lake", ("db",), table) for table in ("root", "a", "b"))
VIEWS = (A, B)
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
VERSIONS = st.sampled_from(["1", "2", "3"]).map(Version)


class StoreMachine(RuleBasedStateMachine):
    """`cuts[n][table]` is the version of each table at n; a missing key is a failure."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.backing = Backing(self.kind, Path(self.folder.name))
        self.store = self.backing.open()
        self.store.jobs.start_run(
            "p",
            "j",
            [
                DatasetEntry(ROOT, "streaming table", "r"),
                *(DatasetEntry(view, "materialized view", "v", frozenset({ROOT})) for view in VIEWS),
            ],
        )
        self.fence = self.store.jobs.take_over("j")
        self.old: Fence | None = None
        self.open: int | None = None
        self.newest = 0
        self.cuts: dict[int, dict[TableName, Version]] = {}
        self.failed: dict[int, set[TableName]] = {}
        self.state: dict[int, CheckpointState] = {}

    def teardown(self) -> None:
        self.backing.close()
        self.folder.cleanup()

    @rule(gap=st.integers(0, 5))
    def take_over(self, gap: int) -> None:
        self.old, self.fence = self.fence, self.store.jobs.take_over("j", at_least=self.fence + gap)
        assert self.fence > self.old

    @precondition(lambda self: self.old is not None)
    @rule(version=VERSIONS)
    def the_old_owner_tries(self, version: Version) -> None:
        try:
            self.store.checkpoints.open("j", self.old or Fence(0), NewCheckpoint({ROOT: version}, 1))
        except FencedError:
            return
        raise AssertionError("not fenced")

    @precondition(lambda self: self.open is None)
    @rule(version=VERSIONS, gap=st.integers(0, 3))
    def open_target(self, version: Version, gap: int) -> None:
        target = self.store.checkpoints.open(
            "j", self.fence, NewCheckpoint({ROOT: version}, 1, at_least=self.newest + gap)
        )
        assert target.number > self.newest
        self.open = self.newest = target.number
        self.cuts[self.open] = {ROOT: version}
        self.failed[self.open] = set()
        self.state[self.open] = CheckpointState.OPEN

    @precondition(lambda self: self.open is not None)
    @rule(view=st.sampled_from(VIEWS), version=VERSIONS)
    def record(self, view: TableName, version: Version) -> None:
        assert self.open is not None
        self.store.checkpoints.record_version("j", self.fence, self.open, view, version, FULL)
        self.cuts[self.open][view] = version
        self.failed[self.open].discard(view)

    @precondition(lambda self: self.open is not None)
    @rule(view=st.sampled_from(VIEWS), error=st.sampled_from(["boom", "bang"]))
    def fail(self, view: TableName, error: str) -> None:
        assert self.open is not None
        if view not in self.cuts[self.open]:
            self.store.checkpoints.record_failure("j", self.fence, self.open, view, unclassified(error))
            self.failed[self.open].add(view)

    @precondition(lambda self: self.open is not None)
    @rule()
    def publish(self) -> None:
        assert self.open is not None
        for view in VIEWS:
            if view not in self.cuts[self.open] and view not in self.failed[self.open]:
                self.fail(view, "boom")
        self.store.checkpoints.publish("j", self.fence, self.open, 1)
        self.state[self.open] = CheckpointState.PUBLISHED
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def abort(self) -> None:
        assert self.open is not None
        self.store.checkpoints.abort("j", self.fence, self.open)
        self.state[self.open] = CheckpointState.ABORTED
        self.cuts[self.open] = {}
        self.failed[self.open] = set()
        self.open = None

    @rule(data=st.data(), version=VERSIONS)
    def repair(self, data: st.DataObject, version: Version) -> None:
        holes = [
            (number, view)
            for number, views in self.failed.items()
            if self.state[number] is CheckpointState.PUBLISHED
            for view in sorted(views)
        ]
        if holes:
            number, view = data.draw(st.sampled_from(holes))
            self.store.checkpoints.record_version("j", self.fence, number, view, version, FULL)
            self.cuts[number][view] = version
            self.failed[number].discard(view)

    @rule()
    def restart(self) -> None:
        self.backing.close()
        self.store = self.backing.open()

    @invariant()
    def every_cut_is_what_the_dictionary_says(self) -> None:
        for number, cut in self.cuts.items():
            assert self.store.checkpoints.versions_at(number) == cut, number
            assert self.store.checkpoints.get(number).state is self.state[number]
            assert self.store.checkpoints.failures_at(number).keys() == self.failed[number]

    def newest_with(self, needed: set[TableName]) -> int | None:
        published = (n for n in self.cuts if self.state[n] is CheckpointState.PUBLISHED)
        return max((n for n in published if needed <= self.cuts[n].keys()), default=None)

    def shown(self, *states: CheckpointState) -> set[TableName]:
        return {name for n, cut in self.cuts.items() if self.state[n] in states for name in cut}

    @invariant()
    def reads_of_named_tables_take_the_newest_that_has_them(self) -> None:
        for names in ([A], [B], [A, B], [ROOT, B]):
            self.read_is(self.newest_with({*names}), names, only_named=True)

    @invariant()
    def strong_reads_agree_among_themselves(self) -> None:
        """A hole in one view holds back who shares its root, unless nobody can read that view at all."""
        recorded = self.shown(CheckpointState.PUBLISHED, CheckpointState.OPEN)
        readable = self.shown(CheckpointState.PUBLISHED)
        for names in ([A], [B], [ROOT]):
            expected = self.newest_with({*names} | recorded)
            if expected is None:
                expected = self.newest_with({*names} | readable)
            self.read_is(expected, names, only_named=False)

    def read_is(self, expected: int | None, names: list[TableName], *, only_named: bool) -> None:
        try:
            resolved = self.store.reads.resolve(tables=names, lease_ms=0, only_named=only_named)
        except CheckpointUnavailableError:
            assert expected is None, names
            return
        assert resolved.checkpoint == expected, names
        assert resolved.versions == {n: self.cuts[expected or 0][n] for n in names}

    @invariant()
    def one_open_target(self) -> None:
        target = self.store.checkpoints.next_for("j")
        assert (target.number if target else None) == self.open
        latest = self.store.checkpoints.latest_published("j")
        published = [n for n, s in self.state.items() if s is CheckpointState.PUBLISHED]
        assert (latest.number if latest else None) == max(published, default=None)
        assert CheckpointNumber(self.newest) == max(self.cuts, default=0)


class PostgresMachine(StoreMachine):
    kind = "postgresql"


class RemoteMachine(StoreMachine):
    kind = "http"


def examples(number: int) -> settings:
    return settings(
        max_examples=number, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )


class LongMachine(StoreMachine):
    """The same with more examples."""


TestStore = StoreMachine.TestCase
TestStore.settings = examples(5)
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = examples(2)
TestRemote = RemoteMachine.TestCase
TestRemote.settings = examples(2)
TestLong = pytest.mark.slow(LongMachine.TestCase)
TestLong.settings = examples(100)
