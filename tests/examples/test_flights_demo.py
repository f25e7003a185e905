"""The demo with a `taut` that only prints events: it must notice every problem."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples.flights import child, demo
from examples.flights.checks import TIE_OUT
from examples.flights.clickhouse import BY_HOUR, Chart, Hour
from examples.flights.foreign_readers import DEPARTURES, Published

import tautochrone
from tautochrone.model.query import Query

TALKER = """
import json, signal, sys, time

def tell(**event):
    print(json.dumps(event), flush=True)

behaviour, command = sys.argv[1:3]
if command == "verify":
    for number in range(7):
        tell(dataset=f"lake.default.v{number}", checkpoint=9, equal=behaviour != "different")
    sys.exit(behaviour == "different")
if behaviour == "breaks":
    tell(event="run", state="FAILED")
    sys.exit(1)
fell = behaviour == "compares"
reason = "following the change failed: x" if fell else "first"
code = "INCREMENTAL_FAILED" if fell else "FIRST_BUILD"
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
checkpoint = 0
while True:
    checkpoint += 1
    tell(event="refresh", dataset="lake.default.flights", checkpoint=checkpoint, mode="diff",
         nodes=[], reason=reason, reason_code=code, rows_inserted=1, rows_deleted=0, duration_ms=5)
    tell(event="checkpoint", checkpoint=checkpoint)
    if stopped or (behaviour == "ends" and checkpoint == 4):
        break
    time.sleep(0.1)
tell(event="run", state="COMPLETED")
"""


class Rows(list[dict[str, Any]]):
    """The part of an Arrow table that the demo uses."""

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(self)


class Reader:
    """Answers from the input folder; `lost` reports are missing from one table or from all."""

    def __init__(self, folder: Path, lost: int, everywhere: bool) -> None:
        self._folder, self._lost, self._everywhere = folder, lost, everywhere

    def write_token(self) -> str:
        return "w1"

    def arrow(self, query: Query) -> Any:
        assert query.after == "w1"
        return SimpleNamespace(rows=self.sql(query.sql), checkpoint=99)

    def sql(self, query: str, checkpoint: int | None = None) -> Rows:
        if query == TIE_OUT:
            files = (self._folder / "events").glob("*.json")
            sent = sum(file.read_bytes().count(b"\n") for file in files)
            names = ("events", "flights", "daily_totals", "by_carrier_hour", "by_weather")
            lost = {name: self._lost if self._everywhere or name == "flights" else 0 for name in names}
            return Rows(
                {"dataset": name, "reports": sent - lost[name], "departure_delay": 0, "arrival_delay": 0}
                for name in names
            )
        assert checkpoint == 99
        if query == DEPARTURES:
            return Rows([{"hour": 5, "departed": 2 - self._lost}])
        if query == BY_HOUR:
            return Rows([{"hour": 5, "flights": 2, "minutes": 10 - self._lost}])
        return Rows()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the demo with a script of some behaviour as `taut`, and a reader that lost some reports."""
    script = tmp_path / "talker.py"
    script.write_text(TALKER)
    work = tmp_path / "work"

    def perform(
        *arguments: str,
        behaviour: str = "good",
        lost: int = 0,
        everywhere: bool = False,
        replay_s: float | None = 0.3,
    ) -> int:
        """With a replay that writes one file and lives so long, or until a run that was killed is back; None:
        with that of the demo."""
        replays: list[subprocess.Popen[bytes]] = []
        restart = demo.Demo.restart

        def start_replay(demonstration: demo.Demo) -> subprocess.Popen[bytes]:
            (demonstration.input / "events" / "1.json").write_text("{}\n" * 5)
            command = [sys.executable, "-c", f"import time; time.sleep({replay_s})"]
            replays.append(subprocess.Popen(command))
            return replays[0]

        def restart_run(demonstration: demo.Demo, killed: child.Run) -> child.Run:
            run = restart(demonstration, killed)
            while run.alive and not run.modes:
                time.sleep(0.02)
            replays[0].kill()
            return run

        if replay_s is not None:
            monkeypatch.setattr(demo.Demo, "start_replay", start_replay)
            monkeypatch.setattr(demo.Demo, "restart", restart_run)
        command = [sys.executable, str(script), behaviour]
        monkeypatch.setattr(child, "taut", lambda *arguments_of_taut: [*command, *arguments_of_taut])

        @contextmanager
        def connect(spec: Path, *, own_spark: bool = True) -> Iterator[Reader]:
            yield Reader(work / "input", lost, everywhere)

        monkeypatch.setattr(tautochrone, "connect", connect, raising=False)
        monkeypatch.setattr(demo, "chart", lambda _: Chart(99, [Hour((5, 2, 10 - lost), "███")]))
        published = [Published("deltalake", "3", Counter([(5, 2)]))]
        monkeypatch.setattr(demo, "published", lambda _, __: published)
        monkeypatch.setattr(demo, "WORK", work)
        monkeypatch.setattr(demo, "ASK_EVERY_SECONDS", 0.1)
        for variable in ("FLIGHTS_INPUT", "FLIGHTS_CLICKHOUSE"):
            monkeypatch.setenv(variable, "restored afterwards")
        return demo.main(["--days", "1", "--seconds", "1", *arguments])

    return perform


def test_demo_reports_success(stage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage(replay_s=None) == 0
    output = capsys.readouterr().out
    assert "5 tables agree" in output
    assert output.count("verify ") == 7
    assert "5 h    5.0  ███" in output
    assert "the same 1 rows" in output
    assert "everything ties out" in output


@pytest.mark.crash
def test_a_kill_in_the_middle(stage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage("--kill", replay_s=60) == 0
    assert capsys.readouterr().out.count("kill -9") == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"behaviour": "breaks"}, "no checkpoint before the run ended"),
        ({"behaviour": "different"}, "verify: exit code 1"),
        ({"behaviour": "compares"}, "flights was compared: following the change failed: x"),
        ({"behaviour": "ends"}, "the run ended by itself: COMPLETED"),
        ({"lost": 3}, "does not tie out"),
        ({"lost": 3, "everywhere": True}, "reports were sent"),
    ],
)
def test_demo_reports_problems(
    stage: Any, capsys: pytest.CaptureFixture[str], options: dict[str, Any], complaint: str
) -> None:
    assert stage(**options) == 1
    assert complaint in capsys.readouterr().out


@pytest.mark.parametrize(
    ("checkpoint", "minutes", "problems"),
    [
        (2, 10, []),
        (2, 11, ["ClickHouse and the lake differ at checkpoint 2"]),
        (1, 10, ["ClickHouse shows checkpoint 1, the lake 2"]),
    ],
)
def test_the_chart_is_compared_with_the_lake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: int, minutes: int, problems: list[str]
) -> None:
    drawn = Chart(checkpoint, [Hour((5, 2, minutes), "███")])
    monkeypatch.setattr(demo, "chart", lambda _: drawn)
    demonstration = demo.Demo(tmp_path, days=1, seconds=1, kill=False)
    demonstration.show_chart(demo.LastAnswers(2, [(5, 2, 10)], Counter()))
    assert demonstration.problems == problems
