"""The commands as real processes: exit codes, and what they write to stdout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tautochrone.cli.main import main

from .processes import run_taut

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def in_process(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What a command that needs no Spark answers as JSON."""
    capsys.readouterr()
    assert main([*arguments, "--json", "--spec", str(folder / "spark-pipeline.yml")]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def taut(folder: Path, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_taut(folder, *arguments, expect=expect)
    assert "Traceback" not in done.stderr
    return done


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of `taut init`, with definitions that print."""
    folder = tmp_path_factory.mktemp("cli")
    assert "Next steps" in taut(folder, "init", "--name", "demo").stderr
    printing = folder / "demo" / "transformations" / "printing.py"
    assert printing.parent.is_dir()
    printing.write_text('import subprocess\n\nprint("printed")\nsubprocess.run(["echo", "echoed"])\n')
    return folder / "demo"


def test_dry_run_writes_nothing(sample: Path) -> None:
    before = sorted(path for path in sample.rglob("*") if "__pycache__" not in path.parts)
    entries = lines(taut(sample, "dry-run", "--json"))
    after = sorted(path for path in sample.rglob("*") if "__pycache__" not in path.parts)
    assert before == after
    assert [entry["dataset"].rsplit(".", 1)[1] for entry in entries] == [
        "orders",
        "sales",
    ]


def test_the_sample_runs(sample: Path) -> None:
    first = lines(taut(sample, "run", "--json"))
    assert first[0]["event"] == "starting"
    assert first[-1] == {"event": "run", "state": "COMPLETED", "problems": []}
    refreshes = [event for event in first if event["event"] == "refresh"]
    assert {event["mode"] for event in refreshes} == {"full"}
    assert refreshes[0].keys() >= {
        "dataset", "checkpoint", "mode", "nodes", "reason", "rows_inserted", "rows_deleted", "duration_ms",
    }  # fmt: skip


def test_a_second_run_finds_no_news(sample: Path) -> None:
    names = [event["event"] for event in lines(taut(sample, "run", "--json"))]
    assert "no_news" in names
    assert "refresh" not in names
    assert "checkpoint" not in names


QUERY = "SELECT max(product) AS top, sum(sold) AS n FROM sales"


def test_query_reads_and_fails(sample: Path) -> None:
    assert taut(sample, "query", QUERY, "--format", "csv", "--checkpoint", "1").stdout == "top,n\ntea,3\n"
    running = taut(sample, "query", "SELECT sold,\n  1/(sold - sold) FROM sales", expect=1)
    assert running.stdout == ""
    assert running.stderr.startswith("[DIVIDE_BY_ZERO]")
    assert running.stderr.splitlines()[1:3] == [
        "    2 |   1/(sold - sold) FROM sales",
        "      |   ^^^^^^^^^^^^^^^",
    ]


def test_query_writes_json_and_refuses(sample: Path) -> None:
    assert lines(taut(sample, "query", QUERY, "--format", "json")) == [{"top": "tea", "n": 3}]
    refused = taut(sample, "query", "DROP TABLE sales", expect=1)
    assert refused.stderr.splitlines()[-2].startswith("[QUERY_NOT_READ_ONLY]")
    assert refused.stdout == ""
    missing = taut(sample, "query", QUERY, "--checkpoint", "99", expect=1)
    assert "[CHECKPOINT_NOT_FOUND]" in missing.stderr


def test_status_and_checkpoints(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *entries, job = in_process(capsys, sample, "status")
    assert [entry["checkpoint"] for entry in entries] == [1, 1]
    assert (job["job"], job["liveness"]) == ("demo", "ended")
    history = in_process(capsys, sample, "status", "sales", "--history")
    assert [entry["mode"] for entry in history] == ["full"]
    assert [entry["state"] for entry in in_process(capsys, sample, "checkpoints")] == ["published"]
    assert "[DATASET_NOT_FOUND]" in taut(sample, "status", "nowhere", expect=1).stderr


def test_verify(sample: Path) -> None:
    verdicts = lines(taut(sample, "verify", "--json"))
    assert [verdict["equal"] for verdict in verdicts] == [True]
    assert verdicts[0] == {
        "dataset": "lake.default.sales",
        "checkpoint": 1,
        "equal": True,
        "missing": 0,
        "unexpected": 0,
    }


def test_maintenance_does_what_its_dry_run_shows(sample: Path) -> None:
    settings = sample / "tautochrone.toml"
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(f'{before}\n[maintenance]\nkeep = "0s"\nkeep_last = 1\nhistory = "0s"\n')
    try:
        planned = lines(taut(sample, "maintain", "--dry-run", "--json"))[-1]
        done = lines(taut(sample, "maintain", "--json"))[-1]
    finally:
        settings.write_text(before)
    assert (planned["event"], planned["dry_run"], done["dry_run"]) == ("maintained", True, False)
    assert planned["versions"] == done["versions"] > 0
    assert planned["files"] == 0 < done["files"]
    assert "[CONFLICTING_OPTIONS]" in taut(sample, "maintain", "--compact", "--dry-run", expect=1).stderr
    compacting = lines(taut(sample, "maintain", "--compact", "--json"))
    assert [event["event"] for event in compacting if event["event"] == "takeover"]
    assert compacting[-1]["event"] == "maintained"
