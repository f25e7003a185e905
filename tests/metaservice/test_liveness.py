"""Pages, API, metrics and commands say the same of a job and its datasets, at each step of a bad day."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.metaservice.conftest import Shop, name

from tautochrone.cli.main import main
from tautochrone.meta import MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.api.events import alarms_after
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.jobs import JOB_LEASE_MS
from tautochrone.model.names import Version
from tautochrone.model.reason import Reason, ReasonCode

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
        self._spec, self._capsys = folder / "spark-pipeline.yml", capsys
        self._spec.write_text("name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: d/**\n")
        (folder / "storage").mkdir()
        self.store = MetaStore.open(f"sqlite:///{folder}/storage/meta.db")
        self.shop = Shop(self.store)
        self.client = TestClient(create_app(access=Access(anonymous=Role.OPERATE), store=self.store))

    def heartbeat(self) -> None:
        self.store.jobs.heartbeat("shop", self.shop.fence)

    def command(self, *arguments: str) -> str:
        assert main([*arguments, "--spec", str(self._spec)]) == 0
        captured = self._capsys.readouterr()
        self.errors = captured.err
        return captured.out

    def states(self) -> tuple[str, States]:
        """The liveness of the job and the states of its datasets, after a check that all four agree."""
        lines = [json.loads(line) for line in self.command("status", "--json").splitlines()]
        by_command = {line["dataset"]: line["state"] for line in lines}
        by_api = {each["name"]: each["state"] for each in self.client.get("/api/v1/datasets").json()}
        rows = self.client.get("/datasets").text.split("<tr")
        badge = re.compile(r'<span class="badge[^"]*">([^<]*)<')
        by_page = {
            dataset: badge.findall(row)[0] for row in rows for dataset in by_api if f'name={dataset}"' in row
        }
        metrics = text_string_to_metric_families(self.client.get("/metrics").text)
        ones = [sample.labels for family in metrics for sample in family.samples if sample.value == 1]
        by_metrics = {labels["dataset"]: labels["state"] for labels in ones if "state" in labels}
        assert by_command == by_api == by_metrics
        assert by_page == by_api
        liveness = {labels["liveness"] for labels in ones if "liveness" in labels}
        (job,) = self.client.get("/api/v1/jobs").json()
        assert {job["liveness"]} == liveness
        assert f">{job['liveness']}</span>" in self.client.get("/jobs").text
        lags = {each["name"]: each["lag_ms"] for each in self.client.get("/api/v1/datasets").json()}
        assert lags == {line["dataset"]: line["done_lag_ms"] for line in lines}
        return job["liveness"], {dataset.removeprefix("lake.db."): state for dataset, state in by_api.items()}

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
    assert day.errors == "job shop: the last run ended at 2027-01-15T08:00:07.000Z\n"


def test_a_job_that_never_renews_its_lease_is_no_problem(day: Day) -> None:
    """Jobs of other programs start by the API, and need not say more."""
    day.shop.checkpoint(1, cut_at_ms=day.now_ms)
    assert day.client.post("/register/sink/loader/lake/db/loaded").status_code == 200
    assert day.client.post("/start/loader").status_code == 200
    day.now_ms += HOUR_MS
    liveness = {job.name: str(job.liveness) for job in day.store.jobs.states()}
    assert liveness == {"shop": "not running", "loader": "registered"}
    assert [data["job"] for _, _, data in alarms_after(day.store, 0)] == ["shop"]
