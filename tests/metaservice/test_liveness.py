"""Pages, API, metrics and commands say the same of a job and its datasets, at each step of a bad day."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.testclient import TestClient
from tests.metaservice.conftest import FULL, Shop, name

from tautochrone.cli.main import main
from tautochrone.meta import MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.jobs import JOB_LEASE_MS, Claim, RunProcess
from tautochrone.model.names import Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import DiskSpace, FlowFailure, RunEnd, RunReport
from tautochrone.runtime.job.ownership import process_of

HOUR_MS = 3_600_000
States = dict[str, str]


class Day:
    """A project whose store the test fills, a service over it, and a clock that the test sets."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.now_ms = 1_800_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)
        self.errors = ""
        self.said = RunReport(interval_ms=5_000)
        self._spec, self._capsys = folder / "spark-pipeline.yml", capsys
        self._spec.write_text("name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: d/**\n")
        (folder / "storage").mkdir()
        self.store = MetaStore.open(f"sqlite:///{folder}/storage/meta.db")
        self.shop = Shop(self.store)
        self.client = TestClient(create_app(access=Access(anonymous=Role.OPERATE), store=self.store))

    def is_back(self) -> None:
        """A run takes the job over, and goes on."""
        self.shop.fence = self.store.jobs.take_over("shop")
        for _ in range(3):
            self.now_ms += JOB_LEASE_MS - 1_000
            self.heartbeat()

    def heartbeat(self) -> None:
        self.store.jobs.heartbeat("shop", self.shop.fence)

    def command(self, *arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--spec", str(self._spec)]) == status
        captured = self._capsys.readouterr()
        self.errors = captured.err
        return captured.out

    def lines(self, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.command(*arguments, "--json", status=status).splitlines()]

    def metrics(self) -> list[Sample]:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return [sample for family in families for sample in family.samples]

    def states(self) -> tuple[str, States]:
        """The liveness of the job and the states of its datasets, after a check that all four agree."""
        lines = self.lines("status")
        datasets = [line for line in lines if "dataset" in line]
        by_command = {line["dataset"]: line["state"] for line in datasets}
        by_api = {each["name"]: each["state"] for each in self.client.get("/api/v1/datasets").json()}
        rows = self.client.get("/datasets").text.split("<tr")
        badge = re.compile(r'<span class="badge[^"]*">([^<]*)<')
        by_page = {
            dataset: badge.findall(row)[0] for row in rows for dataset in by_api if f'name={dataset}"' in row
        }
        ones = [sample.labels for sample in self.metrics() if sample.value == 1]
        by_metrics = {each["dataset"]: each["state"] for each in ones if {"dataset", "state"} <= each.keys()}
        assert by_command == by_api == by_metrics
        assert by_page == by_api
        liveness = {labels["liveness"] for labels in ones if "liveness" in labels}
        (job,) = self.client.get("/api/v1/jobs").json()
        assert {job["liveness"]} == liveness == {line["liveness"] for line in lines if "job" in line}
        assert f">{job['liveness']}</span>" in self.client.get("/jobs").text
        lags = {each["name"]: each["lag_ms"] for each in self.client.get("/api/v1/datasets").json()}
        assert lags == {line["dataset"]: line["done_lag_ms"] for line in datasets}
        return job["liveness"], {dataset.removeprefix("lake.db."): state for dataset, state in by_api.items()}

    def alarms(self) -> dict[str, str]:
        """By rule the subject of the open alarms, after a check that all four agree on them."""
        is_waiting = any(each.acknowledged_by is None for each in self.store.alarms.current())
        by_command = self.lines("alarms", status=int(is_waiting))
        assert self.client.get("/api/v1/alarms").json() == by_command
        keys = sorted((each["rule"], each["subject"]) for each in by_command)
        shown = [sample.labels for sample in self.metrics() if sample.name == "tautochrone_alarm"]
        assert sorted((labels["rule"], labels["subject"]) for labels in shown) == keys
        page = html.unescape(self.client.get("/alarms").text)
        assert page.count("What to do: ") == len(keys)
        assert all(each["reason"] in page and each["command"] in page for each in by_command)
        assert len({rule for rule, _ in keys}) == len(keys)
        return dict(keys)

    def report(self, **parts: Any) -> None:
        """What the run says of itself from now on."""
        self.said = replace(self.said, **parts)
        self.store.jobs.heartbeat("shop", self.shop.fence, report=self.said)

    def lag_ms(self, dataset: str) -> int | None:
        return next(s.lag_ms for s in self.store.datasets.statuses() if s.dataset == name(dataset))


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Day]:
    day = Day(tmp_path, monkeypatch, capsys)
    yield day
    day.store.close()


