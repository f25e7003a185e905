"""The live display on a pseudo-terminal: the screen, the lines above it, the control sequences."""

from __future__ import annotations

import re
import textwrap

import pytest

from .terminal import COLUMNS, ROWS, Screen, on_terminal

PLAYED = """
    import argparse, sys
    from tautochrone.cli.listen import plain_listener, listening
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
