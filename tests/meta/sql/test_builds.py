"""Built plans in the store: what may be decided, and what readers learn of their tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError, FencedError, MetaError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.project_build import (
    BuildState,
    BuiltState,
    BuiltTable,
    ProjectBuild,
    RowComparison,
    RowSample,
    ViewOfBuild,
)
from tautochrone.model.project_plan import DefinitionChange
from tautochrone.model.reason import unclassified
from tautochrone.runtime.planning.drop_build import require_droppable

ROOT, VIEW, FRESH = (TableName("lake", ("db",), name) for name in ("orders", "totals", "fresh"))
BUILD = ProjectBuild(
    id="0123abcd",
    job="job",
    base=CheckpointNumber(1),
    definitions={str(VIEW): "c", "invariant one": "d"},
    created=(FRESH,),
)
TABLE = BuiltTable(
    table=VIEW,
    version=Version("b1"),
    definition="c",
    replaces="b",
    inputs={ROOT: Version("r1")},
    violations={"some": 2},
    states={TableName("lake", ("states",), "v"): BuiltState(version=Version("s1"), definition="f")},
)


@pytest.fixture
def store(backing: Backing) -> Store:
    opened = backing.open(clock=lambda: 7_000)
    entries = [DatasetEntry(ROOT, "streaming table", "a", is_root=True)]
    entries.append(DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})))
    opened.jobs.start_run("shop", "job", entries)
    return opened


@pytest.fixture
def fence(store: Store) -> Fence:
    fence = store.jobs.take_over("job")
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version("r1")}, 1)).number
    full = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
    store.checkpoints.record_version("job", fence, number, VIEW, Version("v1"), full)
    store.checkpoints.publish("job", fence, number, 1)
    return fence


def test_a_decided_build_is_not_dropped_under_a_run(store: Store, fence: Fence) -> None:
    store.builds.begin(BUILD)
    store.builds.finish(BUILD.with_table(TABLE))
    with pytest.raises(MetaError, match="BUILD_OF_ANOTHER_JOB"):
        # Its branches are in a lake that the other project does not have.
        require_droppable(store, store.builds.get(BUILD.id), "other")
    require_droppable(store, store.builds.get(BUILD.id), BUILD.job)
    store.builds.decide("job", fence, BUILD.id)
    with pytest.raises(MetaError, match="BUILD_BEING_APPLIED"):
        require_droppable(store, store.builds.get(BUILD.id), BUILD.job)
    store.jobs.end_run("job", fence)
    require_droppable(store, store.builds.get(BUILD.id), BUILD.job)


def test_from_begun_to_taken_over(store: Store, fence: Fence) -> None:
    store.builds.begin(BUILD)
    store.builds.begin(BUILD)
    assert store.builds.get(BUILD.id) == replace(BUILD, created_at_ms=7_000)
    for other in (replace(BUILD, job="other"), replace(BUILD, created=())):
        with pytest.raises(MetaError, match="BUILD_ID_TAKEN"):
            store.builds.begin(other)
    with pytest.raises(MetaError, match="BUILD_NOT_FOUND"):
        store.builds.finish(replace(BUILD, job="other"))
    store.builds.remove("other", BUILD.id)
    with pytest.raises(MetaError, match="BUILD_UNFINISHED"):
        store.builds.decide("job", fence, BUILD.id)
    finished = replace(BUILD.with_table(TABLE), problems=("one",), notes=("two",))
    store.builds.finish(finished)
    assert store.builds.of_job("job") == (replace(finished, state=BuildState.BUILT, created_at_ms=7_000),)
    assert store.builds.of_job("other") == ()
    with pytest.raises(FencedError):
        store.builds.decide("job", Fence(fence - 1), BUILD.id)
    store.builds.decide("job", fence, BUILD.id)
    store.builds.decide("job", fence, BUILD.id)
    # An answer that was lost may come after the decision.
    store.builds.finish(finished)
    assert store.builds.get(BUILD.id).state is BuildState.DECIDED
    for _ in range(2):
        store.builds.complete("job", fence, BUILD.id)
    assert store.builds.of_job("job") == ()


def test_a_dropped_build(store: Store, fence: Fence) -> None:
    store.builds.begin(BUILD)
    store.builds.remove(BUILD.job, BUILD.id)
    store.builds.remove(BUILD.job, BUILD.id)
    for call in (
        lambda: store.builds.finish(BUILD),
        lambda: store.builds.decide("job", fence, BUILD.id),
        lambda: store.builds.get(BUILD.id),
    ):
        with pytest.raises(MetaError, match="BUILD_NOT_FOUND"):
            call()


def test_approved_while_nobody_runs_the_job(store: Store, fence: Fence) -> None:
    store.builds.begin(BUILD)
    for broken, error in ((BUILD, "BUILD_UNFINISHED"), (replace(BUILD, problems=("one",)), "BUILD_CHECKS")):
        if broken.problems:
            store.builds.finish(broken)
        with pytest.raises(MetaError, match=error):
            store.builds.approve(BUILD.id)
    store.builds.finish(BUILD.with_table(TABLE))
    with pytest.raises(MetaError, match="JOB_RUNNING") as refused:
        store.builds.approve(BUILD.id)
    assert str(refused.value.hint).startswith("end the run and decide again")
    store.jobs.end_run("job", fence)
    store.builds.approve(BUILD.id)
    store.jobs.take_over("job")
    store.builds.approve(BUILD.id)
    assert store.builds.get(BUILD.id).state is BuildState.DECIDED
    assert store.builds.get(BUILD.id).tables == (TABLE,)


def test_what_is_over_is_remembered(store: Store, fence: Fence) -> None:
    for number in range(25):
        identity = f"{number:08x}"
        store.builds.begin(replace(BUILD, id=identity))
        if number % 2:
            store.builds.finish(replace(BUILD, id=identity))
            store.builds.decide("job", fence, identity)
            store.builds.complete("job", fence, identity)
        store.builds.remove("job", identity)
    store.builds.begin(BUILD)
    known = {build.id: build for build in store.builds.remembered()}
    assert known.keys() == {BUILD.id, *(f"{number:08x}" for number in range(5, 25))}
    assert known[f"{23:08x}"].state is BuildState.APPLIED
    assert known[f"{24:08x}"].state is BuildState.DROPPED
    assert (known[f"{24:08x}"].ended_at_ms, known[BUILD.id].ended_at_ms) == (7_000, None)
    assert [build.id for build in store.builds.of_job("job")] == [BUILD.id]


def test_samples_are_in_no_list_and_end_with_the_build(store: Store) -> None:
    rows = RowSample(sign="+", columns=("a",), rows=(("secret",),))
    view = ViewOfBuild(
        table=VIEW,
        change=DefinitionChange.CHANGED,
        reason=unclassified("x"),
        comparison=RowComparison(added=1, removed=0, samples=(rows,)),
    )
    store.builds.begin(BUILD)
    store.builds.finish(replace(BUILD, views=(view,)))
    assert "secret" in repr(store.builds.look_up(BUILD.id))
    assert store.builds.look_up(BUILD.id) == store.builds.get(BUILD.id)
    without = (store.builds.get(BUILD.id).without_samples(),)
    assert store.builds.remembered() == store.builds.of_job("job") == without
    assert "secret" not in repr(without)
    store.builds.remove(BUILD.job, BUILD.id)
    over = store.builds.look_up(BUILD.id)
    assert (over.state, over.views) == (BuildState.DROPPED, without[0].views)


@pytest.mark.parametrize("text", ["", "12", "0123ABCD", "0123abcd\n", "0123abc\0", "\ud800" * 8])
def test_what_is_no_id_is_not_sent_to_the_database(store: Store, text: str) -> None:
    store.builds.begin(BUILD)
    for call in (store.builds.get, store.builds.look_up):
        with pytest.raises(MetaError, match="BUILD_NOT_FOUND") as refused:
            call(text)
        assert str(refused.value.hint).endswith("there are: 0123abcd")


def test_a_revoked_base(store: Store, fence: Fence) -> None:
    store.builds.begin(BUILD)
    store.builds.finish(BUILD.with_table(TABLE))
    store.checkpoints.revoke("job", fence, 1)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_REVOKED"):
        store.builds.decide("job", fence, BUILD.id)


def test_readers_do_not_see_what_a_build_created(store: Store) -> None:
    assert not store.reads.knows(FRESH)
    store.builds.begin(BUILD)
    assert store.reads.knows(FRESH)
    store.builds.remove(BUILD.job, BUILD.id)
    assert not store.reads.knows(FRESH)
