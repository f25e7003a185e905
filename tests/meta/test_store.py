"""The store: fences, numbers, intervals, repairs, resolving, pins, expiry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tautochrone.errors import CheckpointUnavailableError, FencedError, MetaError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.model.checkpoint import CheckpointState, Consistency
from tautochrone.model.clock import NOW, today
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode
from tautochrone.testing.stores import Backing

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


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(backing: Backing, clock: Clock) -> Iterator[MetaStore]:
    with backing.open(clock) as opened:
        opened.start_run("shop", "job", TOPOLOGY)
        yield opened


def v(text: object) -> Version:
    return Version(str(text))


def run(store: MetaStore, fence: Fence, cut: int, root: str, *, view: str | None, top: str | None) -> int:
    """One whole checkpoint; None means that the dataset failed."""
    number = store.open_checkpoint("job", fence, {ROOT: v(root)}, cut).number
    for name, version in ((VIEW, view), (TOP, top)):
        if version is None:
            store.record_failure("job", fence, number, name, unclassified(f"{name.table} broke"))
        else:
            store.record_version("job", fence, number, name, v(version), FULL)
    store.publish("job", fence, number, cut + 5)
    return number


def test_takeover_raises_the_fence_above_store_and_lake(store: MetaStore) -> None:
    assert store.take_over("job") == 1
    assert store.take_over("job") == 2
    assert store.take_over("job", at_least=40) == 41
    assert store.take_over("job", at_least=3) == 42
    assert store.fence("job") == 42
    with pytest.raises(MetaError, match="JOB_NOT_FOUND"):
        store.take_over("nobody")


def test_every_write_of_an_older_owner_is_fenced(store: MetaStore) -> None:
    old = store.take_over("job")
    number = store.open_checkpoint("job", old, {ROOT: v(1)}, 1).number
    store.take_over("job")
    writes = [
        lambda: store.report("job", old, {ROOT: v(1)}),
        lambda: store.open_checkpoint("job", old, {}, 1),
        lambda: store.record_version("job", old, number, VIEW, v(1), FULL),
        lambda: store.record_failure("job", old, number, VIEW, unclassified("x")),
        lambda: store.publish("job", old, number, 1),
        lambda: store.abort("job", old, number),
        lambda: store.revoke("job", old, number),
        lambda: store.start_run("shop", "job", TOPOLOGY, fence=old),
    ]
    for write in writes:
        with pytest.raises(FencedError, match="JOB_FENCED"):
            write()
    with pytest.raises(MetaError, match="FENCE_UNKNOWN"):
        store.abort("job", Fence(99), number)


def test_a_new_owner_finds_and_finishes_the_open_target(store: MetaStore) -> None:
    old = store.take_over("job")
    target = store.open_checkpoint("job", old, {ROOT: v(1)}, 7)
    store.record_version("job", old, target.number, VIEW, v("a"), FULL)
    new = store.take_over("job")
    assert store.open_target("job") == target
    assert store.versions_at(target.number) == {ROOT: v(1), VIEW: v("a")}
    store.record_version("job", new, target.number, VIEW, v("a"), FULL)
    store.record_version("job", new, target.number, TOP, v("t"), FULL)
    store.publish("job", new, target.number, 9)
    store.publish("job", new, target.number, 10)
    assert store.open_target("job") is None
    assert store.checkpoint(target.number).published_at_ms == 9
    assert len(store.history(VIEW)) == 1
    assert store.history(VIEW)[0].refresh == FULL


def test_reports_keep_the_newest_of_each_table(store: MetaStore) -> None:
    fence = store.take_over("job")
    store.report("job", fence, {ROOT: v(1), VIEW: v(1)})
    store.report("job", fence, {ROOT: v(2)})
    assert store.reported("job") == {ROOT: v(2), VIEW: v(1)}
    assert store.resolve(Consistency.WEAK, [ROOT]).versions == {ROOT: v(2)}


def test_one_target_at_a_time_and_numbers_only_grow(store: MetaStore) -> None:
    fence = store.take_over("job")
    opened = store.open_checkpoint("job", fence, {ROOT: v(1)}, 1)
    first = opened.number
    for roots, cut_at_ms, at_least in (({ROOT: v(2)}, 1, 0), ({ROOT: v(1)}, 2, 0), ({ROOT: v(1)}, 1, 9)):
        with pytest.raises(MetaError, match="CHECKPOINT_ALREADY_OPEN"):
            store.open_checkpoint("job", fence, roots, cut_at_ms, at_least=at_least)
    assert store.open_checkpoint("job", fence, {ROOT: v(1)}, 1) == opened
    store.abort("job", fence, first)
    store.abort("job", fence, first)
    second = store.open_checkpoint("job", fence, {ROOT: v(1)}, 1, at_least=500).number
    assert (first, second) == (1, 500)
    store.abort("job", fence, second)
    assert store.open_checkpoint("job", fence, {}, 1, at_least=3).number == 501


def test_publish_wants_a_word_about_each_dataset(store: MetaStore) -> None:
    fence = store.take_over("job")
    run(store, fence, 1, "r1", view="a", top="b")
    number = store.open_checkpoint("job", fence, {ROOT: v("r2")}, 2).number
    # The old intervals reach over the open target, yet nobody said that they hold for it.
    assert store.versions_at(number) == {ROOT: v("r2")}
    with pytest.raises(MetaError, match=r"CHECKPOINT_INCOMPLETE.*lake.db.top, lake.db.totals"):
        store.publish("job", fence, number, 3)
    store.record_version("job", fence, number, VIEW, v("a"), IDLE)
    store.record_failure("job", fence, number, TOP, unclassified("boom"), RefreshMode.INCREMENTAL)
    store.publish("job", fence, number, 3)
    assert store.versions_at(number) == {ROOT: v("r2"), VIEW: v("a")}
    assert store.failures_at(number) == {TOP: unclassified("boom")}


def test_an_unchanged_version_costs_no_row(store: MetaStore, backing: Backing) -> None:
    fence = store.take_over("job")
    run(store, fence, 1, "r", view="a", top="b")
    for cut in range(2, 30):
        number = store.open_checkpoint("job", fence, {ROOT: v("r")}, cut).number
        store.record_version("job", fence, number, VIEW, v("a"), IDLE)
        store.record_version("job", fence, number, TOP, v("b"), IDLE)
        store.publish("job", fence, number, cut)
    assert backing.execute("SELECT count(*) FROM versions") == 3
    assert backing.execute("SELECT count(*) FROM refreshes") == 2
    assert store.versions_at(17) == {ROOT: v("r"), VIEW: v("a"), TOP: v("b")}
    assert {s.mode for s in store.status() if s.dataset == VIEW} == {RefreshMode.NO_DATA}


def test_a_failure_makes_a_hole_and_a_repair_fills_it(store: MetaStore) -> None:
    fence = store.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    n2 = run(store, fence, 2, "r2", view="a2", top=None)
    n3 = run(store, fence, 3, "r3", view="a3", top=None)
    assert store.resolve(tables=[VIEW], only_named=True).checkpoint == n3
    # Its relative failed: separate queries of both must agree.
    assert store.resolve(tables=[VIEW]).checkpoint == n1
    assert store.resolve(tables=[VIEW]).behind == {TOP: "not complete at checkpoint 3: top broke"}
    both = store.resolve(tables=[VIEW, TOP])
    assert both.checkpoint == n1
    assert both.versions == {VIEW: v("a1"), TOP: v("t1")}
    assert both.behind == {TOP: f"not complete at checkpoint {n3}: top broke"}
    everything = store.resolve()
    assert everything.checkpoint == n1
    assert everything.behind == {TOP: f"not complete at checkpoint {n3}: top broke"}
    status = {s.dataset: s for s in store.status()}
    assert (status[TOP].checkpoint, status[TOP].error, status[TOP].lag_ms) == (n1, "top broke", 2)
    assert (status[VIEW].checkpoint, status[VIEW].error, status[VIEW].lag_ms) == (n3, None, 0)

    with pytest.raises(MetaError, match="CHECKPOINT_NOT_WRITABLE"):
        store.record_version("job", fence, n3, VIEW, v("other"), FULL)
    with pytest.raises(MetaError, match="CHECKPOINT_NOT_WRITABLE"):
        store.record_version("job", fence, n1, TOP, v("other"), FULL)
    store.record_version("job", fence, n3, TOP, v("t3"), FULL)
    store.record_version("job", fence, n3, TOP, v("t3"), FULL)
    assert store.resolve(tables=[VIEW, TOP]).versions == {VIEW: v("a3"), TOP: v("t3")}
    assert TOP not in store.versions_at(n2)
    store.record_version("job", fence, n2, TOP, v("t2"), FULL)
    assert store.versions_at(n2)[TOP] == "t2"
    assert store.versions_at(n3)[TOP] == "t3"
    assert [r.error for r in store.history(TOP)] == [None, None, "top broke", "top broke", None]


def test_abort_brings_the_old_versions_back(store: MetaStore) -> None:
    fence = store.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    n2 = store.open_checkpoint("job", fence, {ROOT: v("r2")}, 2).number
    store.record_version("job", fence, n2, VIEW, v("a2"), FULL)
    store.record_failure("job", fence, n2, TOP, unclassified("boom"))
    assert store.resolve(Consistency.WEAK, [VIEW]).versions == {VIEW: v("a2")}
    store.abort("job", fence, n2)
    assert store.versions_at(n2) == {}
    assert store.checkpoint(n2).state is CheckpointState.ABORTED
    assert store.resolve(Consistency.WEAK).versions == {ROOT: v("r1"), VIEW: v("a1"), TOP: v("t1")}
    n3 = store.open_checkpoint("job", fence, {ROOT: v("r2")}, 3).number
    store.record_version("job", fence, n3, VIEW, v("a3"), FULL)
    store.record_version("job", fence, n3, TOP, v("t1"), IDLE)
    store.publish("job", fence, n3, 4)
    assert store.versions_at(n1) == {ROOT: v("r1"), VIEW: v("a1"), TOP: v("t1")}
    assert store.versions_at(n3) == {ROOT: v("r2"), VIEW: v("a3"), TOP: v("t1")}


def test_why_a_checkpoint_cannot_be_read(store: MetaStore) -> None:
    fence = store.take_over("job")
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        store.resolve(tables=[TOP])
    with pytest.raises(CheckpointUnavailableError, match="no published checkpoint yet"):
        store.resolve()
    n1 = run(store, fence, 1, "r1", view="a1", top=None)
    n2 = run(store, fence, 2, "r2", view="a2", top="t2")
    n3 = run(store, fence, 3, "r3", view="a3", top="t3")
    n4 = store.open_checkpoint("job", fence, {ROOT: v("r4")}, 4).number
    store.expire(n2)
    store.revoke("job", fence, n3)
    for number, error_class in (
        (n2, "CHECKPOINT_EXPIRED"),
        (n3, "CHECKPOINT_REVOKED"),
        (n4, "CHECKPOINT_NOT_PUBLISHED"),
        (99, "CHECKPOINT_NOT_FOUND"),
    ):
        with pytest.raises(CheckpointUnavailableError) as caught:
            store.resolve(checkpoint=number)
        assert caught.value.error_class == error_class
    with pytest.raises(CheckpointUnavailableError, match=r"no version of every.*top broke"):
        store.resolve(checkpoint=n1, tables=[TOP])
    assert store.resolve(checkpoint=n1).behind.keys() == {TOP}
    assert store.resolve(tables=[VIEW]).checkpoint == n1
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_BEHIND_SESSION"):
        store.resolve(tables=[VIEW], at_least=n4)
    with pytest.raises(CheckpointUnavailableError, match=f"CHECKPOINT_REVOKED.*{n3}, which this session"):
        store.resolve(tables=[VIEW], at_least=n3)


def test_pins_hold_what_expiry_wants(store: MetaStore, clock: Clock) -> None:
    fence = store.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    pinned = store.resolve(checkpoint=n1, lease_ms=100, owner="me")
    with pytest.raises(MetaError, match="CHECKPOINT_PINNED"):
        store.expire(n1)
    store.release_pin(pinned.pin)
    with pytest.raises(MetaError, match="CHECKPOINT_NEEDED"):
        store.expire(n1)
    n2 = run(store, fence, 2, "r2", view="a2", top=None)
    with pytest.raises(MetaError, match="CHECKPOINT_NEEDED"):
        store.expire(n1)  # the last one that shows `top`
    n3 = run(store, fence, 3, "r3", view="a3", top="t3")
    pinned = store.resolve(checkpoint=n2, lease_ms=100, owner="me")
    assert store.pinned_checkpoints() == {n2}
    clock.now += 60
    store.renew_pin(pinned.pin, 100)
    clock.now += 60
    with pytest.raises(MetaError, match="CHECKPOINT_PINNED"):
        store.expire(n2)
    store.expire(n1)
    assert store.retained_versions()[VIEW] == {"a2", "a3"}
    clock.now += 60
    assert store.pinned_checkpoints() == frozenset()
    with pytest.raises(CheckpointUnavailableError, match="PIN_EXPIRED"):
        store.renew_pin(pinned.pin, 100)
    store.expire(n2)
    store.expire(n2)
    assert store.retained_versions() == {ROOT: {"r3"}, VIEW: {"a3"}, TOP: {"t3"}}
    assert store.resolve().checkpoint == n3


def test_topology_refresh_retires_and_brings_back(store: MetaStore) -> None:
    fence = store.take_over("job")
    n1 = run(store, fence, 1, "r1", view="a1", top="t1")
    store.start_run("shop", "job", TOPOLOGY[:2], fence=fence)
    assert [d.name for d in store.datasets()] == [ROOT, VIEW]
    n2 = store.open_checkpoint("job", fence, {ROOT: v("r2")}, 2).number
    store.record_version("job", fence, n2, VIEW, v("a2"), FULL)
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        store.record_version("job", fence, n2, TOP, v("t2"), FULL)
    store.publish("job", fence, n2, 3)
    assert TOP not in store.versions_at(n2)
    assert store.resolve().behind == {}
    assert store.resolve(tables=[TOP]).checkpoint == n1
    store.start_run("shop", "job", TOPOLOGY, fence=fence)
    assert store.resolve().behind == {TOP: f"not complete at checkpoint {n2}"}
    assert store.lineage(ROOT).downstream == {VIEW, TOP}
    assert store.lineage(TOP).inputs == {VIEW}
    assert store.lineage(TOP).upstream == {VIEW, ROOT}


def test_one_writer_per_dataset(store: MetaStore) -> None:
    with pytest.raises(MetaError, match="DATASET_OWNED_BY_ANOTHER_JOB"):
        store.start_run("other", "job2", TOPOLOGY[:1])
    with pytest.raises(MetaError, match="JOB_NAME_TAKEN"):
        store.start_run("other", "job", TOPOLOGY)


def test_two_jobs_share_one_line_of_numbers(store: MetaStore) -> None:
    other = TableName("lake", ("db",), "other")
    store.start_run("second", "two", [DatasetEntry(other, "materialized view", "d")])
    one, two = store.take_over("job"), store.take_over("two")
    run(store, one, 1, "r1", view="a1", top="t1")
    n2 = store.open_checkpoint("two", two, {}, 2).number
    store.record_version("two", two, n2, other, v("o2"), FULL)
    n3 = run(store, one, 3, "r3", view="a3", top="t3")
    # What `other` is at checkpoint 3 is only decided when its own target 2 is.
    with pytest.raises(CheckpointUnavailableError):
        store.resolve(tables=[VIEW, other])
    store.publish("two", two, n2, 4)
    both = store.resolve(tables=[VIEW, other])
    assert (both.checkpoint, both.versions) == (n3, {VIEW: v("a3"), other: v("o2")})
    assert store.latest_published("two") == store.checkpoint(n2)
    assert [c.number for c in store.checkpoints(2)] == [3, 2]


def test_external_tables_are_left_out_or_pinned_to_the_cut(store: MetaStore) -> None:
    fence = store.take_over("job")
    unknown, known = (TableName("lake", ("x",), name) for name in ("unknown", "known"))
    number = store.open_checkpoint("job", fence, {ROOT: v("r"), known: v("k")}, 1).number
    for name in (VIEW, TOP):
        store.record_version("job", fence, number, name, v("x"), FULL)
    store.publish("job", fence, number, 1)
    assert store.resolve(tables=[unknown, known]).versions == {known: v("k")}
    assert store.checkpoint(number).roots == {ROOT: v("r"), known: v("k")}


@pytest.mark.parametrize("consistency", list(Consistency))
def test_clocks_are_no_tables_of_the_lake(store: MetaStore, consistency: Consistency) -> None:
    clocks = {NOW: v(1_750_000_000_000_000), today("Asia/Tokyo"): v(20_254)}
    inputs = frozenset({ROOT, *clocks})
    store.start_run("shop", "job", (TOPOLOGY[0], DatasetEntry(VIEW, "materialized view", "b", inputs)))
    fence = store.take_over("job", at_least=Fence(0))
    store.report("job", fence, {ROOT: v("r1")})
    number = store.open_checkpoint("job", fence, {ROOT: v("r1"), **clocks}, 10).number
    store.record_version("job", fence, number, VIEW, v("v1"), FULL)
    store.publish("job", fence, number, 15)
    lake = {ROOT: v("r1"), VIEW: v("v1")}
    assert store.versions_at(number) == {**lake, **clocks}
    assert store.resolve(consistency=consistency).versions == lake
    # The reader's pin holds all that the checkpoint names, the lake keeps what lies in it.
    assert store.retained_versions() == {name: frozenset({version}) for name, version in lake.items()}
