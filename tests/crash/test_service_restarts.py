"""The MetaService dies under a continuous run and comes back: the run waits, goes on, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.process import TautProcess
from tests.support.stores import ServiceProcess, fresh_postgres

from .checks import check_tables
from .project import write_project

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TOKEN = "let-the-job-in"


def test_a_continuous_run_outlives_its_service(
    tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sources = write_project(tmp_path / "project")
    sources.define_only("totals")
    sources.storage.mkdir()
    store = f"sqlite:///{sources.storage}/meta.db"
    monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", TOKEN)
    settings = sources.folder / "tautochrone.toml"
    settings.write_text(settings.read_text() + f'[meta]\nurl = "http://127.0.0.1:{unused_port}"\n')
    services = [ServiceProcess(store, unused_port, TOKEN)]
    request.addfinalizer(lambda: services[-1].kill())
    sources.add()
    with TautProcess(sources.folder / "spark-pipeline.yml", "--continuous", "--interval", "500ms") as run:
        run.wait_for(lambda _: run.count("checkpoint") >= 1)
        calm = len(run.events)
        # While it has nothing to do, as a batch was reported, in the middle of a checkpoint.
        for moment in ("no_news", "batch", "refresh"):
            before = {name: run.count(name) for name in ("checkpoint", "meta_service_away", moment)}
            if moment != "no_news":
                sources.add()
            run.wait_for(lambda _, before=before, moment=moment: run.count(moment) > before[moment])
            services[-1].kill()
            sources.add()
            run.wait_for(
                lambda _, before=before: run.count("meta_service_away") > before["meta_service_away"]
            )
            time.sleep(1)
            services.append(ServiceProcess(store, unused_port, TOKEN))
            run.wait_for(lambda _, before=before: run.count("checkpoint") > before["checkpoint"])
        away, back = run.count("meta_service_away"), run.count("meta_service_back")
        assert away >= 3
        assert 3 <= back <= away
        assert run.stop() == 0, run.output()
        assert run.count("takeover") == 1
        assert not [event for event in run.events[calm:] if event["event"].endswith("_failed")]
        assert TOKEN not in run.output() + str(run.events)
    check_tables(sources)


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
