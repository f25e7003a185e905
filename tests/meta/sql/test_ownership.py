"""Two runs of one job: the store lets exactly one have it, and tells the other who has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tests.support.stores import Backing, Clock

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, Store, TableRole
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.jobs import Claim, RunProcess
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

ROOT = TableName("lake", ("db",), "orders")
VIEW = TableName("lake", ("db",), "totals")
TOP = TableName("lake", ("db",), "top")
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
TOPOLOGY = (
    DatasetEntry(ROOT, "streaming table", "a", is_root=True),
    DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
    DatasetEntry(TOP, "materialized view", "c", frozenset({VIEW})),
)
LEASE_MS = 15_000


def claim(run: str, **how: object) -> Claim:
    process = RunProcess(run=run, host=f"host-{run}", pid=17, machine="m", started=5)
    return Claim(process=process, **how)  # type: ignore[arg-type]


def begin(store: Store, run: str, topology: tuple[DatasetEntry, ...] = TOPOLOGY, **how: object) -> Fence:
    """The beginning of a run, as every command makes it."""
    own_claim = claim(run, **how)
    store.jobs.start_run("shop", "job", topology, claim=own_claim, lease_ms=LEASE_MS)
    return store.jobs.take_over("job", lease_ms=LEASE_MS, claim=own_claim)


def test_second_run_is_refused_and_changes_nothing(store: Store, clock: Clock) -> None:
    fence = begin(store, "one")
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version("1")}, 1)).number
    store.checkpoints.record_version("job", fence, number, VIEW, Version("1"), FULL)
    clock.now_ms += 5_000
    for act in (
        lambda: store.jobs.require_free("job", claim("two")),
        lambda: store.jobs.start_run("shop", "job", TOPOLOGY[:1], claim=claim("two")),
        lambda: store.jobs.take_over("job", claim=claim("two")),
    ):
        with pytest.raises(MetaError, match="JOB_RUNNING") as refused:
            act()
        parameters = refused.value.parameters
        assert parameters["host"] == "host-one"
        assert parameters["pid"] == "17"
        assert parameters["since_ms"] == "1000000"
        assert (parameters["checkpoint"], parameters["done"], parameters["datasets"]) == (
            str(number),
            "2",
            "3",
        )
        assert parameters["lease_left_ms"] == "10000"
        assert f"checkpoint {number} is open, with 2 of 3 datasets done" in refused.value.message
    # The topology of the run that goes on, and its fence.
    assert len(store.datasets.registered("job")) == 3
    store.checkpoints.record_version("job", fence, number, TOP, Version("1"), FULL)
    store.checkpoints.publish("job", fence, number, 1)
    with pytest.raises(MetaError, match="no checkpoint of it is open"):
        begin(store, "two")


def test_a_job_whose_run_ended_is_free_at_once(store: Store) -> None:
    store.jobs.end_run("job", begin(store, "one"))
    assert begin(store, "two") == 2


def test_job_is_owned_while_its_lease_is_renewed(store: Store, clock: Clock) -> None:
    fence = begin(store, "one")
    clock.now_ms += LEASE_MS - 1
    store.jobs.heartbeat("job", fence, LEASE_MS)
    clock.now_ms += LEASE_MS - 1
    with pytest.raises(MetaError, match="JOB_RUNNING"):
        begin(store, "two")
    clock.now_ms += 1
    newer = begin(store, "two")
    # It wakes: whatever it still wants to write is refused, and its beat does not bring the lease back.
    with pytest.raises(FencedError):
        store.jobs.heartbeat("job", fence, LEASE_MS)
    with pytest.raises(FencedError):
        store.roots.report("job", fence, {ROOT: Version("1")})
    store.jobs.heartbeat("job", newer, LEASE_MS)


def test_forced_takeover_fences_a_live_run(store: Store) -> None:
    old = begin(store, "one")
    assert begin(store, "two", takeover=True) == 2
    with pytest.raises(FencedError):
        store.jobs.heartbeat("job", old)
    with pytest.raises(MetaError, match="host-two"):
        begin(store, "three")


def test_only_an_owner_known_to_have_ended_is_replaced(store: Store) -> None:
    begin(store, "one")
    assert begin(store, "two", ended_run="one") == 2
    # Somebody saw that `one` was gone, and meanwhile another run has the job.
    with pytest.raises(MetaError, match="host-two"):
        begin(store, "three", ended_run="one")


def test_what_a_run_says_twice_is_not_refused(store: Store) -> None:
    """Its first answer was lost."""
    begin(store, "one")
    assert begin(store, "one") == 2


def test_owner_without_identity_keeps_its_lease(store: Store, clock: Clock) -> None:
    store.jobs.start_run("shop", "job", TOPOLOGY)
    store.jobs.take_over("job", owner="host:1", lease_ms=LEASE_MS)
    assert store.jobs.owner_process("job") is None
    with pytest.raises(MetaError, match=r"JOB_RUNNING.*process host:1"):
        begin(store, "two")
    clock.now_ms += LEASE_MS
    begin(store, "two")
    # Nothing is left of it when somebody takes the job without a name.
    store.jobs.take_over("job", owner="host:3")
    assert store.jobs.owner_process("job") is None


def test_two_starts_at_the_same_moment(backing: Backing) -> None:
    """Also before the job is known: exactly one gets it, with its own topology."""
    count = 4
    stores = [backing.open() for _ in range(count)]
    barrier = Barrier(count)

    def start(index: int) -> tuple[int, str]:
        topology = (
            DatasetEntry(TableName("lake", ("db",), f"t{index}"), "streaming table", "x", is_root=True),
        )
        barrier.wait()
        try:
            return index, f"fence {begin(stores[index], str(index), topology)}"
        except MetaError as error:
            return index, error.error_class

    for turn in range(3):
        with ThreadPoolExecutor(count) as pool:
            ended = list(pool.map(start, range(count)))
        winners = [index for index, how in ended if how == f"fence {turn + 1}"]
        assert len(winners) == 1, ended
        assert [how for _, how in ended].count("JOB_RUNNING") == count - 1, ended
        assert [entry.name.table for entry in stores[0].datasets.registered("job")] == [f"t{winners[0]}"]
        stores[0].jobs.end_run("job", Fence(turn + 1))


def test_a_job_that_registers_itself(store: Store, clock: Clock) -> None:
    store.registrations.register("etl", ROOT, TableRole.SINK)
    old = store.registrations.start("etl", claim("one"))
    with pytest.raises(MetaError, match=r"JOB_RUNNING.*host-one"):
        store.registrations.start("etl", claim("two"))
    assert store.registrations.start("etl", claim("one")) == old + 1
    assert store.registrations.start("etl", claim("two", takeover=True)) == old + 2
    clock.now_ms += LEASE_MS
    assert store.registrations.start("etl", claim("three")) == old + 3
