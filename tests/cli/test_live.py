"""The live display of a run: its state and the texts of events without a terminal; on a pseudo-terminal the
screen, the lines above it, the control sequences."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import Any

import pytest

from tautochrone.cli.live import Progress
from tautochrone.model import events
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.reason import unclassified

from .run_events import BY_KEY, EVENTS, FLOW_FAILED, FLOW_RESTARTED, REFRESH, refresh_failed
from .terminal import COLUMNS, ROWS, Screen, on_terminal


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


PLAYED = """
    import argparse, sys
    from tautochrone.cli.output import plain_listener, listening
    from tautochrone.model import events
    from tautochrone.model.checkpoint import CheckpointState, RefreshMode
    from tautochrone.model.reason import unclassified

    def play(*flags):
        arguments = argparse.Namespace(json="--json" in flags, quiet="--quiet" in flags)
        starting = events.Starting(pipeline="shop", master="local[2]")
        plain_listener(arguments)(starting)
        with listening(arguments, starting) as emit:
            names = ["lake.default.events", "lake.default.by_key"]
            names += [f"lake.default.v{i}" for i in range(MORE)]
            emit(events.Graph(datasets=[events.GraphDataset(dataset=name, kind="view") for name in names]))
            emit(events.Takeover(job="shop", fence=1))
            emit(events.Batch(dataset=names[0], flow="events", batch=0, rows=1203))
            print("a print of the user's code", file=sys.stderr)
            emit(events.Refresh(dataset=names[1], checkpoint=1, mode=RefreshMode.FULL,
                reason=unclassified("because " * 30), rows_inserted=7, rows_deleted=2, duration_ms=800,
                cpu_ms=None, estimate_ms=None, delta_rows=9, nodes=[], expectations=[]))
            emit(events.RefreshFailed(dataset=names[-1], checkpoint=1, hint=None,
                error=unclassified("[DIVIDE_BY_ZERO] Division by zero.")))
            emit(events.Checkpoint(checkpoint=1, state=CheckpointState.PUBLISHED, job="shop",
                failed=[names[-1]], duration_ms=900))
            emit(events.Recommit(dataset=names[0], rows=3, fence=1))
            emit(events.Run(state="FAILED", problems=names[-1:]))
"""


def play(*flags: str, more: int = 0, **environment: str) -> str:
    call = f"play({', '.join(map(repr, flags))})"
    return on_terminal(textwrap.dedent(PLAYED).replace("MORE", str(more)) + call, environment)


def test_last_frame_stays_below_scrolled_lines() -> None:
    sent = play()
    screen = Screen()
    screen.feed(sent)
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    assert lines[0] == "pipeline shop: starting Spark on local[2] (about 6 s)"
    assert lines[1] == "a print of the user's code"
    assert (
        lines[2].strip() == "lake.default.by_key FAILED at checkpoint 1: [DIVIDE_BY_ZERO] Division by zero."
    )
    assert lines[3] == "recommit: dataset=lake.default.events rows=3 fence=1"
    title, header, events, by_key = lines[4:]
    assert title.split()[:2] == ["shop", "FAILED"]
    assert title.endswith("checkpoint 1")
    assert header.split() == ["dataset", "mode", "rows", "lag", "took", "why"]
    assert events.split()[:3] == ["default.events", "INGEST", "+1,203"]
    assert by_key.split()[:4] == ["default.by_key", "FAILED", "+7", "-2"]
    assert by_key.endswith("[DIVIDE_BY_ZERO] Division by zero.")
    assert max(map(len, lines)) <= COLUMNS
    assert "\x1b[1;31m" in sent, "what failed is red"
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h") == 1, "the cursor comes back"


def test_no_color_removes_only_colours() -> None:
    sent = play(NO_COLOR="1")
    assert "\x1b[?25l" in sent
    colours = re.findall(r"\x1b\[[\d;]*(?:3|4|9)\d(?:;[\d;]*)?m", sent)
    assert not colours


def test_small_terminal_shows_broken_datasets_and_counts_the_rest() -> None:
    screen = Screen()
    screen.feed(play(more=40))
    lines = [line for line in screen.lines if line.strip()]
    assert any(
        re.match(r"default.by_key  FULL +\+7 -2 +[\d.]+ s +0.8 s  because .*…$", line) for line in lines
    )
    assert sum("default.v" in line and "FAILED" in line and "+0" in line for line in lines) == 1
    assert re.fullmatch(r"… and \d+ more", lines[-1].strip())
    picture = lines[next(i for i, line in enumerate(lines) if line.split()[:2] == ["shop", "FAILED"]) :]
    assert len(picture) < ROWS


@pytest.mark.parametrize(("flags", "term"), [((), "dumb"), (("--quiet",), "xterm"), (("--json",), "xterm")])
def test_no_display_when_quiet_json_or_dumb_terminal(flags: tuple[str, ...], term: str) -> None:
    sent = play(*flags, TERM=term)
    assert "\x1b" not in sent
    lines = sent.splitlines()
    if not flags:
        assert lines[-1] == "run FAILED"
        assert any("INGEST" not in line and "ingested +1,203 rows" in line for line in lines)
    elif flags == ("--quiet",):
        assert len(lines) == 2  # the print and the failure
    else:
        assert lines == ["a print of the user's code"]
