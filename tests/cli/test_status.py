"""`taut status --history`, from a store that the test fills, and what `taut sources` shows: no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from tautochrone.app.captures import CaptureStatus, CommitRates
from tautochrone.cli.main import main
from tautochrone.cli.status import show_sources, source_line
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.jobs import JobState, JobStatus, Liveness, quarantines_of
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.model.run_report import FlowSource, Quarantine, RunReport, SourceKind, Work, WorkPhase
from tautochrone.model.source import KeptLog, SkippedFiles, SkipReason

VIEW = TableName("lake", ("default",), "totals")
RULES = {"join": "one term per input", "aggregate": "merged into groups"}
NODES = tuple(
    NodeRefresh(node=node, mode=RefreshMode.INCREMENTAL, reason=Reason.of(ReasonCode.NODE_RULE, rule=rule))
    for node, rule in RULES.items()
)
HISTORY = (
    Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"), rows_inserted=40, duration_ms=2_100),
    Refresh(
        mode=RefreshMode.INCREMENTAL,
        reason=unclassified("0.3 % of orders changed"),
        rows_inserted=3,
        rows_deleted=2,
        duration_ms=512,
        nodes=NODES,
        estimate_ms=400,
        delta_rows=30,
        cpu_ms=90,
    ),
)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command on a project with two refreshes, one a minute after the epoch and one later."""
    (tmp_path / "spark-pipeline.yml").write_text(
        "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: d/**\n"
    )
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db", clock=lambda: 60_000) as store:
        store.jobs.start_run("shop", "shop", [DatasetEntry(VIEW, "materialized view", "d")])
        fence = store.jobs.take_over("shop")
        for index, refresh in enumerate(HISTORY):
            number = store.checkpoints.open("shop", fence, NewCheckpoint({}, index)).number
            store.checkpoints.record_version("shop", fence, number, VIEW, Version(str(index)), refresh)
            store.checkpoints.publish("shop", fence, number, index)

    def command(*arguments: str) -> str:
        assert main([*arguments, "--spec", str(tmp_path / "spark-pipeline.yml")]) == 0
        return capsys.readouterr().out

    return command


def test_history_for_people(run: Callable[..., str]) -> None:
    name, header, _line, newest, oldest = run("status", "totals", "--history").splitlines()
    assert name == "lake.default.totals"
    assert header.split() == [
        "checkpoint", "finished_at", "mode", "changed", "inserted", "deleted", "expected_ms", "took_ms",
        "cpu_ms", "reason",
    ]  # fmt: skip
    timestamp = "1970-01-01T00:01:00.000Z"
    assert newest.split(maxsplit=9) == [
        "2",
        timestamp,
        "incremental",
        "30",
        "3",
        "2",
        "400",
        "512",
        "90",
        str(HISTORY[1].reason),
    ]
    assert oldest.split(maxsplit=9) == [
        "1", timestamp, "full", "0", "40", "0", "NULL", "2100", "NULL", "first build",
    ]  # fmt: skip


def test_history_with_nodes_and_limit(run: Callable[..., str]) -> None:
    lines = run("status", "totals", "--history", "--nodes", "--limit", "1").splitlines()
    assert [line.split(maxsplit=3) for line in lines[-2:]] == [
        ["2", "join", "incremental", "one term per input"],
        ["2", "aggregate", "incremental", "merged into groups"],
    ]
    assert not [line for line in lines if "first build" in line]


def test_json_has_everything(run: Callable[..., str]) -> None:
    newest, oldest = (
        json.loads(line) for line in run("status", "totals", "--history", "--json").splitlines()
    )
    assert newest == {
        "dataset": "lake.default.totals",
        "checkpoint": 2,
        "version": "1",
        "mode": "incremental",
        "reason": "0.3 % of orders changed",
        "reason_code": "UNKNOWN",
        "reason_params": {"text": "0.3 % of orders changed"},
        "delta_rows": 30,
        "rows_inserted": 3,
        "rows_deleted": 2,
        "estimate_ms": 400,
        "cpu_ms": 90,
        "duration_ms": 512,
        "nodes": [
            {
                "node": node,
                "mode": "incremental",
                "reason": rule,
                "reason_code": "NODE_RULE",
                "reason_params": {"rule": rule},
            }
            for node, rule in RULES.items()
        ],
        "expectations": [],
        "error": None,
        "error_code": None,
        "error_params": None,
        "finished_at": "1970-01-01T00:01:00.000Z",
    }
    assert oldest["estimate_ms"] is None


