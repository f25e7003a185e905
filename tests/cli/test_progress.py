"""The state of the live display and the text of each event, without a terminal and without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tautochrone.cli.events import failures, json_events, line_events
from tautochrone.cli.progress import Progress
from tautochrone.model import events
from tautochrone.model.checkpoint import CheckpointState, RefreshMode
from tautochrone.model.reason import Reason, ReasonCode, unclassified

EVENTS = "lake.default.events"
BY_KEY = "lake.default.by_key"
REFRESH = events.Refresh(
    dataset=BY_KEY,
    checkpoint=1,
    mode=RefreshMode.INCREMENTAL,
    reason=unclassified("cheaper"),
    nodes=(),
    rows_inserted=1203,
    rows_deleted=17,
    duration_ms=800,
    cpu_ms=None,
    estimate_ms=None,
    delta_rows=1220,
    expectations=(),
)
FLOW_FAILED = events.FlowFailed(
    flow="events", dataset=EVENTS, error="[X] gone.", hint="bring it back", again_in_s=4.0
)
FLOW_RESTARTED = events.FlowRestarted(
    flow="events", dataset=EVENTS, attempt=2, reason=Reason.of(ReasonCode.RESTART_WAIT_OVER, wait_s=4)
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> Progress:
    progress_of_run = Progress(clock)
    progress_of_run.take(events.Starting(pipeline="shop", master="local[2]"))
    datasets = [
        events.GraphDataset(dataset=EVENTS, kind="streaming table"),
        events.GraphDataset(dataset=BY_KEY, kind="materialized view"),
    ]
    progress_of_run.take(events.Graph(datasets=datasets))
    return progress_of_run


def part(**fields: Any) -> events.Checkpoint:
    open_part = events.Checkpoint(
        checkpoint=4, state=CheckpointState.OPEN, job="shop", failed=[], duration_ms=500
    )
    return replace(open_part, **fields)


def checkpoint(progress: Progress, *failed: str, took_ms: int = 500) -> None:
    progress.take(part(checkpoint=1, state=CheckpointState.PUBLISHED, failed=failed, duration_ms=took_ms))


def refresh_failed(error: str, checkpoint: int = 2) -> events.RefreshFailed:
    return events.RefreshFailed(dataset=BY_KEY, checkpoint=checkpoint, error=unclassified(error), hint=None)


def test_rows_add_up_over_the_run(progress: Progress) -> None:
    for rows in (10, 5):
        progress.take(events.Batch(dataset=EVENTS, flow="events", batch=0, rows=rows))
    progress.take(REFRESH)
    progress.take(REFRESH)
    flow, by_key = progress.lines.values()
    assert (flow.name, flow.mode, flow.inserted) == ("default.events", "INGEST", 15)
    assert (by_key.mode, by_key.inserted, by_key.deleted, by_key.took_s) == ("INCREMENTAL", 2406, 34, 0.8)


def test_lag_is_the_age_of_what_readers_see(progress: Progress, clock: Clock) -> None:
    table = progress.lines[EVENTS]
    assert progress.lag_s(table) is None
    checkpoint(progress, took_ms=500)
    clock.now += 2
    # The cut was taken before the refreshes, which took half a second.
    assert progress.lag_s(table) == 2.5
    progress.take(events.NoNews(checkpoint=1, duration_ms=3))
    clock.now += 1
    assert progress.lag_s(table) == 1


def test_lag_of_a_failed_dataset_grows_until_it_succeeds(progress: Progress, clock: Clock) -> None:
    by_key = progress.lines[BY_KEY]
    checkpoint(progress, took_ms=0)
    clock.now += 3
    progress.take(refresh_failed("[DIVIDE_BY_ZERO] x"))
    checkpoint(progress, BY_KEY, took_ms=0)
    progress.take(events.NoNews(checkpoint=1, duration_ms=3))
    assert by_key.broken
    assert progress.lag_s(by_key) == 3
    assert progress.lag_s(progress.lines[EVENTS]) == 0
    progress.take(REFRESH)
    checkpoint(progress, took_ms=0)
    assert not by_key.broken
    assert progress.lag_s(by_key) == 0


def test_failed_flow_marks_its_table_until_it_recovers(progress: Progress) -> None:
    table = progress.lines[EVENTS]
    progress.take(FLOW_FAILED)
    checkpoint(progress)
    assert table.broken
    assert progress.lag_s(table) is None
    progress.take(FLOW_RESTARTED)
    assert table.broken
    assert "attempt 2" in table.note
    progress.take(events.FlowRecovered(flow="events", dataset=EVENTS, attempts=2))
    assert not table.broken


def test_times_stop_after_the_end(progress: Progress, clock: Clock) -> None:
    checkpoint(progress, took_ms=0)
    progress.take(events.Run(state="COMPLETED", problems=[]))
    clock.now += 60
    assert progress.phase == "COMPLETED"
    assert progress.elapsed_s == 0
    assert progress.lag_s(progress.lines[EVENTS]) == 0


def test_events_that_no_line_shows_change_nothing(progress: Progress) -> None:
    before = dict(progress.lines)
    progress.take(events.Recommit(dataset=EVENTS, rows=3, fence=1))
    assert progress.lines == before


def test_texts_of_events(capsys: pytest.CaptureFixture[str]) -> None:
    line_events(REFRESH)
    line_events(events.NoNews(checkpoint=1, duration_ms=3))
    line_events(FLOW_FAILED)
    line_events(FLOW_RESTARTED)
    text = capsys.readouterr()
    assert text.out == ""
    refresh, flow, hint, again, restarted = text.err.splitlines()
    assert refresh.split() == [
        "default.by_key",
        "INCREMENTAL",
        "+1,203",
        "-17",
        "rows",
        "0.8",
        "s",
        "(cheaper)",
    ]
    assert flow.strip() == "flow events FAILED: [X] gone."
    assert hint.strip() == "hint: bring it back"
    assert again.strip() == "it is started again in 4 s"
    assert restarted.strip() == "flow events started again (attempt 2)"


def test_quiet_shows_only_failures(capsys: pytest.CaptureFixture[str]) -> None:
    failures(REFRESH)
    failures(events.Run(state="FAILED", problems=[BY_KEY]))
    failures(refresh_failed("[X] y."))
    text = capsys.readouterr()
    assert text.out == ""
    assert text.err.strip() == f"{BY_KEY} FAILED at checkpoint 2: [X] y."


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_events(events.CleanupFailed(dataset=BY_KEY, error="two\nlines é"))
    text = capsys.readouterr()
    assert text.err == ""
    assert [json.loads(line) for line in text.out.splitlines()] == [
        {"event": "cleanup_failed", "dataset": BY_KEY, "error": "two\nlines é"}
    ]


def test_completed_part_is_not_published(progress: Progress, clock: Clock) -> None:
    checkpoint(progress)
    clock.now += 10
    progress.take(part(waits_for=["sums"]))
    assert progress.checkpoint == 1
    (line, _) = progress.lines.values()
    assert progress.lag_s(line) == 10.5, "readers still see the last published checkpoint"
    assert progress.phase == "part of checkpoint 4 done, waiting for sums"
    clock.now += 2
    progress.take(events.CheckpointPublished(checkpoint=4, state=CheckpointState.PUBLISHED))
    assert (progress.checkpoint, progress.phase) == (4, "running")
    assert progress.lag_s(line) == 2.5
    progress.take(part(checkpoint=5, waits_for=["sums"]))
    progress.take(
        events.CheckpointHeld(
            checkpoint=5,
            state=CheckpointState.PARTIAL,
            jobs=[],
            invariants=["same"],
            reason=unclassified("invariant same"),
        )
    )
    assert (progress.checkpoint, progress.phase) == (4, "checkpoint 5 not shown: invariant same")


def test_text_of_a_checkpoint_that_is_not_published() -> None:
    text = "checkpoint 4: this job's part is done in 0.5 s; not published yet"
    partial = CheckpointState.PARTIAL
    waits = part(waits_for=["sums", "joins"]).text()
    assert waits == f"{text} (waits for job sums; waits for job joins)"
    assert part(state=partial, invariants=["same"]).text() == f"{text} (held back by invariant same)"
    assert part(state=partial, skipped_by=["sums"]).text() == f"{text} (job sums skipped it)"
    assert part(state=CheckpointState.PUBLISHED).text() == "checkpoint 4 published in 0.5 s"


def test_unreadable_checkpoint_is_shown_with_failures(capsys: pytest.CaptureFixture[str]) -> None:
    failures(
        events.CheckpointLeft(
            checkpoint=None,
            error_class="CHECKPOINT_NOT_READABLE",
            job="shop",
            jobs=["sums"],
            invariants=[],
            reason=unclassified("job sums isn't running"),
        )
    )
    text = capsys.readouterr().err
    assert "[CHECKPOINT_NOT_READABLE]" in text
    assert "job sums isn't running" in text


def test_a_wait_for_another_run_is_shown(progress: Progress) -> None:
    reason = "Job shop is run by process 7 on host a; no checkpoint of it is open"
    waiting = events.WaitingForRun(
        job="shop",
        owner="7@a",
        host="a",
        pid=7,
        since_ms=None,
        wait_ms=None,
        checkpoint=None,
        reason=unclassified(reason),
    )
    progress.take(waiting)
    assert progress.phase == waiting.text() == f"waiting: {reason}"


def test_sinks_and_reasons_are_readable() -> None:
    reason = "the server is busy"
    assert events.SinkWaiting(sink="mirror", reason=unclassified(reason)).text() == (
        f"  {'sink mirror':<32} sink waiting: {reason}"
    )
    failed = events.SinkFailed(
        sink="mirror", error="no answer", error_class="X", hint="look", failures=2, retry_in_ms=1500
    )
    assert failed.text() == (
        "  sink mirror FAILED 2 times in a row: no answer\n    hint: look\n    it is tried again in 1.5 s"
    )
    assert replace(failed, failures=1, retry_in_ms=None).text().endswith("cannot help")
    delivered = events.SinkDelivered(
        sink="mirror",
        checkpoint=3,
        since=None,
        rows=1200,
        replaced={BY_KEY: "new"},
        replaced_reasons=[],
        left_to_spark=[],
        compared=[],
        duration_ms=400,
    )
    assert delivered.text() == (
        f"  sink mirror: checkpoint 3 delivered, 1,200 rows  0.4 s\n    {BY_KEY.partition('.')[2]}: new"
    )
