"""A store that is an older copy, or another one, against what the lake's commit metadata says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, LakeVersion, MetaStore, StoreRelation
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.api.events import Cursor, events_after
from tautochrone.model.checkpoint import CheckpointState, Refresh, RefreshMode
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified

ROOT, VIEW, THEIRS = (TableName("lake", ("db",), table) for table in ("root", "view", "theirs"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))
TOPOLOGY = [
    DatasetEntry(ROOT, "streaming table", "r", is_root=True),
    DatasetEntry(VIEW, "materialized view", "v", frozenset({ROOT})),
]


class World:
    """One job, its store's file, and the commits that its tables have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "meta.db"
        self.store = MetaStore.open(f"sqlite:///{self.file}")
        self.lake: dict[TableName, list[LakeVersion]] = {}
        self.count = 0
        self.incarnation = ""
        self.fence = Fence(0)

    def seen(self) -> Fence:
        metadata = [
            v.commit_metadata
            for versions in self.lake.values()
            for v in versions
            if v.commit_metadata is not None
        ]
        return Fence(max((commit_metadata.fence for commit_metadata in metadata), default=0))

    def take_over(self) -> None:
        """As a run does: the store is held against the lake, then the tables are fenced."""
        if self.store.recovery.is_empty() and self.lake:
            self.store.recovery.rebuild(self.lake)
        else:
            self.store.recovery.reconcile("job", self.lake)
        self.store.jobs.start_run("shop", "job", TOPOLOGY)
        self.fence = self.store.jobs.take_over("job", at_least=self.seen())
        self.incarnation = self.store.incarnation
        for table in self.lake:
            self.commit(table, f"{table.table}-fence-{self.fence}")

    def commit(self, table: TableName, version: str, number: int | None = None, **inputs: str) -> Version:
        commit_metadata = CommitMetadata(
            pipeline="shop",
            job="job",
            fence=self.fence,
            store=self.incarnation,
            checkpoint=None if number is None else CheckpointNumber(number),
            inputs={f"lake.db.{name}": input_version for name, input_version in inputs.items()},
        )
        commit = LakeVersion(
            version=Version(version), commit_metadata=commit_metadata, committed_at_ms=self.count
        )
        self.lake.setdefault(table, []).append(commit)
        return Version(version)

    def open(self) -> int:
        self.count += 1
        root = self.commit(ROOT, f"r{self.count}")
        self.store.roots.report("job", self.fence, {ROOT: root})
        return self.store.checkpoints.open("job", self.fence, NewCheckpoint({ROOT: root}, self.count)).number

    def publish(self) -> int:
        number = self.open()
        view = self.commit(VIEW, f"v{self.count}", number, root=f"r{self.count}")
        self.store.checkpoints.record_version("job", self.fence, number, VIEW, view, FULL)
        self.store.checkpoints.publish("job", self.fence, number, self.count)
        return number

    def copy(self) -> Path:
        self.store.close()
        to = self.folder / f"copy-{self.count}.db"
        for file in self.folder.glob("meta.db*"):
            shutil.copy(file, str(file).replace("meta.db", to.name))
        self.store = MetaStore.open(f"sqlite:///{self.file}")
        return to

    def put_back(self, copy: Path) -> None:
        self.store.close()
        for file in self.folder.glob("meta.db*"):
            file.unlink()
        for file in self.folder.glob(f"{copy.name}*"):
            shutil.copy(file, str(file).replace(copy.name, "meta.db"))
        self.store = MetaStore.open(f"sqlite:///{self.file}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new_world = World(tmp_path)
    new_world.take_over()
    yield new_world
    new_world.store.close()


def test_matching_store_is_left_unchanged(world: World) -> None:
    world.publish()
    world.take_over()
    number = world.publish()
    before = world.store.incarnation
    assert world.store.recovery.compare("job", world.lake).relation is StoreRelation.CURRENT
    done = world.store.recovery.reconcile("job", world.lake)
    assert (done.relation, done.incarnation, done.last_number) == (StoreRelation.CURRENT, before, number)


@pytest.mark.parametrize("later", [1, 2, 3])
def test_an_older_copy_gets_what_the_lake_proves(world: World, later: int) -> None:
    world.publish()
    copy = world.copy()
    numbers = [world.publish() for _ in range(later)]
    shown = {number: world.store.checkpoints.versions_at(number) for number in numbers}
    before = world.store.incarnation
    world.put_back(copy)
    done = world.store.recovery.reconcile("job", world.lake)
    assert done.relation is StoreRelation.RESTORED
    assert done.published == tuple(numbers)
    assert {number: world.store.checkpoints.versions_at(number) for number in numbers} == shown
    assert world.store.incarnation == done.incarnation != before
    assert world.store.roots.reported("job")[ROOT] == f"r{world.count}"
    again = world.store.recovery.reconcile("job", world.lake)
    assert (again.relation, again.last_number) == (StoreRelation.CURRENT, done.last_number)
    old = world.fence
    world.take_over()
    assert world.fence > old
    assert world.publish() > max(numbers)


def test_open_checkpoint_of_a_copy_is_published_or_aborted(world: World) -> None:
    world.publish()
    number = world.open()
    copy = world.copy()
    world.put_back(copy)
    assert world.store.recovery.compare("job", world.lake).relation is StoreRelation.CURRENT
    view = world.commit(VIEW, "v", number, root=f"r{world.count}")
    world.store.checkpoints.record_version("job", world.fence, number, VIEW, view, FULL)
    world.store.checkpoints.publish("job", world.fence, number, 1)
    later = world.publish()
    world.put_back(copy)
    assert world.store.recovery.reconcile("job", world.lake).published == (number, later)
    assert world.store.checkpoints.get(number).state is CheckpointState.PUBLISHED
    assert world.store.checkpoints.versions_at(number) == {ROOT: f"r{number}", VIEW: "v"}
    assert world.store.checkpoints.next_for("job") is None


def test_open_checkpoint_without_lake_commits_is_aborted(world: World) -> None:
    world.publish()
    number = world.open()
    copy = world.copy()
    world.take_over()
    world.put_back(copy)
    assert world.store.recovery.reconcile("job", world.lake).given_up == (number,)
    assert world.store.checkpoints.next_for("job") is None


def test_another_pipelines_store_keeps_its_rows(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        world.publish()
    ours = world.store.incarnation
    world.store.close()
    world.store = MetaStore.open(f"sqlite:///{tmp_path}/theirs.db")
    world.store.jobs.start_run("theirs", "them", [DatasetEntry(THEIRS, "streaming table", "t", is_root=True)])
    fence = world.store.jobs.take_over("them")
    first = world.store.checkpoints.open("them", fence, NewCheckpoint({THEIRS: Version("t1")}, 1))
    world.store.checkpoints.publish("them", fence, first.number, 1)
    opened = world.store.checkpoints.open("them", fence, NewCheckpoint({THEIRS: Version("t2")}, 2))
    theirs = world.store.incarnation
    done = world.store.recovery.reconcile("job", world.lake)
    assert (done.relation, done.incarnation) == (StoreRelation.FOREIGN, theirs)
    assert theirs != ours
    assert done.given_up == ()
    world.take_over()
    assert world.publish() > 1000
    assert world.store.checkpoints.versions_at(first.number)[THEIRS] == "t1"
    assert world.store.checkpoints.next_for("them") == opened
    world.store.checkpoints.publish("them", fence, opened.number, 2)
    assert world.store.recovery.compare("job", world.lake).relation is StoreRelation.CURRENT


def test_names_of_another_pipeline_are_refused_before_writes(world: World) -> None:
    world.publish()
    theirs = {
        table: [
            replace(
                v,
                commit_metadata=v.commit_metadata and replace(v.commit_metadata, pipeline="else", store="x"),
            )
            for v in versions
        ]
        for table, versions in world.lake.items()
    }
    before = world.store.checkpoints.highest_used_number()
    with pytest.raises(MetaError) as refused:
        world.store.recovery.reconcile("job", theirs)
    assert refused.value.error_class == "JOB_NAME_TAKEN"
    assert world.store.checkpoints.highest_used_number() == before


def test_restored_store_refuses_older_processes(world: World) -> None:
    world.publish()
    copy = world.copy()
    last = world.publish()
    world.put_back(copy)
    # Its fence is the copy's too; what it knows is more.
    with pytest.raises(MetaError) as refused:
        world.store.checkpoints.open("job", world.fence, NewCheckpoint({ROOT: Version("r9")}, 9, after=last))
    assert refused.value.error_class == "META_STORE_REPLACED"
    old, incarnation = world.fence, world.incarnation
    world.store.recovery.reconcile("job", world.lake)
    with pytest.raises(FencedError):
        world.store.roots.report("job", old, {ROOT: Version("r9")})
    fence = world.store.jobs.take_over("job", at_least=old)
    with pytest.raises(MetaError, match=incarnation):
        world.store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version("r9")}, 9, store=incarnation))