def test_errors_have_a_column_when_there_are_any(run: Callable[..., str], tmp_path: Path) -> None:
    assert "error" not in run("status", "totals", "--history")
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db") as store:
        fence = store.jobs.take_over("shop")
        number = store.checkpoints.open("shop", fence, NewCheckpoint({}, 9)).number
        store.checkpoints.record_failure(
            "shop", fence, number, VIEW, unclassified("[REFRESH_NOT_INCREMENTAL] no")
        )
    lines = run("status", "totals", "--history").splitlines()
    assert lines[1].split()[-1] == "error"
    assert lines[3].endswith("[REFRESH_NOT_INCREMENTAL] no")


def test_status_shows_skipped_source_files(run: Callable[..., str], tmp_path: Path) -> None:
    assert "skipped" not in run("status")
    skipped = SkippedFiles("totals", SkipReason.REPLACED, 3, ("file:///in/a", "file:///in/b"))
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db") as store:
        store.datasets.record_skipped_files(
            "shop", store.jobs.newest_fence("shop"), VIEW, "totals", [skipped]
        )
    stopped, command, header, _line, row, line = run("status").splitlines()
    assert command == "  `taut run` goes on where it stopped"
    assert stopped.startswith("job shop is NOT RUNNING since 1970-01-01T00:01:00.000Z")
    assert (header.split()[-2:], row.split()[-2:]) == (["skipped", "error"], ["3", "NULL"])
    assert line == (
        "lake.default.totals: flow totals skipped 3 files (REPLACED_IN_PLACE): file:///in/a, file:///in/b "
        "and 1 more"
    )
    entry, job = map(json.loads, run("status", "--json").splitlines())
    assert (job["job"], job["liveness"]) == ("shop", "not running")
    assert entry["skipped"] == 3
    assert entry["skipped_files"][0]["paths"] == ["file:///in/a", "file:///in/b"]


def test_sources_show_progress_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    copying = CaptureStatus(
        source="PostgreSQL capture shop",
        table=TableName("lake", ("default",), "shop_log"),
        phase="copying",
        relations=3,
        waiting=["public.orders"],
        chunks_left=5,
        chunks_done=7,
        lag={"bytes": 4096},
        lag_ms=2_345,
        rates=CommitRates(events_per_s=12.34, rows_per_s=45_678.9, committed_ms=0),
    )
    line = source_line(copying)
    assert (line["chunks_done"], line["chunks_total"], line["lag_s"]) == (7, 12, 2.3)
    assert (line["rows_per_s"], line["events_per_s"]) == (45_678.9, 12.3)
    show_sources([line])
    shown = capsys.readouterr().out
    for text in ("copying", "4,096 bytes", "7 of 12", "45,678.9", "12.3", "2.3", "1970-01-01T00:00:00.000Z"):
        assert text in shown


def test_only_slots_of_other_lakes_are_offered_for_dropping(capsys: pytest.CaptureFixture[str]) -> None:
    """A lake that has not begun yet may have made one of them."""
    kept = [
        KeptLog(
            name=f"slot_{number}",
            is_own=is_own,
            distance_bytes=0,
            kept_bytes=None,
            is_lost=False,
            last_read=None,
            drop=f"DROP {number}",
        )
        for number, is_own in enumerate((True, False, None))
    ]
    status = CaptureStatus(
        source="PostgreSQL capture shop",
        table=TableName("lake", ("default",), "shop_log"),
        phase="not begun",
        relations=3,
        kept=kept,
    )
    show_sources([source_line(status)])
    assert [line for line in capsys.readouterr().out.splitlines() if "DROP" in line] == ["  DROP 1;"]


