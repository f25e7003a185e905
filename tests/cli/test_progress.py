"""The state of the live display and the text of each event, without a terminal and without Spark."""

from __future__ import annotations

import json

import pytest

from tautochrone.cli.events import describe, failures, json_events, line_events
from tautochrone.cli.progress import Progress

EVENTS = "lake.default.events"
BY_KEY = "lake.default.by_key"
REFRESH = {
    "dataset": BY_KEY,
    "checkpoint": 1,
    "mode": "incremental",
    "reason": "cheaper",
    "rows_inserted": 1203,
    "rows_deleted": 17,
    "duration_ms": 800,
}


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
    progress_of_run.take("starting", {"pipeline": "shop", "master": "local[2]"})
    datasets = [
        {"dataset": EVENTS, "kind": "streaming table"},
        {"dataset": BY_KEY, "kind": "materialized view"},
    ]
    progress_of_run.take("graph", {"datasets": datasets})
    return progress_of_run


def checkpoint(progress: Progress, *failed: str, took_ms: int = 500) -> None:
    progress.take("checkpoint", {"checkpoint": 1, "failed": list(failed), "duration_ms": took_ms})


def test_rows_add_up_over_the_run(progress: Progress) -> None:
    for rows in (10, 5):
        progress.take("batch", {"dataset": EVENTS, "flow": "events", "batch": 0, "rows": rows})
    progress.take("refresh", REFRESH)
    progress.take("refresh", REFRESH)
    events, by_key = progress.lines.values()
    assert (events.name, events.mode, events.inserted) == ("default.events", "INGEST", 15)
    assert (by_key.mode, by_key.inserted, by_key.deleted, by_key.took_s) == ("INCREMENTAL", 2406, 34, 0.8)


def test_lag_is_the_age_of_what_readers_see(progress: Progress, clock: Clock) -> None:
    events = progress.lines[EVENTS]
    assert progress.lag_s(events) is None
    checkpoint(progress, took_ms=500)
    clock.now += 2
    # The cut was taken before the refreshes, which took half a second.
    assert progress.lag_s(events) == 2.5
    progress.take("no_news", {"checkpoint": 1})
    clock.now += 1
    assert progress.lag_s(events) == 1


def test_lag_of_a_failed_dataset_grows_until_it_succeeds(progress: Progress, clock: Clock) -> None:
    by_key = progress.lines[BY_KEY]
    checkpoint(progress, took_ms=0)
    clock.now += 3
    progress.take("refresh_failed", {"dataset": BY_KEY, "checkpoint": 2, "error": "[DIVIDE_BY_ZERO] x"})
    checkpoint(progress, BY_KEY, took_ms=0)
    progress.take("no_news", {"checkpoint": 1})
    assert by_key.broken
    assert progress.lag_s(by_key) == 3
    assert progress.lag_s(progress.lines[EVENTS]) == 0
    progress.take("refresh", REFRESH)
    checkpoint(progress, took_ms=0)
    assert not by_key.broken
    assert progress.lag_s(by_key) == 0


def test_failed_flow_marks_its_table_until_it_recovers(progress: Progress) -> None:
    events = progress.lines[EVENTS]
    progress.take("flow_failed", {"dataset": EVENTS, "flow": "events", "error": "gone"})
    checkpoint(progress)
    assert events.broken
    assert progress.lag_s(events) is None
    flow = {"dataset": EVENTS, "flow": "events"}
    progress.take("flow_restarted", {**flow, "attempt": 2, "reason": "gone"})
    assert events.broken
    assert "attempt 2" in events.note
    progress.take("flow_recovered", {**flow, "attempts": 2})
    assert not events.broken


def test_times_stop_after_the_end(progress: Progress, clock: Clock) -> None:
    checkpoint(progress, took_ms=0)
    progress.take("run", {"state": "COMPLETED", "problems": []})
    clock.now += 60
    assert progress.phase == "COMPLETED"
    assert progress.elapsed_s == 0
    assert progress.lag_s(progress.lines[EVENTS]) == 0


def test_unknown_events_change_nothing_and_are_shown_with_all_fields(progress: Progress) -> None:
    before = dict(progress.lines)
    progress.take("volcano_erupted", {"dataset": EVENTS})
    assert progress.lines == before
    text = describe("volcano_erupted", {"dataset": EVENTS, "lava": 3, "nothing": None})
    assert text == f"volcano erupted: dataset={EVENTS} lava=3"


def test_known_events_with_other_fields_are_shown_with_all_fields() -> None:
    assert describe("refresh", {"dataset": BY_KEY, "mode": "full"}) == f"refresh: dataset={BY_KEY} mode=full"
    assert describe("batch", {"dataset": BY_KEY, "rows": "many", "batch": 1}).startswith("batch: dataset=")


