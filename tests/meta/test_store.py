"""The store: fences, numbers, intervals, repairs, resolving, pins, expiry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing, Clock

from tautochrone.errors import CheckpointUnavailableError, FencedError, MetaError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, Consistency, NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import NOW, Fence, TableName, Version, today
from tautochrone.model.reason import unclassified

ROOT = TableName("lake", ("db",), "orders")
VIEW = TableName("lake", ("db",), "totals")
TOP = TableName("lake", ("db",), "top")
FULL = Refresh(
    mode=RefreshMode.FULL,
    reason=unclassified("first build"),
    rows_inserted=3,
    nodes=(NodeRefresh(node="Aggregate", mode=RefreshMode.FULL, reason=unclassified("no state")),),
)
IDLE = Refresh(mode=RefreshMode.NO_DATA, reason=unclassified("inputs did not change"))
TOPOLOGY = (
    DatasetEntry(ROOT, "streaming table", "a"),
    DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
    DatasetEntry(TOP, "materialized view", "c", frozenset({VIEW})),
)


@pytest.fixture
def store(backing: Backing, clock: Clock) -> Iterator[Store]:
    with backing.open(clock) as opened:
        opened.jobs.start_run("shop", "job", TOPOLOGY)
        yield opened


def v(text: object) -> Version:
    return Version(str(text))


def run(store: Store, fence: Fence, cut: int, root: str, *, view: str | None, top: str | None) -> int:
    """One whole checkpoint; None means that the dataset failed."""
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v(root)}, cut)).number
    for name, version in ((VIEW, view), (TOP, top)):
        if version is None:
            store.checkpoints.record_failure("job", fence, number, name, unclassified(f"{name.table} broke"))
        else:
            store.checkpoints.record_version("job", fence, number, name, v(version), FULL)
    store.checkpoints.publish("job", fence, number, cut + 5)
    return number


def test_takeover_raises_fence_above_store_and_lake(store: Store) -> None:
    assert store.jobs.take_over("job") == 1
    assert store.jobs.take_over("job") == 2
    assert store.jobs.take_over("job", at_least=40) == 41
    assert store.jobs.take_over("job", at_least=3) == 42
    assert store.jobs.newest_fence("job") == 42
    with pytest.raises(MetaError, match="JOB_NOT_FOUND"):
        store.jobs.take_over("nobody")


def test_every_write_of_an_older_owner_is_fenced(store: Store) -> None:
    old = store.jobs.take_over("job")
    number = store.checkpoints.open("job", old, NewCheckpoint({ROOT: v(1)}, 1)).number
    store.jobs.take_over("job")
    writes = [
        lambda: store.roots.report("job", old, {ROOT: v(1)}),
        lambda: store.checkpoints.open("job", old, NewCheckpoint({}, 1)),
        lambda: store.checkpoints.record_version("job", old, number, VIEW, v(1), FULL),
        lambda: store.checkpoints.record_failure("job", old, number, VIEW, unclassified("x")),
        lambda: store.checkpoints.publish("job", old, number, 1),
        lambda: store.checkpoints.abort("job", old, number),
        lambda: store.checkpoints.revoke("job", old, number),
        lambda: store.jobs.start_run("shop", "job", TOPOLOGY, fence=old),
    ]
    for write in writes:
        with pytest.raises(FencedError, match="JOB_FENCED"):
            write()
    with pytest.raises(MetaError, match="FENCE_UNKNOWN"):
        store.checkpoints.abort("job", Fence(99), number)


def test_new_owner_finishes_open_checkpoint(store: Store) -> None:
    old = store.jobs.take_over("job")
    target = store.checkpoints.open("job", old, NewCheckpoint({ROOT: v(1)}, 7))
    store.checkpoints.record_version("job", old, target.number, VIEW, v("a"), FULL)
    new = store.jobs.take_over("job")
    assert store.checkpoints.next_for("job") == target
    assert store.checkpoints.versions_at(target.number) == {ROOT: v(1), VIEW: v("a")}
    store.checkpoints.record_version("job", new, target.number, VIEW, v("a"), FULL)
    store.checkpoints.record_version("job", new, target.number, TOP, v("t"), FULL)
    store.checkpoints.publish("job", new, target.number, 9)
    store.checkpoints.publish("job", new, target.number, 10)
    assert store.checkpoints.next_for("job") is None
    assert store.checkpoints.get(target.number).published_at_ms == 9
    assert len(store.history.refreshes(VIEW)) == 1
    assert store.history.refreshes(VIEW)[0].refresh == FULL


def test_reports_keep_the_newest_of_each_table(store: Store) -> None:
    fence = store.jobs.take_over("job")
    store.roots.report("job", fence, {ROOT: v(1), VIEW: v(1)})
    store.roots.report("job", fence, {ROOT: v(2)})
    assert store.roots.reported("job") == {ROOT: v(2), VIEW: v(1)}
    assert store.reads.resolve(Consistency.WEAK, [ROOT]).versions == {ROOT: v(2)}


def test_one_open_checkpoint_at_a_time_with_growing_numbers(store: Store) -> None:
    fence = store.jobs.take_over("job")
    opened = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v(1)}, 1))
    first = opened.number
    for roots, cut_at_ms, at_least in (({ROOT: v(2)}, 1, 0), ({ROOT: v(1)}, 2, 0), ({ROOT: v(1)}, 1, 9)):
        with pytest.raises(MetaError, match="CHECKPOINT_ALREADY_OPEN"):
            store.checkpoints.open("job", fence, NewCheckpoint(roots, cut_at_ms, at_least=at_least))
    assert store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v(1)}, 1)) == opened
    store.checkpoints.abort("job", fence, first)
    store.checkpoints.abort("job", fence, first)
    second = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v(1)}, 1, at_least=500)).number
    assert (first, second) == (1, 500)
    store.checkpoints.abort("job", fence, second)
    assert store.checkpoints.open("job", fence, NewCheckpoint({}, 1, at_least=3)).number == 501


def test_publish_wants_a_word_about_each_dataset(store: Store) -> None:
    fence = store.jobs.take_over("job")
    run(store, fence, 1, "r1", view="a", top="b")
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r2")}, 2)).number
    # The old intervals reach over the open target, yet nobody said that they hold for it.
    assert store.checkpoints.versions_at(number) == {ROOT: v("r2")}
    with pytest.raises(MetaError, match=r"CHECKPOINT_INCOMPLETE.*lake.db.top, lake.db.totals"):
        store.checkpoints.publish("job", fence, number, 3)
    store.checkpoints.record_version("job", fence, number, VIEW, v("a"), IDLE)
    store.checkpoints.record_failure("job", fence, number, TOP, unclassified("boom"), RefreshMode.INCREMENTAL)
    store.checkpoints.publish("job", fence, number, 3)
    assert store.checkpoints.versions_at(number) == {ROOT: v("r2"), VIEW: v("a")}
    assert store.checkpoints.failures_at(number) == {TOP: unclassified("boom")}


def test_an_unchanged_version_costs_no_row(store: Store, backing: Backing) -> None:
    fence = store.jobs.take_over("job")
    run(store, fence, 1, "r", view="a", top="b")
    for cut in range(2, 30):
        number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r")}, cut)).number
        store.checkpoints.record_version("job", fence, number, VIEW, v("a"), IDLE)
        store.checkpoints.record_version("job", fence, number, TOP, v("b"), IDLE)
        store.checkpoints.publish("job", fence, number, cut)
    assert backing.execute("SELECT count(*) FROM versions") == 3
    assert backing.execute("SELECT count(*) FROM refreshes") == 2
    assert store.checkpoints.versions_at(17) == {ROOT: v("r"), VIEW: v("a"), TOP: v("b")}
    assert {s.mode for s in store.datasets.statuses() if s.dataset == VIEW} == {RefreshMode.NO_DATA}


def test_failed_dataset_is_missing_until_repaired(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    n2 = run(store, fence, 2, "r2", view="a2", top=None)
    n3 = run(store, fence, 3, "r3", view="a3", top=None)
    assert store.reads.resolve(tables=[VIEW], only_named=True).checkpoint == n3
    # Its relative failed: separate queries of both must agree.
    assert store.reads.resolve(tables=[VIEW]).checkpoint == n1
    assert store.reads.resolve(tables=[VIEW]).behind == {TOP: "not complete at checkpoint 3: top broke"}
    both = store.reads.resolve(tables=[VIEW, TOP])
    assert both.checkpoint == n1
    assert both.versions == {VIEW: v("a1"), TOP: v("t1")}
    assert both.behind == {TOP: f"not complete at checkpoint {n3}: top broke"}
    everything = store.reads.resolve()
    assert everything.checkpoint == n1
    assert everything.behind == {TOP: f"not complete at checkpoint {n3}: top broke"}
    status = {s.dataset: s for s in store.datasets.statuses()}
    assert (status[TOP].checkpoint, status[TOP].error) == (n1, "top broke")
    assert status[TOP].lag_ms == pytest.approx(store.now_ms() - 1, abs=60_000)
    assert (status[VIEW].checkpoint, status[VIEW].error, status[VIEW].lag_ms) == (n3, None, 0)

    with pytest.raises(MetaError, match="CHECKPOINT_NOT_WRITABLE"):
        store.checkpoints.record_version("job", fence, n3, VIEW, v("other"), FULL)
    with pytest.raises(MetaError, match="CHECKPOINT_NOT_WRITABLE"):
        store.checkpoints.record_version("job", fence, n1, TOP, v("other"), FULL)
    store.checkpoints.record_version("job", fence, n3, TOP, v("t3"), FULL)
    store.checkpoints.record_version("job", fence, n3, TOP, v("t3"), FULL)
    assert store.reads.resolve(tables=[VIEW, TOP]).versions == {VIEW: v("a3"), TOP: v("t3")}
    assert TOP not in store.checkpoints.versions_at(n2)
    store.checkpoints.record_version("job", fence, n2, TOP, v("t2"), FULL)
    assert store.checkpoints.versions_at(n2)[TOP] == "t2"
    assert store.checkpoints.versions_at(n3)[TOP] == "t3"
    assert [r.error for r in store.history.refreshes(TOP)] == [None, None, "top broke", "top broke", None]


def test_abort_brings_the_old_versions_back(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    n2 = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r2")}, 2)).number
    store.checkpoints.record_version("job", fence, n2, VIEW, v("a2"), FULL)
    store.checkpoints.record_failure("job", fence, n2, TOP, unclassified("boom"))
    assert store.reads.resolve(Consistency.WEAK, [VIEW]).versions == {VIEW: v("a2")}
    store.checkpoints.abort("job", fence, n2)
    assert store.checkpoints.versions_at(n2) == {}
    assert store.checkpoints.get(n2).state is CheckpointState.ABORTED
    assert store.reads.resolve(Consistency.WEAK).versions == {ROOT: v("r1"), VIEW: v("a1"), TOP: v("t1")}
    n3 = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r2")}, 3)).number
    store.checkpoints.record_version("job", fence, n3, VIEW, v("a3"), FULL)
    store.checkpoints.record_version("job", fence, n3, TOP, v("t1"), IDLE)
    store.checkpoints.publish("job", fence, n3, 4)
    assert store.checkpoints.versions_at(n1) == {ROOT: v("r1"), VIEW: v("a1"), TOP: v("t1")}
    assert store.checkpoints.versions_at(n3) == {ROOT: v("r2"), VIEW: v("a3"), TOP: v("t1")}


def test_why_a_checkpoint_cannot_be_read(store: Store) -> None:
    fence = store.jobs.take_over("job")
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        store.reads.resolve(tables=[TOP])
    with pytest.raises(CheckpointUnavailableError, match="no published checkpoint yet"):
        store.reads.resolve()
    n1 = run(store, fence, 1, "r1", view="a1", top=None)
    n2 = run(store, fence, 2, "r2", view="a2", top="t2")
    n3 = run(store, fence, 3, "r3", view="a3", top="t3")
    n4 = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r4")}, 4)).number
    store.checkpoints.expire(n2)
    store.checkpoints.revoke("job", fence, n3)
    for number, error_class in (
        (n2, "CHECKPOINT_EXPIRED"),
        (n3, "CHECKPOINT_REVOKED"),
        (n4, "CHECKPOINT_NOT_PUBLISHED"),
        (99, "CHECKPOINT_NOT_FOUND"),
    ):
        with pytest.raises(CheckpointUnavailableError) as caught:
            store.reads.resolve(checkpoint=number)
        assert caught.value.error_class == error_class
    with pytest.raises(CheckpointUnavailableError, match=r"no version of every.*top broke"):
        store.reads.resolve(checkpoint=n1, tables=[TOP])
    assert store.reads.resolve(checkpoint=n1).behind.keys() == {TOP}
    assert store.reads.resolve(tables=[VIEW]).checkpoint == n1
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_BEHIND_SESSION"):
        store.reads.resolve(tables=[VIEW], at_least=n4)
    with pytest.raises(CheckpointUnavailableError, match=f"CHECKPOINT_REVOKED.*{n3}, which this session"):
        store.reads.resolve(tables=[VIEW], at_least=n3)


def test_pins_hold_what_expiry_wants(store: Store, clock: Clock) -> None:
    fence = store.jobs.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    pinned = store.reads.resolve(checkpoint=n1, lease_ms=100, owner="me")
    with pytest.raises(MetaError, match="CHECKPOINT_PINNED"):
        store.checkpoints.expire(n1)
    store.pins.release(pinned.pin)
    with pytest.raises(MetaError, match="CHECKPOINT_NEEDED"):
        store.checkpoints.expire(n1)
    n2 = run(store, fence, 2, "r2", view="a2", top=None)
    with pytest.raises(MetaError, match="CHECKPOINT_NEEDED"):
        store.checkpoints.expire(n1)  # the last one that shows `top`
    n3 = run(store, fence, 3, "r3", view="a3", top="t3")
    pinned = store.reads.resolve(checkpoint=n2, lease_ms=100, owner="me")
    assert store.pins.pinned_checkpoints() == {n2}
    clock.now_ms += 60
    store.pins.renew(pinned.pin, 100)
    clock.now_ms += 60
    with pytest.raises(MetaError, match="CHECKPOINT_PINNED"):
        store.checkpoints.expire(n2)
    store.checkpoints.expire(n1)
    assert store.pins.retained_versions()[VIEW] == {"a2", "a3"}
    clock.now_ms += 60
    assert store.pins.pinned_checkpoints() == frozenset()
    with pytest.raises(CheckpointUnavailableError, match="PIN_EXPIRED"):
        store.pins.renew(pinned.pin, 100)
    store.checkpoints.expire(n2)
    store.checkpoints.expire(n2)
    assert store.pins.retained_versions() == {ROOT: {"r3"}, VIEW: {"a3"}, TOP: {"t3"}}
    assert store.reads.resolve().checkpoint == n3


def test_followed_pins_name_where_changes_start_until_their_leases_end(store: Store, clock: Clock) -> None:
    fence = store.jobs.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    store.reads.resolve(tables=[VIEW], checkpoint=n1, lease_ms=100)
    assert store.pins.followed_versions() == {}
    store.reads.resolve(tables=[ROOT], checkpoint=n1, lease_ms=100, followed=True)
    n2 = run(store, fence, 2, "r2", view="a2", top="t2")
    released = store.reads.resolve(tables=[ROOT], checkpoint=n2, lease_ms=200, followed=True)
    assert store.pins.followed_versions() == {ROOT: {"r1", "r2"}}
    clock.now_ms += 150
    assert store.pins.followed_versions() == {ROOT: {"r2"}}
    store.pins.release(released.pin)
    assert store.pins.followed_versions() == {}


def test_topology_refresh_retires_and_brings_back(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    store.jobs.start_run("shop", "job", TOPOLOGY[:2], fence=fence)
    assert [d.name for d in store.datasets.registered()] == [ROOT, VIEW]
    n2 = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r2")}, 2)).number
    store.checkpoints.record_version("job", fence, n2, VIEW, v("a2"), FULL)
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        store.checkpoints.record_version("job", fence, n2, TOP, v("t2"), FULL)
    store.checkpoints.publish("job", fence, n2, 3)
    assert TOP not in store.checkpoints.versions_at(n2)
    assert store.reads.resolve().behind == {}
    assert store.reads.resolve(tables=[TOP]).checkpoint == n1
    store.jobs.start_run("shop", "job", TOPOLOGY, fence=fence)
    assert store.reads.resolve().behind == {TOP: f"not complete at checkpoint {n2}"}
    assert store.datasets.lineage(ROOT).downstream == {VIEW, TOP}
    assert store.datasets.lineage(TOP).inputs == {VIEW}
    assert store.datasets.lineage(TOP).upstream == {VIEW, ROOT}


def test_one_writer_per_dataset(store: Store) -> None:
    with pytest.raises(MetaError, match="DATASET_OWNED_BY_ANOTHER_JOB"):
        store.jobs.start_run("other", "job2", TOPOLOGY[:1])
    with pytest.raises(MetaError, match="JOB_NAME_TAKEN"):
        store.jobs.start_run("other", "job", TOPOLOGY)


def test_jobs_share_checkpoint_numbers(store: Store) -> None:
    other_table = TableName("lake", ("db",), "other")
    store.jobs.start_run("second", "two", [DatasetEntry(other_table, "materialized view", "d")])
    first_fence, second_fence = store.jobs.take_over("job"), store.jobs.take_over("two")
    run(store, first_fence, 1, "r1", view="a1", top="t1")
    n2 = store.checkpoints.open("two", second_fence, NewCheckpoint({}, 2)).number
    store.checkpoints.record_version("two", second_fence, n2, other_table, v("o2"), FULL)
    n3 = run(store, first_fence, 3, "r3", view="a3", top="t3")
    # What `other` is at checkpoint 3 is only decided when its own target 2 is.
    with pytest.raises(CheckpointUnavailableError):
        store.reads.resolve(tables=[VIEW, other_table])
    store.checkpoints.publish("two", second_fence, n2, 4)
    both = store.reads.resolve(tables=[VIEW, other_table])
    assert (both.checkpoint, both.versions) == (n3, {VIEW: v("a3"), other_table: v("o2")})
    assert store.checkpoints.latest_published("two") == store.checkpoints.get(n2)
    assert [c.number for c in store.checkpoints.newest(2)] == [3, 2]


def test_external_tables_are_omitted_or_pinned_to_the_cut(store: Store) -> None:
    fence = store.jobs.take_over("job")
    unknown, known = (TableName("lake", ("x",), name) for name in ("unknown", "known"))
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r"), known: v("k")}, 1)).number
    for name in (VIEW, TOP):
        store.checkpoints.record_version("job", fence, number, name, v("x"), FULL)
    store.checkpoints.publish("job", fence, number, 1)
    assert store.reads.resolve(tables=[unknown, known]).versions == {known: v("k")}
    assert store.checkpoints.get(number).roots == {ROOT: v("r"), known: v("k")}


@pytest.mark.parametrize("consistency", list(Consistency))
def test_clocks_are_no_tables_of_the_lake(store: Store, consistency: Consistency) -> None:
    clocks = {NOW: v(1_750_000_000_000_000), today("Asia/Tokyo"): v(20_254)}
    inputs = frozenset({ROOT, *clocks})
    store.jobs.start_run("shop", "job", (TOPOLOGY[0], DatasetEntry(VIEW, "materialized view", "b", inputs)))
    fence = store.jobs.take_over("job", at_least=Fence(0))
    store.roots.report("job", fence, {ROOT: v("r1")})
    number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: v("r1"), **clocks}, 10)).number
    store.checkpoints.record_version("job", fence, number, VIEW, v("v1"), FULL)
    store.checkpoints.publish("job", fence, number, 15)
    lake = {ROOT: v("r1"), VIEW: v("v1")}
    assert store.checkpoints.versions_at(number) == {**lake, **clocks}
    assert store.reads.resolve(consistency=consistency).versions == lake
    # The reader's pin holds all that the checkpoint names, the lake keeps what lies in it.
    assert store.pins.retained_versions() == {name: frozenset({version}) for name, version in lake.items()}
