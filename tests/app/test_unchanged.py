"""A one-shot run is over without Spark if, and only if, nothing changed since the last one."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.harness import Pipeline

from tautochrone.app import unchanged
from tautochrone.app.locate import Options, locate
from tautochrone.app.plan import plan
from tautochrone.app.stores import existing_store
from tautochrone.app.unchanged import (
    News,
    SinceLastRun,
    end_without_news,
    last_run,
    program_of,
    run_and_remember,
    since_last_run,
)
from tautochrone.errors import MetaError
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.client import LocalService
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model import events
from tautochrone.model.jobs import Claim, JobStatus, Liveness
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.ownership import Ownership, process_of
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.maintenance.maintain import Maintenance

pytestmark = pytest.mark.spark

STREAM = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def orders():
    return spark.readStream.schema("id BIGINT").json({folder!r})
"""
VIEW = "CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n FROM orders"


class Project:
    """A pipeline over a folder of files that ran once, and was remembered."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.folder = pipeline, pipeline.folder / "in"
        self.folder.mkdir()
        (self.folder / "1.json").write_text('{"id": 1}\n')
        pipeline.write("definitions/orders.py", STREAM.format(folder=str(self.folder)))
        pipeline.write("definitions/total.sql", VIEW)
        self.emitted: list[events.Event] = []
        self.run()

    def run(self) -> None:
        with self.pipeline.opened() as (job, _):
            run_and_remember(job, self.program, Run(job), self.emitted.append)

    @property
    def program(self) -> str | Reason:
        return program_of(*locate(self.options))

    @property
    def options(self) -> Options:
        return Options(spec=str(self.pipeline.folder / "spark-pipeline.yml"))

    def begin(self) -> News:
        settings = self.pipeline.settings
        self.reason: Reason | None = None
        last = last_run(settings, self.program)
        if last is None:
            return News.UNKNOWN
        news = end_without_news(settings, last, Ownership(), self.emitted.append)
        if isinstance(news, News):
            return news
        self.reason = news
        return News.UNKNOWN

    @property
    def record(self) -> Path:
        (file,) = (Path(self.pipeline.settings.storage) / "last-run").glob("*.json")
        return file


@pytest.fixture
def project(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(unchanged, "_OF_SESSION", {*unchanged._OF_SESSION, "PYTEST_CURRENT_TEST"})
    project = Project(pipeline)
    assert project.begin() is News.NONE
    project.emitted.clear()
    return project


def test_nothing_new_is_recorded_as_a_run_would_do_it(project: Project) -> None:
    pipeline = project.pipeline
    fence = pipeline.job.store.jobs.newest_fence(pipeline.settings.job)
    token = pipeline.reader.write_token()
    assert project.begin() is News.NONE
    # It has read all that its source held, and says so.
    rows = pipeline.reader.sql("SELECT n FROM total", after=token, wait_ms=1).collect()
    assert rows[0].n == 1
    (no_news, end) = project.emitted
    assert isinstance(no_news, events.NoNews)
    assert no_news.reason is not None
    assert (no_news.checkpoint, no_news.reason.code) == (1, ReasonCode.UNCHANGED_SINCE_LAST_RUN)
    assert end == events.Run(state="COMPLETED", problems=[])
    (state,) = pipeline.job.store.jobs.states()
    assert (state.fence, state.alive) == (fence + 1, False)
    assert project.begin() is News.NONE
    (project.folder / "2.json").write_text('{"id": 2}\n')
    assert project.begin() is News.LITTLE
    project.run()
    assert pipeline.reader.sql("SELECT n FROM total").collect()[0].n == 2
    assert project.begin() is News.NONE


def replaced_in_place(project: Project) -> None:
    file = project.folder / "1.json"
    status = file.stat()
    file.write_text('{"id": 7}\n')
    assert file.stat().st_size == status.st_size


def older_file(project: Project) -> None:
    file = project.folder / "sub" / "0.json"
    file.parent.mkdir()
    file.write_text("{}")
    os.utime(file, (1, 1))


def run_by_another_machine(project: Project) -> None:
    pipeline = project.pipeline
    claim = Claim(process=process_of("another"), takeover=True)
    fence = pipeline.job.store.jobs.take_over(pipeline.settings.job, claim=claim)
    pipeline.job.store.jobs.end_run(pipeline.settings.job, fence)


def written_by_others(project: Project) -> None:
    project.pipeline.session.sql("INSERT INTO lake.default.orders VALUES (3)")


def dropped(project: Project) -> None:
    project.pipeline.session.sql("DROP TABLE lake.default.total")


def store_of_another_lake(project: Project) -> None:
    url = project.pipeline.settings.meta_url
    with sqlite3.connect(url.removeprefix("sqlite:///")) as store:
        store.execute("UPDATE stores SET incarnation = 'another'")


def expired(project: Project) -> None:
    content = json.loads(project.record.read_text())
    project.record.write_text(json.dumps(content | {"until_ms": 1}))


def of_another_release(project: Project) -> None:
    content = json.loads(project.record.read_text())
    project.record.write_text(json.dumps(content | {"more": 1}))


def wrote(file: str, text: str) -> Callable[[Project], object]:
    def write(project: Project) -> None:
        project.pipeline.write(file, text)
        project.pipeline.reload()

    return write


CHANGES: dict[str, Callable[[Project], object]] = {
    "another file": lambda project: (project.folder / "2.json").write_text("{}"),
    "a hidden file": lambda project: (project.folder / ".x").write_text("{}"),
    "replaced": replaced_in_place,
    "an older file": older_file,
    "removed": lambda project: (project.folder / "1.json").unlink(),
    "no folder": lambda project: shutil.rmtree(project.folder),
    "another view": wrote("definitions/more.sql", VIEW.replace("total", "more")),
    "a comment": wrote("definitions/total.sql", VIEW + " -- x"),
    "code that may read": wrote("definitions/more.py", "import time"),
    "an invariant": wrote("invariants/some.sql", "SELECT 1 FROM orders WHERE id < 0"),
    "a setting": wrote("tautochrone.toml", "[run]\nparallelism = 3\n"),
    "expired": expired,
    "of another release": of_another_release,
    "no record": lambda project: project.record.unlink(),
    "broken": lambda project: project.record.write_text("{"),
}


def test_any_change_starts_spark(project: Project, tmp_path: Path) -> None:
    root = project.pipeline.folder
    paths = [project.folder, root / "definitions", root / "invariants", root / "tautochrone.toml"]
    for name, change in CHANGES.items():
        record = project.record
        kept = [path for path in (*paths, record.parent) if path.exists()]
        for path in kept:
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, tmp_path / name / path.name)
        change(project)
        assert project.begin() is not News.NONE, name
        assert not project.emitted, name
        for path in (*paths, record.parent):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        for path in kept:
            copied = tmp_path / name / path.name
            (shutil.copytree if copied.is_dir() else shutil.copy2)(copied, path)
        project.pipeline.reload()
        assert project.begin() is News.NONE, f"undone: {name}"
        project.emitted.clear()


ELSEWHERE: dict[str, Callable[[Project], object]] = {
    "run by another machine": run_by_another_machine,
    "another store": store_of_another_lake,
    "rows of others": written_by_others,
    "a dropped table": dropped,
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_what_others_did_starts_spark(project: Project, change: Callable[[Project], object]) -> None:
    change(project)
    assert project.begin() is News.UNKNOWN
    assert not project.emitted


def test_maintenance_is_no_news(project: Project) -> None:
    pipeline = project.pipeline
    pipeline.write(
        "tautochrone.toml", '[maintenance]\nkeep = "0s"\nkeep_last = 1\nhistory = "0s"\nenabled = false\n'
    )
    pipeline.reload()
    for turn in range(2, 5):
        (project.folder / f"{turn}.json").write_text(f'{{"id": {turn}}}\n')
        project.run()
    before = pipeline.pointers()
    with pipeline.opened() as (job, _):
        assert sum(expired.versions for expired in Maintenance(job).run())
    assert pipeline.pointers() != before
    assert since(project) is ReasonCode.NOTHING_SINCE_LAST_RUN
    assert project.begin() is News.NONE
    written_by_others(project)
    assert since(project) is ReasonCode.FILES_SINCE_LAST_RUN


def test_news_are_part_of_the_jobs(project: Project) -> None:
    (project.folder / "2.json").write_text('{"id": 2}\n')
    settings = project.pipeline.settings
    with existing_store(settings) as store:
        (job,) = LocalService(store, partial(since_last_run, settings)).jobs()
        client = TestClient(
            create_app(
                access=Access(anonymous=Role.READ),
                store=store,
                since_last_run=partial(since_last_run, settings),
            )
        )
        (answered,) = client.get("/api/v1/jobs").json()
    assert job.since_last_run_code == answered["since_last_run_code"] == ReasonCode.FILES_SINCE_LAST_RUN
    assert answered["since_last_run_params"] == {"folders": str(project.folder)}


def test_news_that_are_asked_for_often_are_looked_for_once(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, looks = project.pipeline.settings, list[str]()

    def look(_settings: object, job: JobStatus) -> Reason:
        looks.append(job.name)
        return Reason.of(ReasonCode.NOTHING_SINCE_LAST_RUN)

    monkeypatch.setattr(unchanged, "since_last_run", look)
    with existing_store(settings) as store:
        (job,) = store.jobs.states()
    news = SinceLastRun(settings)
    assert news(job) == news(job)
    assert len(looks) == 1
    news(replace(job, fence=job.fence + 1))
    news(replace(job, fence=job.fence + 1, liveness=Liveness.RUNNING))
    assert len(looks) == 3
    soon_over = SinceLastRun(settings, counts_s=0)
    assert soon_over(job) == soon_over(job)
    assert len(looks) == 5
    assert SinceLastRun(None)(job) is None


def since(project: Project) -> ReasonCode:
    settings = project.pipeline.settings
    with existing_store(settings) as store:
        (job,) = store.jobs.states()
        reason = since_last_run(settings, job)
    assert reason is not None
    return reason.code


def test_questions_of_jobs_do_not_wait_for_each_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = project.pipeline.settings
    with existing_store(settings) as store:
        (job,) = store.jobs.states()
    slow, is_over, looks = replace(job, name="slow"), Event(), list[str]()

    def look(_settings: object, job: JobStatus) -> Reason:
        looks.append(job.name)
        if job is slow:
            assert is_over.wait(60)
        return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause="no broker answers")

    monkeypatch.setattr(unchanged, "since_last_run", look)
    news = SinceLastRun(settings, counts_s=0)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(news, slow) for _ in range(3)]
        assert news(job) == news(job)
        is_over.set()
        assert {answer.result() for answer in answers} == {news(job)}
    # What was not known is not asked again at once.
    assert sorted(looks) == sorted([job.name, "slow"])


def test_a_catalog_that_fails_after_a_run_is_no_failure_of_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, calls = unchanged._states, list[object]()

    def failing(*arguments: Any) -> dict[str, str]:
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError("503")
        return states(*arguments)

    before = project.record.read_bytes()
    monkeypatch.setattr(unchanged, "_states", failing)
    project.run()
    assert len(calls) == 2
    (reason,) = [e.reason for e in project.emitted if isinstance(e, events.RunNotRemembered)]
    assert "503" in str(reason)
    assert project.record.read_bytes() == before


def test_a_storage_without_such_a_file_is_not_looked_at(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> None:
        raise AssertionError("the folders of sources are looked at")

    monkeypatch.setattr(unchanged, "_file_of", lambda _settings: None)
    monkeypatch.setattr(unchanged, "_watch", look)
    assert isinstance(project.program, Reason)
    project.run()
    (reason,) = [e.reason for e in project.emitted if isinstance(e, events.RunNotRemembered)]
    assert "storage" in str(reason)


def test_the_environment_is_read_by_definitions(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/elsewhere")
    assert project.begin() is News.NONE
    monkeypatch.setenv("FOLDER_OF_ORDERS", "x")
    assert project.begin() is News.UNKNOWN


def test_what_can_be_imported_is_read_by_definitions(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    program = project.program
    for cache in ("__pycache__", ".pytest_cache", "spark-warehouse", "metastore_db", "derby.log"):
        (folder / cache).mkdir()
        assert project.program == program, cache
    for name in ("json.py", "a-1.0.dist-info", "b.cpython-311.so", "c.pth", "c-d.egg-link"):
        (folder / name).touch()
        assert project.program != program, name
        (folder / name).unlink()
        assert project.program == program, name
    (folder / "json").mkdir()
    assert project.program == program
    (folder / "json" / "__init__.py").touch()
    assert project.program != program


def test_a_file_that_cannot_be_read_is_left_to_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes

    def refusing(path: Path) -> bytes:
        if path.name == "total.sql":
            raise PermissionError(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    assert isinstance(project.program, Reason)
    assert project.begin() is News.UNKNOWN


def test_a_running_owner_is_waited_for(project: Project) -> None:
    store, settings = project.pipeline.job.store, project.pipeline.settings
    claim = Claim(process=process_of("another"), takeover=True)
    fence = store.jobs.take_over(settings.job, claim=claim)
    content = json.loads(project.record.read_text())
    project.record.write_text(json.dumps(content | {"fence": int(fence)}))
    with pytest.raises(MetaError, match="JOB_RUNNING"):
        project.begin()


def test_files_that_grew_much(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "2.json").write_text('{"id": 2}\n')
    assert project.begin() is News.LITTLE
    monkeypatch.setattr(unchanged, "_LITTLE_BYTES", 5)
    assert project.begin() is News.UNKNOWN
    monkeypatch.undo()
    monkeypatch.setattr(unchanged, "_LITTLE_CPU_MS", 0)
    assert project.begin() is News.UNKNOWN
    monkeypatch.undo()
    monkeypatch.setattr(unchanged, "_MAX_FILES", 1)
    assert project.begin() is News.UNKNOWN


UNWATCHED = {
    "the time": "CREATE MATERIALIZED VIEW v AS SELECT id, current_date() AS d FROM orders",
    "files": "CREATE MATERIALIZED VIEW v AS SELECT * FROM json.`{folder}`",
}


@pytest.mark.parametrize("text", UNWATCHED.values(), ids=UNWATCHED.keys())
def test_what_only_spark_can_ask_is_not_remembered(project: Project, text: str) -> None:
    project.pipeline.write("definitions/more.sql", text.format(folder=project.folder))
    project.record.unlink()
    project.run()
    (reason,) = [e.reason for e in project.emitted if isinstance(e, events.RunNotRemembered)]
    assert reason.code is ReasonCode.SOURCE_NOT_WATCHED
    assert project.begin() is News.UNKNOWN


def test_a_plan_of_the_same_definitions_starts_no_spark(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News of sources are no change of definitions; a comment is looked at."""

    def start(*_: object, **__: object) -> None:
        raise RuntimeError("Spark starts")

    monkeypatch.setattr("tautochrone.app.launch.launch", start)
    (project.folder / "2.json").write_text('{"id": 2}\n')
    unchanged_plan = plan(project.options)
    assert not unchanged_plan.has_changes
    assert not unchanged_plan.is_compared
    assert [part.dataset.table for part in unchanged_plan.datasets] == ["orders", "total"]
    with pytest.raises(RuntimeError, match="Spark starts"):
        plan(project.options, full=["total"])
    project.pipeline.write("definitions/total.sql", VIEW + " -- all")
    with pytest.raises(RuntimeError, match="Spark starts"):
        plan(project.options)