def all_in(state: str) -> States:
    return dict.fromkeys(("orders", "totals", "top"), state)


def test_a_killed_job_is_not_running_and_its_datasets_age(day: Day) -> None:
    assert day.states() == ("running", all_in("never built"))
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.heartbeat()
    assert day.states() == ("running", all_in("fresh"))
    assert "No problems" in day.client.get("/").text
    assert "NOT RUNNING" not in day.command("status")
    day.now_ms += JOB_LEASE_MS + 1
    assert day.states() == ("not running", all_in("not running"))
    day.now_ms += HOUR_MS
    assert day.lag_ms("top") == HOUR_MS + JOB_LEASE_MS + 1
    overview = day.client.get("/").text
    assert "No problems" not in overview
    assert overview.index("not running</span> <bdi>shop</bdi>") < overview.index("Checkpoints lately")
    assert "job shop is NOT RUNNING since 2027-01-15T08:00:00.000Z" in day.command("status")
    # It comes back.
    day.shop.fence = day.store.jobs.take_over("shop")
    assert day.states() == ("running", all_in("fresh"))
    assert day.lag_ms("top") == 0


def test_a_checkpoint_that_is_built_ages(day: Day) -> None:
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.now_ms += 5_000
    cut = NewCheckpoint({name("orders"): Version("2")}, day.now_ms)
    day.store.checkpoints.open("shop", day.shop.fence, cut)
    for _ in range(3):
        day.now_ms += JOB_LEASE_MS - 1
        day.heartbeat()
    assert day.states() == ("running", all_in("building"))
    assert day.lag_ms("top") == 5_000 + 3 * (JOB_LEASE_MS - 1)
    day.now_ms += HOUR_MS
    assert day.states() == ("not running", all_in("not running"))
    assert day.lag_ms("top") == HOUR_MS + 5_000 + 3 * (JOB_LEASE_MS - 1)


def test_what_fails_is_failing_after_the_end_too(day: Day) -> None:
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.shop.checkpoint(2, cut_at_ms=day.now_ms + 1, fail=True)
    assert day.states() == ("running", all_in("fresh") | {"top": "failing"})
    day.now_ms += HOUR_MS
    assert day.states() == ("not running", all_in("not running") | {"top": "failing"})


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (Reason.of(ReasonCode.WAITS_FOR_BULK, relation="public.orders"), "building"),
        (Reason.of(ReasonCode.WAITS_FOR_INPUT, input=str(name("totals")), cause="it failed"), "held back"),
        (Reason.of(ReasonCode.UNKNOWN, text="division by zero"), "failing"),
    ],
)
def test_state_follows_from_the_code_of_the_failure(failure: Reason, state: str, day: Day) -> None:
    cut = NewCheckpoint({name("orders"): Version("1")}, day.now_ms)
    number = day.store.checkpoints.open("shop", day.shop.fence, cut).number
    day.store.checkpoints.record_failure("shop", day.shop.fence, number, name("top"), failure)
    assert day.states()[1]["top"] == state
    day.now_ms += HOUR_MS
    assert day.states()[1]["top"] == ("not running" if state == "building" else state)


def test_a_run_that_ended_is_no_problem(day: Day) -> None:
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.now_ms += 7_000
    day.store.jobs.end_run("shop", day.shop.fence)
    day.now_ms += HOUR_MS
    assert day.states() == ("ended", all_in("fresh"))
    assert "No problems" in day.client.get("/").text
    day.command("status")
    assert day.errors.startswith("job shop: the last run ended at 2027-01-15T08:00:07.000Z; what came since")
    assert day.lag_ms("top") == HOUR_MS
    assert day.alarms() == {}


def test_a_job_that_never_renews_its_lease_is_no_problem(day: Day) -> None:
    """Jobs of other programs start by the API, and need not say more."""
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    assert day.client.post("/register/sink/loader/lake/db/loaded").status_code == 200
    assert day.client.post("/start/loader").status_code == 200
    day.now_ms += HOUR_MS
    liveness = {job.name: str(job.liveness) for job in day.store.jobs.states()}
    assert liveness == {"shop": "not running", "loader": "registered"}
    assert day.alarms() == {"job_not_running": "shop"}


