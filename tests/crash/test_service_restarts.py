"""The MetaService dies under a continuous run and comes back: the run waits, goes on, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline
from tests.support.process import TautProcess
from tests.support.stores import ServiceProcess, fresh_postgres

from .checks import check_tables
from .project import Sources, write_project

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TOKEN = "let-the-job-in"
MOMENTS = ("refresh", "batch", "no_news")
"""In the middle of a checkpoint, as a batch was reported, while it has nothing to do."""


@dataclass
class Served:
    """A project whose store is behind a service that can be killed and started again."""

    sources: Sources
    port: int
    services: list[ServiceProcess] = field(default_factory=list)

    def serve(self) -> None:
        store = f"sqlite:///{self.sources.storage}/meta.db"
        self.services.append(ServiceProcess(store, self.port, TOKEN))

    def kill_at(self, moment: str, count: Callable[[str], int]) -> None:
        """The service dies at a moment of the run, of whose events one knows the count, and comes back."""
        before = {name: count(name) for name in ("checkpoint", "meta_service_away", moment)}
        if moment != "no_news":
            self.sources.add()
        wait_for(lambda: count(moment) > before[moment])
        self.services[-1].kill()
        self.sources.add()
        wait_for(lambda: count("meta_service_away") > before["meta_service_away"])
        self.serve()
        # The checkpoint in which it died has none of the rows that came after.
        missing = 2 if moment == "refresh" else 1
        wait_for(lambda: count("checkpoint") >= before["checkpoint"] + missing)


@pytest.fixture
def served(tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    sources = write_project(tmp_path / "project")
    sources.define_only("totals")
    sources.storage.mkdir()
    monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", TOKEN)
    settings = sources.folder / "tautochrone.toml"
    settings.write_text(settings.read_text() + f'[meta]\nurl = "http://127.0.0.1:{unused_port}"\n')
    served = Served(sources, unused_port)
    served.serve()
    sources.add()
    yield served
    served.services[-1].kill()


def wait_for(condition: Callable[[], object], timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_a_continuous_run_outlives_its_service(served: Served, spark: SparkSession) -> None:
    folder = served.sources.folder
    spec, settings = (folder / "spark-pipeline.yml").read_text(), (folder / "tautochrone.toml").read_text()
    pipeline = Pipeline(folder, spark, spec=spec, settings=settings)
    with pipeline.running(interval_ms=500) as happened:
        wait_for(lambda: happened.checkpoints)
        calm = len(happened)
        served.kill_at(MOMENTS[0], lambda event: len(happened.of(event)))
    away, back = len(happened.of("meta_service_away")), len(happened.of("meta_service_back"))
    assert 1 <= back <= away
    assert len(happened.of("takeover")) == 1
    assert not [event for event in happened[calm:] if event["event"].endswith("_failed")]
    assert TOKEN not in str(happened)
    pipeline.close()
    check_tables(served.sources)


@pytest.mark.slow
def test_a_continuous_process_outlives_its_service(served: Served) -> None:
    spec = served.sources.folder / "spark-pipeline.yml"
    with TautProcess(spec, "--continuous", "--interval", "500ms") as run:
        run.wait_for(lambda _: run.count("checkpoint") >= 1)
        calm = len(run.events)
        for moment in MOMENTS:
            served.kill_at(moment, run.count)
        away, back = run.count("meta_service_away"), run.count("meta_service_back")
        assert 3 <= back <= away
        assert run.stop() == 0, run.output()
        assert run.count("takeover") == 1
        assert not [event for event in run.events[calm:] if event["event"].endswith("_failed")]
        assert TOKEN not in run.output() + str(run.events)
    check_tables(served.sources)


@pytest.mark.slow
def test_a_run_on_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As real processes, the second of which takes the job over and goes on with the first one's numbers."""
    sources = write_project(tmp_path / "project")
    sources.define_only("totals")
    monkeypatch.setenv("TAUTOCHRONE_META_URL", fresh_postgres())
    numbers = []
    for _ in range(2):
        sources.add()
        with TautProcess(sources.folder / "spark-pipeline.yml") as run:
            run.wait_for(lambda _, run=run: run.count("run"))
            assert run.stop() == 0, run.output()
            numbers += [event["checkpoint"] for event in run.events if event["event"] == "checkpoint"]
    assert numbers == [1, 2]
    assert not (sources.storage / "meta.db").exists()