def test_texts_of_events(capsys: pytest.CaptureFixture[str]) -> None:
    line_events("refresh", **REFRESH)
    line_events("no_news", checkpoint=1)
    line_events("flow_failed", flow="events", error="[X] gone.", hint="bring it back", again_in_s=4.0)
    line_events("flow_restarted", flow="events", attempt=2)
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
    failures("refresh", **REFRESH)
    failures("run", state="FAILED", problems=[BY_KEY])
    failures("refresh_failed", dataset=BY_KEY, checkpoint=2, error="[X] y.")
    text = capsys.readouterr()
    assert text.out == ""
    assert text.err.strip() == f"{BY_KEY} FAILED at checkpoint 2: [X] y."


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_events("refresh_failed", dataset=BY_KEY, error="two\nlines é")
    text = capsys.readouterr()
    assert text.err == ""
    assert [json.loads(line) for line in text.out.splitlines()] == [
        {"event": "refresh_failed", "dataset": BY_KEY, "error": "two\nlines é"}
    ]


def part(**fields: object) -> dict[str, object]:
    known = {"checkpoint": 4, "state": "open", "failed": [], "duration_ms": 500}
    return known | {"waits_for": [], "skipped_by": [], "invariants": []} | fields


def test_completed_part_is_not_published(progress: Progress, clock: Clock) -> None:
    checkpoint(progress)
    clock.now += 10
    progress.take("checkpoint", part(waits_for=["sums"]))
    assert progress.checkpoint == 1
    (line, _) = progress.lines.values()
    assert progress.lag_s(line) == 10.5, "readers still see the last published checkpoint"
    assert progress.phase == "part of checkpoint 4 done, waiting for sums"
    clock.now += 2
    progress.take("checkpoint_published", {"checkpoint": 4, "state": "published"})
    assert (progress.checkpoint, progress.phase) == (4, "running")
    assert progress.lag_s(line) == 2.5
    progress.take("checkpoint", part(checkpoint=5, waits_for=["sums"]))
    progress.take("checkpoint_held", {"checkpoint": 5, "reason": "invariant same"})
    assert (progress.checkpoint, progress.phase) == (4, "checkpoint 5 not shown: invariant same")


def test_text_of_a_checkpoint_that_is_not_published() -> None:
    text = "checkpoint 4: this job's part is done in 0.5 s; not published yet"
    assert describe("checkpoint", part(waits_for=["sums", "joins"])) == (
        f"{text} (waits for job sums; waits for job joins)"
    )
    assert describe("checkpoint", part(state="partial", invariants=["same"])) == (
        f"{text} (held back by invariant same)"
    )
    assert (
        describe("checkpoint", part(state="partial", skipped_by=["sums"])) == f"{text} (job sums skipped it)"
    )
    assert describe("checkpoint", part(state="published")) == "checkpoint 4 published in 0.5 s"


def test_unreadable_checkpoint_is_shown_with_failures(capsys: pytest.CaptureFixture[str]) -> None:
    left = {"error_class": "CHECKPOINT_NOT_READABLE", "reason": "job sums isn't running"}
    failures("checkpoint_left", **left)
    text = capsys.readouterr().err
    assert "[CHECKPOINT_NOT_READABLE]" in text
    assert "job sums isn't running" in text


def test_a_wait_for_another_run_is_shown(progress: Progress) -> None:
    reason = "Job shop is run by process 7 on host a; no checkpoint of it is open"
    progress.take("waiting_for_run", {"reason": reason})
    assert progress.phase == f"waiting: {reason}"
    assert describe("waiting_for_run", {"reason": reason}) == f"waiting: {reason}"


def test_sinks_and_reasons_are_readable() -> None:
    reason = "the server is busy"
    assert describe("sink_waiting", {"sink": "mirror", "reason": reason, "reason_code": "X"}) == (
        f"  {'sink mirror':<32} sink waiting: {reason}"
    )
    failed = {"sink": "mirror", "error": "no answer", "hint": "look", "failures": 2, "retry_in_ms": 1500}
    assert describe("sink_failed", failed) == (
        "  sink mirror FAILED 2 times in a row: no answer\n    hint: look\n    it is tried again in 1.5 s"
    )
    assert describe("sink_failed", failed | {"failures": 1, "retry_in_ms": None}).endswith("cannot help")
    delivered = {
        "sink": "mirror",
        "checkpoint": 3,
        "rows": 1200,
        "duration_ms": 400,
        "replaced": {BY_KEY: "new"},
    }
    assert describe("sink_delivered", delivered) == (
        f"  sink mirror: checkpoint 3 delivered, 1,200 rows  0.4 s\n    {BY_KEY.partition('.')[2]}: new"
    )