def test_a_flow_that_fails_makes_its_table_fail_and_the_others_late(day: Day) -> None:
    checkpoint = day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    began = day.now_ms

    def observe() -> None:
        """The run looks at its source, in which nothing is new."""
        observed = {name("orders"): began}
        day.store.jobs.heartbeat("shop", day.shop.fence, observations=observed, checkpoint=checkpoint)

    day.store.jobs.take_over("shop", ingests=[name("orders")])
    day.shop.fence = day.store.jobs.newest_fence("shop")
    observe()
    assert day.states() == ("running", all_in("fresh"))
    failure = FlowFailure(dataset=str(name("orders")), error="[KAFKA] no broker answers", since_ms=began)
    for _ in range(8):
        day.now_ms += JOB_LEASE_MS - 1
        observe()
    day.report(flows={"orders": failure})
    assert day.states() == ("running", all_in("behind") | {"orders": "failing"})
    assert day.lag_ms("top") == 8 * (JOB_LEASE_MS - 1)
    assert "no broker answers" in day.client.get("/").text
    assert "no broker answers" in day.command("status")
    assert day.alarms() == {"dataset_failing": "lake.db.orders"}
    # The process is started again, and the flow has made no progress yet.
    day.shop.fence = day.store.jobs.take_over("shop", ingests=[name("orders")])
    assert day.states()[1]["orders"] == "failing"
    began = day.now_ms
    observe()
    day.report(flows={})
    assert day.states() == ("running", all_in("fresh"))
    assert day.alarms() == {}


def test_a_backlog_is_behind_although_checkpoints_are_published(day: Day) -> None:
    """A flow that takes a part of what waits in its source in each batch has no news, but no observation."""
    day.shop.fence = day.store.jobs.take_over("shop", ingests=[name("orders")])
    first = day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.store.jobs.heartbeat(
        "shop", day.shop.fence, observations={name("orders"): day.now_ms}, checkpoint=first
    )
    for version in range(2, 10):
        day.now_ms += 10_000
        cut = NewCheckpoint(
            {name("orders"): Version(str(version))},
            day.now_ms,
            observations={name("orders"): day.now_ms - 10_000 * (version - 1)},
        )
        number = day.store.checkpoints.open("shop", day.shop.fence, cut).number
        for table in ("totals", "top"):
            day.store.checkpoints.record_version(
                "shop", day.shop.fence, number, name(table), Version(f"{version}"), FULL
            )
        day.store.checkpoints.publish("shop", day.shop.fence, number, day.now_ms)
        day.heartbeat()
    assert day.lag_ms("top") == day.lag_ms("orders") == 80_000
    assert day.states() == ("running", all_in("behind"))


def test_a_run_that_ends_with_an_error_says_so_everywhere(day: Day) -> None:
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.report(lines=("08:00:01 run began", "08:00:02 the disk is full"))
    end = RunEnd(error="[STORE_FULL] No space left", hint="make room")
    day.store.jobs.end_run("shop", day.shop.fence, end, day.said)
    assert day.states() == ("failed", all_in("not running"))
    for text in (
        day.client.get("/").text,
        day.client.get("/jobs").text,
        day.command("status"),
        day.command("jobs"),
    ):
        for words in ("[STORE_FULL] No space left", "make room", "the disk is full", "taut run --continuous"):
            assert words in text
    assert day.alarms() == {"job_not_running": "shop"}
    # The next start fails, too: its definitions do not load.
    day.now_ms += HOUR_MS
    day.store.jobs.record_failed_start("shop", RunEnd(error="[UNRESOLVED_COLUMN] nme"))
    assert day.states()[0] == "failed"
    assert "UNRESOLVED_COLUMN" in day.command("status")
    assert "its last run could not begin" in day.client.get("/").text
    day.is_back()
    assert day.states() == ("running", all_in("fresh"))
    assert day.alarms() == {}
    # A start that is refused because the job runs is no failure of it.
    day.store.jobs.record_failed_start("shop", RunEnd(error="[JOB_RUNNING] another run has it"))
    assert day.states()[0] == "running"


def test_last_words_tell_a_process_that_is_gone_from_one_that_hangs(day: Day) -> None:
    for process, words in (
        (process_of("a"), "exists: it hangs"),
        (replace(process_of("b"), started=1), "has ended without saying so"),
        (RunProcess(run="c", host="elsewhere", pid=7, machine="x"), "cannot see it"),
    ):
        day.shop.fence = day.store.jobs.take_over("shop", claim=Claim(process=process, takeover=True))
        day.report(lines=("the last line",))
        day.now_ms += JOB_LEASE_MS + 1
        assert day.states()[0] == "not running"
        texts = (day.command("status"), day.command("jobs"), day.client.get("/jobs").text)
        assert all(words in text and "the last line" in text for text in texts)
        assert words in day.client.get("/api/v1/jobs").json()[0]["last_words"]["process"]


