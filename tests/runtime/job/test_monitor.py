"""What a run says of itself follows from its events, and outlives its process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.stores import Clock

from tautochrone.model import events
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.model.run_report import FlowFailure, FlowSource, RunReport, SourceKind, Work, WorkPhase
from tautochrone.model.source import KeptLog
from tautochrone.redaction import keep_secret
from tautochrone.runtime.job.monitor import RunMonitor

ORDERS = TableName("lake", ("db",), "orders")


def failed(flow: str = "orders") -> events.FlowFailed:
    return events.FlowFailed(flow=flow, dataset=str(ORDERS), error="away", hint=None, again_in_s=1.0)


def test_a_failing_flow_is_reported_until_it_makes_progress() -> None:
    clock = Clock(1_000)
    monitor = RunMonitor(now_ms=clock)
    monitor.take(failed())
    clock.now_ms = 9_000
    monitor.take(failed())
    report = monitor.new_report()
    assert report is not None
    assert report.flows == {
        "orders": FlowFailure(dataset=str(ORDERS), error="away", since_ms=1_000, attempts=2)
    }
    assert monitor.new_report() is None, "nothing is new"
    # The next run knows of it, and of no flow that it does not have.
    for flows, expected in ((["orders"], {"orders"}), (["others"], set())):
        following = RunMonitor(now_ms=clock)
        following.begin(report, flows, [ORDERS])
        taken_over = following.new_report()
        assert taken_over is not None
        assert taken_over.flows.keys() == expected
        following.made_progress("orders")
        mended = following.new_report()
        assert (mended.flows if mended else {}) == {}


def test_bad_records_are_counted_over_runs() -> None:
    clock = Clock(1_000)
    report = None
    for _ in range(2):
        monitor = RunMonitor(now_ms=clock)
        monitor.begin(report, [], [ORDERS])
        monitor.take(
            events.Quarantined(
                flow="orders",
                dataset=str(ORDERS),
                quarantine_table=f"{ORDERS}__quarantine",
                batch=1,
                records=3,
                first="offset 7",
                reason=unclassified("no number"),
            )
        )
        report = monitor.new_report()
        clock.now_ms += 1
    assert report is not None
    quarantine = report.quarantines[str(ORDERS)]
    assert (quarantine.records, quarantine.last_ms) == (6, 1_001)


def test_events_set_aside_are_shown_where_they_are() -> None:
    monitor = RunMonitor(now_ms=Clock(1_000))
    reason = Reason.of(ReasonCode.EVENTS_SET_ASIDE, events=2, table="lake.db.events")
    for _ in range(2):
        monitor.take(
            events.EventsSetAside(
                flow="orders", dataset=str(ORDERS), records=2, input="lake.db.events", reason=reason
            )
        )
    report = monitor.new_report()
    assert report is not None
    quarantine = report.quarantines[str(ORDERS)]
    assert (quarantine.table, quarantine.records, quarantine.reason) == ("lake.db.events", 4, reason)


def test_what_a_database_keeps_is_reported() -> None:
    kept = KeptLog(
        name="slot", is_own=True, distance_bytes=5, kept_bytes=7, is_lost=False, last_read=None, drop=""
    )
    warning = Reason.of(ReasonCode.LOG_KEPT_AT_SOURCE, slot="slot", kept_mb=7, bound_mb=9)
    monitor = RunMonitor(now_ms=Clock(1_000))
    monitor.take(
        events.LogKept(
            flow="log", dataset="lake.db.log", source="erp", phase="copying", lag={"bytes": 5}, lag_ms=70,
            kept=[kept], warnings=[warning],
        )
    )  # fmt: skip
    report = monitor.new_report()
    assert report is not None
    capture = report.captures["lake.db.log"]
    assert (capture.source, capture.phase, capture.lag_ms, capture.kept, capture.warnings) == (
        "erp",
        "copying",
        70,
        (kept,),
        (warning,),
    )


def test_only_the_last_lines_are_kept_and_the_disk_is_looked_at(tmp_path: Path) -> None:
    monitor = RunMonitor(str(tmp_path), now_ms=Clock(1_000))
    for attempt in range(40):
        monitor.take(
            events.FlowRestarted(
                flow=f"f{attempt}", dataset=str(ORDERS), attempt=1, reason=unclassified("now")
            )
        )
    report = monitor.new_report()
    assert report is not None
    assert len(report.lines) == 12
    assert report.lines[-1] == "1970-01-01 00:00:01   flow f39 started again (attempt 1)"
    assert report.disk is not None
    assert 0 < report.disk.free_bytes < report.disk.total_bytes


def source(flow: str, name: str, kind: SourceKind = SourceKind.TOPIC) -> FlowSource:
    return FlowSource(flow=flow, dataset=str(ORDERS), kind=kind, name=name)


def test_sources_of_flows_that_are_not_read_again_stay() -> None:
    monitor = RunMonitor(now_ms=Clock(1_000))
    before = [source(flow, "old") for flow in ("gone", "inside", "orders")]
    earlier = RunReport(sources=(*before, source("other", "o")))
    monitor.begin(earlier, ["inside", "orders", "other"], [ORDERS])
    # The flow `inside` now reads a table of the lake.
    monitor.reads(["inside", "orders"], [source("orders", "new"), source("orders", "also new")])
    report = monitor.new_report()
    assert report is not None
    assert report.sources == (source("orders", "also new"), source("orders", "new"), source("other", "o"))


def test_sources_have_no_secrets() -> None:
    keep_secret("a-very-secret-password")
    monitor = RunMonitor(now_ms=Clock(1_000))
    monitor.reads(
        ["orders"], [source("orders", "s3://user:a-very-secret-password@bucket/in", SourceKind.FILES)]
    )
    report = monitor.new_report()
    assert report is not None
    assert "a-very-secret-password" not in report.sources[0].name


def test_only_work_that_takes_more_than_a_moment_is_reported() -> None:
    clock = Clock(1_000)
    monitor = RunMonitor(now_ms=clock)
    monitor.new_report()

    def work() -> Work | None:
        report = monitor.new_report()
        return None if report is None else report.work

    for _ in range(3):
        # A short checkpoint costs no write.
        monitor.works(WorkPhase.REFRESHING, 7, 2)
        for dataset in ("a", "b"):
            monitor.refreshes(dataset)
            clock.now_ms += 900
            monitor.refreshed(dataset, 1)
        monitor.works(None)
        assert monitor.new_report() is None
    begun = clock.now_ms
    monitor.works(WorkPhase.REFRESHING, 8, 2)
    monitor.refreshes("a")
    clock.now_ms += 2_000
    monitor.refreshes("b")
    expected = Work(
        phase=WorkPhase.REFRESHING, since_ms=begun, checkpoint=8, total=2, refreshing={"a": begun}
    )
    assert work() == expected
    assert monitor.new_report() is None
    # A second call while it waits for other jobs goes on with it.
    monitor.works(WorkPhase.REFRESHING, 8, 2)
    monitor.refreshed("a", 1)
    # It waits for a bulk load, so that it has no outcome.
    monitor.refreshed("b", 1)
    assert work() == replace(expected, done=1, refreshing={})
    monitor.works(None)
    monitor.works(WorkPhase.REFRESHING, 8, 4, 3)
    clock.now_ms += 2_000
    after_a_wait = work()
    assert after_a_wait is not None
    assert (after_a_wait.done, after_a_wait.total) == (3, 4)
    monitor.works(WorkPhase.PUBLISHING, 8)
    report = monitor.new_report()
    assert report is not None
    assert report.work is None
