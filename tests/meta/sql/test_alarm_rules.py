"""Each rule fires once, by whoever evaluates, is over by itself, and survives a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import Backing

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.alarms import Alarm, AlarmLevel, AlarmLimits, AlarmRule
from tautochrone.model.checkpoint import BrokenInvariant, InvariantEntry, Refresh, RefreshMode
from tautochrone.model.jobs import JOB_LEASE_MS
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.model.run_report import (
    CaptureReport,
    DiskSpace,
    FlowFailure,
    Quarantine,
    RunEnd,
    RunReport,
)
from tautochrone.model.sink import Published, SinkDeclaration, TransactionId
from tautochrone.model.source import KeptLog

ORDERS, TOTALS = (TableName("lake", ("db",), table) for table in ("orders", "totals"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
GB, MINUTE_MS = 1024**3, 60_000
INVARIANT = InvariantEntry(name="sum", location="i/sum.sql:1", definition="d", tables=frozenset({TOTALS}))
KEPT = KeptLog(
    name="taut_1", is_own=True, distance_bytes=5, kept_bytes=5, is_lost=False, last_read=None, drop="SELECT 1"
)


class Plant:
    """A job with a stream, a view and a sink, which a test lets do well or badly."""

    def __init__(self, open_store: Callable[[Callable[[], int]], Store]) -> None:
        self.now_ms = 1_800_000_000_000
        self.store = open_store(lambda: self.now_ms)
        entries = [
            DatasetEntry(ORDERS, "streaming table", "a", is_root=True),
            DatasetEntry(TOTALS, "materialized view", "b", frozenset({ORDERS})),
        ]
        self.store.jobs.start_run("shop", "shop", entries, invariants=[INVARIANT])
        self.fence = self.store.jobs.take_over("shop")
        self.said = RunReport(interval_ms=5_000)
        self.number = self.checkpoint()
        mirror = SinkDeclaration(name="mirror", format="toy", tables=(TOTALS,))
        self.sink_fence = self.store.deliveries.claim("shop", self.fence, mirror, Fence(0))
        self.deliver()

    def checkpoint(self, failure: Reason | None = None, broken: bool = False) -> int:
        cut = NewCheckpoint({ORDERS: Version(str(self.now_ms))}, self.now_ms)
        number = self.store.checkpoints.open("shop", self.fence, cut).number
        if failure is not None:
            self.store.checkpoints.record_failure("shop", self.fence, number, TOTALS, failure)
        else:
            version = Version(f"{number}")
            self.store.checkpoints.record_version("shop", self.fence, number, TOTALS, version, FULL)
        if broken:
            invariant = BrokenInvariant(name="sum", location="i/sum.sql:1", rows=1, sample=("a=1",))
            self.store.checkpoints.abort("shop", self.fence, number, broken=[invariant])
        else:
            self.store.checkpoints.publish("shop", self.fence, number, self.now_ms)
        return number

    def deliver(self) -> None:
        newest = self.store.checkpoints.latest_published("shop")
        assert newest is not None
        transaction = TransactionId(
            incarnation=self.store.incarnation, sink="mirror", checkpoint=newest.number, fence=self.sink_fence
        )
        self.store.deliveries.record_delivered(
            "shop", self.fence, "mirror", self.sink_fence, Published(transaction=transaction)
        )

    def says(self, **parts: Any) -> None:
        self.said = replace(self.said, **parts)
        self.store.jobs.heartbeat("shop", self.fence, report=self.said)

    def passes(self, ms: int) -> None:
        """The run is alive for so long."""
        self.now_ms += ms
        self.store.jobs.heartbeat("shop", self.fence)

    def starts(self) -> None:
        self.fence = self.store.jobs.take_over("shop")

    def is_back(self) -> None:
        """A run has the job, and goes on."""
        self.starts()
        for _ in range(3):
            self.passes(14_000)

    def evaluate(self) -> list[AlarmRule]:
        """The rules of the open alarms, which are those that are so."""
        alarms = self.store.alarms.evaluate()
        assert self.store.alarms.current() == alarms == self.store.alarms.evaluate()
        assert all(alarm.id is not None and alarm.fired_at_ms is not None for alarm in alarms)
        return [alarm.rule for alarm in alarms]


@pytest.fixture
def plant(backing: Backing) -> Plant:
    return Plant(backing.open)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store, for copies: to create all tables takes as long as a test."""
    file = tmp_path_factory.mktemp("empty") / "meta.db"
    MetaStore.open(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def local_plant(empty_store: Path, tmp_path: Path) -> Iterator[Plant]:
    """One whose store is a file."""
    url = f"sqlite:///{shutil.copy(empty_store, tmp_path)}"
    plant = Plant(lambda clock: MetaStore.open(url, clock=clock))
    yield plant
    plant.store.close()


def killed(plant: Plant) -> None:
    plant.now_ms += JOB_LEASE_MS + 1


def ended_by_error(plant: Plant) -> None:
    plant.store.jobs.end_run("shop", plant.fence, RunEnd(error="No space left"))


def opened_for_long(plant: Plant) -> None:
    cut = NewCheckpoint({ORDERS: Version("new")}, plant.now_ms)
    plant.number = plant.store.checkpoints.open("shop", plant.fence, cut).number
    for _ in range(23):
        plant.passes(14_000)


def published_at_last(plant: Plant) -> None:
    plant.store.checkpoints.record_version("shop", plant.fence, plant.number, TOTALS, Version("n"), FULL)
    plant.store.checkpoints.publish("shop", plant.fence, plant.number, plant.now_ms)
    # The long one does not change how long checkpoints usually take.
    for _ in range(2):
        plant.checkpoint()
    plant.deliver()


def late(plant: Plant) -> None:
    plant.says(limits=AlarmLimits(dataset_late_ms=HOUR_MS))
    plant.store.jobs.end_run("shop", plant.fence, RunEnd())
    plant.now_ms += HOUR_MS + 1


def sink_away(plant: Plant) -> None:
    plant.checkpoint()
    plant.store.deliveries.record_failure("shop", plant.fence, "mirror", plant.sink_fence, "away", failures=9)
    for _ in range(23):
        plant.passes(14_000)


def sink_altered(plant: Plant) -> None:
    plant.store.deliveries.record_failure(
        "shop", plant.fence, "mirror", plant.sink_fence, "another wrote it", attention=True
    )


HOUR_MS = 60 * MINUTE_MS


def checked_in(plant: Plant) -> None:
    plant.checkpoint()
    plant.deliver()


CAPTURE = CaptureReport(source="erp", dataset="log", phase="streaming", kept=(KEPT,))
FLOW = FlowFailure(dataset=str(ORDERS), error="no broker", since_ms=7)
BAD = Quarantine(table=f"{ORDERS}__quarantine", records=3, reason=unclassified("no number"), last_ms=0)
Act = Callable[[Plant], object]


def expiring(at_ms: int) -> KeptLog:
    """Of a database that keeps its log for two minutes."""
    return replace(
        KEPT, kept_bytes=None, distance_bytes=None, expires_ms=at_ms, expires_after_ms=2 * MINUTE_MS
    )


RULES: dict[str, tuple[AlarmRule, Act, Act]] = {
    "killed": (AlarmRule.JOB_NOT_RUNNING, killed, Plant.is_back),
    "failed": (AlarmRule.JOB_NOT_RUNNING, ended_by_error, Plant.is_back),
    "stuck": (AlarmRule.CHECKPOINT_STUCK, opened_for_long, published_at_last),
    "view": (
        AlarmRule.DATASET_FAILING,
        lambda plant: (plant.checkpoint(unclassified("division by zero")), plant.deliver()),
        checked_in,
    ),
    "flow": (
        AlarmRule.DATASET_FAILING,
        lambda plant: plant.says(flows={"orders": FLOW}),
        lambda plant: plant.says(flows={}),
    ),
    "invariant": (
        AlarmRule.INVARIANT_BROKEN,
        lambda plant: plant.checkpoint(broken=True),
        checked_in,
    ),
    "late": (
        AlarmRule.DATASET_LATE,
        late,
        lambda plant: (plant.starts(), plant.checkpoint(), plant.deliver()),
    ),
    "sink": (AlarmRule.SINK_BEHIND, sink_away, Plant.deliver),
    "sink altered": (AlarmRule.SINK_BEHIND, sink_altered, Plant.deliver),
    "log": (
        AlarmRule.LOG_RETAINED,
        lambda plant: plant.says(
            captures={
                "log": CaptureReport(
                    source="erp", dataset="log", phase="streaming", kept=(replace(KEPT, kept_bytes=11 * GB),)
                )
            }
        ),
        lambda plant: plant.says(captures={"log": CAPTURE}),
    ),
    "log lost": (
        AlarmRule.LOG_RETAINED,
        lambda plant: plant.says(captures={"log": replace(CAPTURE, kept=(replace(KEPT, is_lost=True),))}),
        lambda plant: plant.says(captures={}),
    ),
    "log expires": (
        AlarmRule.LOG_RETAINED,
        lambda plant: plant.says(captures={"log": replace(CAPTURE, kept=(expiring(plant.now_ms + 59_000),))}),
        lambda plant: plant.says(captures={"log": replace(CAPTURE, kept=(expiring(plant.now_ms + 61_000),))}),
    ),
    "bad records": (
        AlarmRule.ROWS_QUARANTINED,
        lambda plant: plant.says(quarantines={str(ORDERS): replace(BAD, last_ms=plant.now_ms)}),
        lambda plant: [plant.passes(14_000) for _ in range(258)],
    ),
    "disk": (
        AlarmRule.DISK_SPACE,
        lambda plant: plant.says(disk=DiskSpace(path="/d", free_bytes=9 * GB, total_bytes=100 * GB)),
        lambda plant: plant.says(disk=DiskSpace(path="/d", free_bytes=21 * GB, total_bytes=1000 * GB)),
    ),
}


@pytest.mark.parametrize(("rule", "goes_wrong", "is_mended"), RULES.values(), ids=list(RULES))
def test_a_rule_fires_once_and_is_over_by_itself(
    local_plant: Plant, rule: AlarmRule, goes_wrong: Act, is_mended: Act
) -> None:
    plant = local_plant
    assert plant.evaluate() == []
    goes_wrong(plant)
    assert set(plant.evaluate()) == {rule}
    fired = {alarm.id for alarm in plant.store.alarms.current()}
    assert set(plant.evaluate()) == {rule}
    assert {alarm.id for alarm in plant.store.alarms.current()} == fired
    is_mended(plant)
    assert plant.evaluate() == []
    assert {alarm.id for alarm in plant.store.alarms.resolved()} == fired
    goes_wrong(plant)
    assert set(plant.evaluate()) == {rule}, "the next time it is another alarm"
    assert not {alarm.id for alarm in plant.store.alarms.current()} & fired


def test_two_evaluators_fire_an_alarm_once(backing: Backing, plant: Plant) -> None:
    other = backing.open(clock=lambda: plant.now_ms)
    for _ in range(5):
        killed(plant)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                first, second = pool.map(lambda store: store.alarms.evaluate(), (plant.store, other))
                assert [alarm.id for alarm in first] == [alarm.id for alarm in second]
        plant.is_back()
        assert plant.evaluate() == []
    assert len(plant.store.alarms.resolved()) == 5


def test_what_follows_from_a_job_that_is_down_fires_and_ends_nothing(
    local_plant: Plant,
) -> None:
    plant = local_plant
    killed(plant)
    assert plant.evaluate() == [AlarmRule.JOB_NOT_RUNNING]
    plant.now_ms += HOUR_MS
    assert plant.evaluate() == [AlarmRule.JOB_NOT_RUNNING]
    plant.is_back()
    sink_away(plant)
    assert plant.evaluate() == [AlarmRule.SINK_BEHIND]
    killed(plant)
    assert set(plant.evaluate()) == {AlarmRule.JOB_NOT_RUNNING, AlarmRule.SINK_BEHIND}


def test_a_sink_is_late_with_what_it_can_get(local_plant: Plant) -> None:
    """It shows all its tables at one instant, so it stays where one that fails stands."""
    plant = local_plant
    failure = Reason.of(ReasonCode.REFRESH_FAILED, error_class="DIVIDE_BY_ZERO", text="by zero")
    plant.checkpoint(failure)
    for _ in range(30):
        plant.passes(14_000)
    assert plant.evaluate() == [AlarmRule.DATASET_FAILING]
    plant.checkpoint()
    assert plant.evaluate() == []
    for _ in range(30):
        plant.passes(14_000)
    assert plant.evaluate() == [AlarmRule.SINK_BEHIND]
    plant.deliver()
    assert plant.evaluate() == []


def test_acknowledging(local_plant: Plant) -> None:
    plant = local_plant
    killed(plant)
    (alarm,) = plant.store.alarms.evaluate()
    assert alarm.id is not None
    plant.store.alarms.acknowledge(alarm.id, "ann")
    plant.now_ms += 1
    plant.store.alarms.acknowledge(alarm.id, "bob")
    (alarm,) = plant.store.alarms.evaluate()
    assert (alarm.acknowledged_by, alarm.acknowledged_at_ms) == ("ann", plant.now_ms - 1)
    plant.is_back()
    plant.store.alarms.evaluate()
    for number in (alarm.id or 0, 99):
        with pytest.raises(MetaError, match="ALARM_NOT_FOUND"):
            plant.store.alarms.acknowledge(number, "ann")
    (over,) = plant.store.alarms.resolved()
    assert (over.acknowledged_by, over.resolved_at_ms) == ("ann", plant.now_ms)


def test_each_message_has_one_sender_and_is_repeated_until_taken(backing: Backing, plant: Plant) -> None:
    def due(store: Store) -> list[tuple[str, int | None]]:
        return [(each.message, each.alarm.id) for each in store.alarms.claim_notifications("ops", MINUTE_MS)]

    other = backing.open(clock=lambda: plant.now_ms)
    killed(plant)
    (alarm,) = plant.store.alarms.evaluate()
    assert alarm.id is not None
    with ThreadPoolExecutor(2) as pool:
        claims = list(pool.map(due, (plant.store, other)))
    assert sorted(claims) == [[], [("fired", alarm.id)]]
    # The sender was killed: the message is due again after its lease.
    plant.now_ms += MINUTE_MS
    assert due(other) == [("fired", alarm.id)]
    plant.store.alarms.record_notified(alarm.id, "ops", "fired", "HTTP 500", attempts=1, retry_ms=5_000)
    assert due(other) == []
    plant.now_ms += 5_000
    assert due(other) == [("fired", alarm.id)]
    plant.store.alarms.record_notified(alarm.id, "ops", "fired")
    plant.now_ms += HOUR_MS
    assert due(other) == []
    plant.is_back()
    other.alarms.evaluate()
    assert due(plant.store) == [("resolved", alarm.id)]
    plant.store.alarms.record_notified(alarm.id, "ops", "resolved")
    # Of an alarm that was over before its first message nothing is sent.
    killed(plant)
    plant.store.alarms.evaluate()
    plant.is_back()
    plant.store.alarms.evaluate()
    plant.now_ms += HOUR_MS
    plant.is_back()
    assert due(plant.store) == []


def test_evidence_is_that_of_now(local_plant: Plant) -> None:
    plant = local_plant

    def only() -> Alarm:
        (alarm,) = plant.store.alarms.evaluate()
        return alarm

    plant.says(flows={"orders": FLOW})
    first = only()
    plant.says(flows={"orders": replace(FLOW, attempts=4)})
    assert only().id == first.id
    assert only().reason == Reason.of(ReasonCode.FLOW_FAILED, flow="orders", attempts=4, text="no broker")
    assert only().since_ms == 7
    assert only().command == "taut status db.orders --history"


def test_a_command_that_owns_the_job_for_a_while_leaves_it_down(local_plant: Plant) -> None:
    plant = local_plant
    for goes_down in (killed, ended_by_error):
        goes_down(plant)
        (alarm,) = plant.store.alarms.evaluate()
        for _ in range(2):
            # As `taut maintain` does.
            plant.starts()
            plant.store.jobs.end_run("shop", plant.fence)
            plant.now_ms += 60_000
        assert [each.rule for each in plant.store.alarms.evaluate()] == [AlarmRule.JOB_NOT_RUNNING]
        assert alarm.rule is AlarmRule.JOB_NOT_RUNNING
        plant.starts()
        plant.store.jobs.end_run("shop", plant.fence, RunEnd())
        assert plant.evaluate() == []
        plant.starts()


def test_a_run_that_fails_again_and_again_is_one_alarm(local_plant: Plant) -> None:
    plant = local_plant
    for round_ in range(4):
        ended_by_error(plant)
        assert plant.evaluate() == [AlarmRule.JOB_NOT_RUNNING]
        plant.now_ms += 5_000
        if round_ % 2:
            plant.store.jobs.record_failed_start("shop", RunEnd(error="it does not load"))
            assert plant.evaluate() == [AlarmRule.JOB_NOT_RUNNING]
        plant.starts()
        plant.passes(5_000)
        assert plant.evaluate() == [AlarmRule.JOB_NOT_RUNNING]
    plant.is_back()
    assert plant.evaluate() == []
    assert len(plant.store.alarms.resolved()) == 1


def test_of_two_captures_of_a_database_the_worse_counts(plant: Plant) -> None:
    lost = replace(CAPTURE, dataset="a", kept=(replace(KEPT, is_lost=True),))
    warned = replace(CAPTURE, dataset="b", warnings=(unclassified("fills its disk"),))
    for captures in ({"a": lost, "b": warned}, {"a": warned, "b": lost}):
        plant.says(captures=captures)
        (alarm,) = plant.store.alarms.evaluate()
        assert (alarm.rule, alarm.level) == (AlarmRule.LOG_RETAINED, AlarmLevel.CRITICAL)


def test_the_age_of_a_log_goes_on_after_the_end_of_a_run(local_plant: Plant) -> None:
    plant = local_plant
    plant.says(captures={"log": replace(CAPTURE, kept=(expiring(plant.now_ms + 2 * MINUTE_MS),))})
    plant.store.jobs.end_run("shop", plant.fence)
    assert plant.evaluate() == []
    plant.now_ms += MINUTE_MS + 1
    (alarm,) = plant.store.alarms.evaluate()
    assert (alarm.rule, alarm.level) == (AlarmRule.LOG_RETAINED, AlarmLevel.CRITICAL)
    assert "keeps it for 0.0333333 hours" in str(alarm.reason)