def test_a_bad_day(day: Day) -> None:
    """Kills, waits, failures and recoveries: at each step all surfaces agree and each state is true; each
    alarm fires once, and at the end of the day none is left."""
    fired: list[str] = []

    def evening(state: str, top: str, *alarms: str) -> None:
        """After a step: what all four say of the job, of the view `top`, and which alarms are open."""
        before = {each.id for each in day.store.alarms.current()}
        fired.extend(each.rule for each in day.store.alarms.evaluate() if each.id not in before)
        liveness, states = day.states()
        assert (liveness, states["top"]) == (state, top)
        assert day.alarms().keys() == {*alarms}

    def checkpoint(version: int, *, fail: bool = False) -> None:
        day.heartbeat()
        day.shop.checkpoint(version, cut_at_ms=day.now_ms, fail=fail)

    flow = FlowFailure(dataset=str(name("orders")), error="no broker", since_ms=day.now_ms)
    disk = DiskSpace(path="/d", free_bytes=10**9, total_bytes=10**12)
    checkpoint(1)
    evening("running", "fresh")
    checkpoint(2, fail=True)
    evening("running", "failing", "dataset_failing")
    day.now_ms += HOUR_MS
    evening("not running", "failing", "dataset_failing", "job_not_running")
    day.is_back()
    evening("running", "failing", "dataset_failing")
    checkpoint(3)
    evening("running", "fresh")
    day.report(flows={"orders": flow}, disk=disk)
    evening("running", "fresh", "dataset_failing", "disk_space")
    day.store.jobs.end_run("shop", day.shop.fence, RunEnd(error="No space left"))
    evening("failed", "not running", "dataset_failing", "disk_space", "job_not_running")
    day.now_ms += HOUR_MS
    day.store.jobs.record_failed_start("shop", RunEnd(error="No space left"))
    evening("failed", "not running", "dataset_failing", "disk_space", "job_not_running")
    day.is_back()
    day.report(disk=replace(disk, free_bytes=5 * 10**11))
    evening("running", "fresh", "dataset_failing")
    day.report(flows={})
    evening("running", "fresh")
    cut = NewCheckpoint({name("orders"): Version("4")}, day.now_ms)
    number = day.store.checkpoints.open("shop", day.shop.fence, cut).number
    day.heartbeat()
    evening("running", "building")
    for _ in range(25):
        day.now_ms += JOB_LEASE_MS - 1
        day.heartbeat()
    evening("running", "building", "checkpoint_stuck")
    day.now_ms += HOUR_MS
    evening("not running", "not running", "checkpoint_stuck", "job_not_running")
    day.is_back()
    for table in ("totals", "top"):
        day.store.checkpoints.record_version("shop", day.shop.fence, number, name(table), Version("4"), FULL)
    day.store.checkpoints.publish("shop", day.shop.fence, number, day.now_ms)
    evening("running", "fresh")
    day.store.jobs.end_run("shop", day.shop.fence, RunEnd())
    day.now_ms += HOUR_MS
    evening("ended", "fresh")
    # The view failed, the job was killed twice and failed once, the flow failed, the disk, the checkpoint.
    over = [each.rule.value for each in day.store.alarms.resolved()]
    assert sorted(over) == sorted(fired)
    assert {rule: over.count(rule) for rule in over} == {
        "dataset_failing": 2,
        "job_not_running": 3,
        "disk_space": 1,
        "checkpoint_stuck": 1,
    }


def test_an_alarm_is_acknowledged_on_the_page_by_command_and_over_http(day: Day) -> None:
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    day.now_ms += HOUR_MS
    assert [line["id"] for line in day.lines("alarms", status=1)] == [1]
    page = day.client.get("/alarms").text
    token = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
    refused = day.client.post("/alarms", data={"id": "1", "by": "eve"})
    assert refused.status_code == 403
    assert day.store.alarms.current()[0].acknowledged_by is None
    empty = day.client.post("/alarms", data={"id": "1", "by": " ", "csrf": token})
    assert "An acknowledgement needs a name" in empty.text
    done = day.client.post("/alarms", data={"id": "1", "by": "<b>ann", "csrf": token})
    assert "Acknowledged by <bdi>&lt;b&gt;ann</bdi>" in done.text
    assert day.alarms() == {"job_not_running": "shop"}
    day.is_back()
    day.store.alarms.evaluate()
    day.now_ms += HOUR_MS
    assert [line["id"] for line in day.lines("alarms", status=1)] == [2]
    assert day.lines("alarms", "--acknowledge", "2", "--by", "bob")[0]["acknowledged_by"] == "bob"
    assert day.client.post("/api/v1/alarms/7/acknowledge", json={"by": "ann"}).status_code == 404
    over = day.lines("alarms", "--resolved")[1]
    assert (over["id"], over["acknowledged_by"]) == (1, "<b>ann")
    assert "<b>ann" not in day.client.get("/alarms").text