def test_replaced_database_file_is_not_written(world: World, tmp_path: Path) -> None:
    """The same job name and the same fence, by chance."""
    world.publish()
    with MetaStore.open(f"sqlite:///{tmp_path}/other.db") as other:
        other.jobs.start_run("else", "job", TOPOLOGY)
        assert other.jobs.take_over("job") == world.fence
    holder = world.store
    holder._database.close()
    for file in tmp_path.glob("meta.db*"):
        file.unlink()
    shutil.copy(tmp_path / "other.db", world.file)
    with pytest.raises(MetaError) as refused:
        holder.roots.report("job", world.fence, {ROOT: Version("ours")})
    assert refused.value.error_class == "META_STORE_REPLACED"
    with MetaStore.open(f"sqlite:///{world.file}") as store:
        assert store.roots.reported("job") == {}


def _revised(world: World, to: int, last: int) -> None:
    """The view is taken back to checkpoint `to`, as the lake says it."""
    world.fence = world.store.jobs.take_over("job", at_least=world.seen())
    versions = world.lake[VIEW]
    kept = [v for v in versions if v.checkpoint is None or v.checkpoint <= to]
    world.lake[VIEW] = kept
    world.commit(VIEW, "taken-back")
    newest = world.lake[VIEW][-1]
    assert newest.commit_metadata is not None
    world.lake[VIEW][-1] = replace(
        newest, commit_metadata=replace(newest.commit_metadata, revoked=((to, last),))
    )