def test_tables_that_left_the_project(
    run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db", clock=lambda: 60_000) as store:
        store.jobs.start_run("shop", "shop", [])
    monkeypatch.setattr("tautochrone.cli.status._is_left", lambda _, name, __: name == VIEW)
    assert "lake.default.totals left the project; its table stays" in run("status")
    lines = [json.loads(line) for line in run("status", "--json").splitlines()]
    assert {"dataset": str(VIEW), "state": "retired"} in lines
    monkeypatch.setattr("tautochrone.cli.status._is_left", lambda *_: False)
    assert "left the project" not in run("status")


def test_json_has_the_last_day_and_the_sources(run: Callable[..., str], tmp_path: Path) -> None:
    before = [json.loads(text) for text in run("status", "--json").splitlines()]
    (line,) = [line for line in before if "dataset" in line]
    assert line["last_day"] is None, "the refreshes are of 1970"
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db") as store:
        fence = store.jobs.take_over("shop")
        number = store.checkpoints.open("shop", fence, NewCheckpoint({}, 9)).number
        store.checkpoints.record_version("shop", fence, number, VIEW, Version("9"), HISTORY[1])
        source = FlowSource(flow="f", dataset=str(VIEW), kind=SourceKind.FILES, name="/data/in")
        store.jobs.heartbeat("shop", fence, report=RunReport(sources=(source,)))
    lines = [json.loads(text) for text in run("status", "--json").splitlines()]
    (dataset,) = [line for line in lines if "dataset" in line]
    assert dataset["last_day"] == {
        "refreshes": {"incremental": 1}, "failed": 0, "duration_ms": 512, "cpu_ms": 90,
        "rows_inserted": 3, "rows_deleted": 2, "is_cut": False,
    }  # fmt: skip
    (job,) = [line for line in lines if "job" in line]
    assert [(entry["kind"], entry["name"]) for entry in job["sources"]] == [("files", "/data/in")]


def test_cost_of_a_dataset(run: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = map(json.loads, run("status", "totals", "--cost", "--json").splitlines())
    assert line == {
        "dataset": str(VIEW), "day": "1970-01-01", "since": "1970-01-01T00:01:00.000Z", "first_ms": 60_000,
        "refreshes": 2, "failed": 0, "measured": 1, "cpu_ms": 90, "duration_ms": 2_612, "rows": 45,
    }  # fmt: skip
    with pytest.raises(AssertionError):
        run("status", "total", "--cost")
    assert "[DATASET_NOT_FOUND]" in capsys.readouterr().err


def test_a_near_name_is_suggested(
    run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for typed, hint in {"totls": "did you mean totals?", "xyz": "there are lake.default.totals"}.items():
        assert main(["status", typed, "--spec", str(tmp_path / "spark-pipeline.yml")]) == 1
        assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["status", "--history", "--cost"],
        ["status", "--what-if", "--cost"],
        ["status", "--what-if", "--history"],
        ["plan", "--list", "--exit-code"],
        ["plan", "--drop", "--exit-code"],
        ["plan", "--list", "--rows", "5"],
        ["plan", "--key", "id"],
    ],
    ids=" ".join,
)
def test_options_of_which_one_would_be_ignored(
    run: Callable[..., str], tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--spec", str(tmp_path / "spark-pipeline.yml")]) == 1
    assert "[CONFLICTING_OPTIONS]" in capsys.readouterr().err


def test_the_last_bad_record_is_that_of_whatever_job_had_it_last() -> None:
    def job(name: str, last_ms: int) -> JobStatus:
        quarantine = Quarantine(table="q", records=1, reason=unclassified(name), last_ms=last_ms)
        return JobStatus(
            name=name, pipeline="shop", fence=Fence(1), state=JobState.RUNNING, alive=True, owner=None,
            started_ms=None, heartbeat_ms=None, lease_until_ms=None, target=None, newest_done=None,
            datasets=1, liveness=Liveness.RUNNING, report=RunReport(quarantines={"t": quarantine}),
        )  # fmt: skip

    jobs = [job("a", 1), job("b", 3), job("c", 2)]
    for order in permutations(jobs):
        assert quarantines_of(order)["t"].text == "b"


def test_what_a_run_does_and_where_its_last_bad_record_is(
    run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quarantine = Quarantine(
        table=f"{VIEW}__quarantine",
        records=3,
        reason=unclassified("no number"),
        last_ms=59_000,
        first="file file:/in/a.csv, line 17",
    )
    work = Work(
        phase=WorkPhase.REFRESHING,
        since_ms=6_000,
        checkpoint=3,
        done=1,
        total=2,
        refreshing={str(VIEW): 48_000},
    )
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db", clock=lambda: 60_000) as store:
        fence = store.jobs.newest_fence("shop")
        report = RunReport(quarantines={str(VIEW): quarantine}, work=work)
        store.jobs.heartbeat("shop", fence, 10**15, report=report)
    shown = run("status")
    where = "file file:/in/a.csv, line 17: no number"
    assert f"totals: bad records set aside, the last at 1970-01-01T00:00:59.000Z: {where}" in shown
    entry, job = map(json.loads, run("status", "--json").splitlines())
    assert entry["bad_record"] == where
    assert (job["work"]["phase"], job["work"]["refreshing"]) == ("refreshing", {str(VIEW): 48_000})
    main(["status", "--spec", str(tmp_path / "spark-pipeline.yml")])
    assert "job shop: refreshing checkpoint 3 for" in capsys.readouterr().err