def test_rebuild_does_not_publish_revoked_checkpoints(world: World, tmp_path: Path) -> None:
    first = world.publish()
    last = world.publish()
    unsaid = {**world.lake, VIEW: list(world.lake[VIEW])}
    _revised(world, first, last)
    # As when the revoked view itself was only marked to be computed anew: its commits are still there.
    world.lake[VIEW] = [*unsaid[VIEW], world.lake[VIEW][-1]]
    with MetaStore.open(f"sqlite:///{tmp_path}/new.db") as store:
        assert store.recovery.rebuild(world.lake) == (first,)
    with MetaStore.open(f"sqlite:///{tmp_path}/unsaid.db") as store:
        assert store.recovery.rebuild(unsaid) == (first, last)


def test_restored_copy_revokes_again(world: World) -> None:
    first = world.publish()
    last = world.publish()
    copy = world.copy()
    _revised(world, first, last)
    world.put_back(copy)
    done = world.store.recovery.reconcile("job", world.lake)
    assert (done.relation, done.revoked, done.published) == (StoreRelation.RESTORED, (last,), ())
    assert world.store.checkpoints.get(last).state is CheckpointState.REVOKED
    assert world.store.reads.resolve(tables=[VIEW]).checkpoint == first


def test_event_cursors_are_reset_by_an_older_copy(world: World) -> None:
    world.publish()
    copy = world.copy()
    world.publish()
    cursor = Cursor.now(world.store)
    assert events_after(world.store, cursor)[0] == []
    world.put_back(copy)
    # Before any job has run on it.
    assert [event for event, *_ in events_after(world.store, cursor)[0]] == ["reset"]
    world.store.recovery.reconcile("job", world.lake)
    assert [event for event, *_ in events_after(world.store, cursor)[0]] == ["reset"]


def test_a_copy_of_before_the_first_checkpoint(world: World) -> None:
    copy = world.copy()
    cursor_store = world.store.incarnation
    number = world.publish()
    world.put_back(copy)
    assert world.store.recovery.rebuild(world.lake) == (number,)
    assert world.store.incarnation != cursor_store
    assert world.store.recovery.compare("job", world.lake).relation is StoreRelation.CURRENT


def test_table_identities(world: World) -> None:
    world.store.datasets.record_table_ids("job", world.fence, {ROOT: "a", VIEW: "b"})
    world.store.datasets.record_table_ids("job", world.fence, {VIEW: "c"})
    assert world.store.datasets.table_ids("job") == {VIEW: "c"}
