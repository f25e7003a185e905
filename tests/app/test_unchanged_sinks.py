"""A one-shot run without news starts Spark if, and only if, its sinks are not as the last one left them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Pipeline

from tautochrone.app import unchanged
from tautochrone.app.plan import plan
from tautochrone.app.stores import existing_store
from tautochrone.app.unchanged import News, run_and_remember
from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery import sinks_at_rest
from tautochrone.runtime.loop.run import Run
from tautochrone.sinks import register_sink
from tautochrone.testing.sqlite_sink import SqliteSink, open_toy_sink

from .test_unchanged import Project

pytestmark = pytest.mark.spark

VIEW = """
CREATE MATERIALIZED VIEW total TBLPROPERTIES ('tautochrone.sinks' = 'mirror', 'tautochrone.publish' = 'delta')
AS SELECT count(*) AS n FROM orders
"""


class MirroredProject(Project):
    """A project that ran once, with a view in a sink over SQLite and in a publication."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.mirror = pipeline.folder.parent / f"{pipeline.folder.name}-mirror.db"
        register_sink("toy-sqlite", open_toy_sink)
        pipeline.write(
            "tautochrone.toml", f'[sinks.mirror]\nformat = "toy-sqlite"\noptions.path = "{self.mirror}"\n'
        )
        pipeline.reload()
        super().__init__(pipeline)
        pipeline.write("definitions/total.sql", VIEW)
        self.run()

    def run_that_dies(self, strike: Strike) -> None:
        with self.pipeline.opened(effects=StrikingEffects(strike)) as (job, _):
            try:
                run_and_remember(job, self.program, Run(job), self.emitted.append)
            except Crash:
                return
        raise AssertionError(f"{strike} was never reached")

    def sql(self, *statements: str) -> None:
        with sqlite3.connect(self.mirror) as connection:
            for statement in statements:
                connection.execute(statement)

    @property
    def shown(self) -> int:
        with sqlite3.connect(self.mirror) as connection:
            (row,) = connection.execute("SELECT * FROM total").fetchall()
        return int(row[0])

    @property
    def log(self) -> Path:
        return Path(self.pipeline.settings.storage) / "publications/delta/default/total/_delta_log"


@pytest.fixture
def project(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> MirroredProject:
    monkeypatch.setattr(unchanged, "_OF_SESSION", {*unchanged._OF_SESSION, "PYTEST_CURRENT_TEST"})
    project = MirroredProject(pipeline)
    assert project.begin() is News.NONE
    project.emitted.clear()
    return project


def restored(project: MirroredProject) -> None:
    older = project.mirror.read_bytes()
    (project.folder / "2.json").write_text('{"id": 2}\n')
    project.run()
    assert project.begin() is News.NONE
    project.mirror.write_bytes(older)


def delivered_by_another(project: MirroredProject) -> None:
    with sqlite3.connect(project.mirror) as connection:
        ((fence,),) = connection.execute("SELECT fence FROM taut_pointer")
    open_toy_sink("mirror", {"path": str(project.mirror)}).fence(Fence(fence + 1))


def failed_last(project: MirroredProject) -> None:
    with existing_store(project.pipeline.settings) as store:
        (sink,) = [sink for sink in store.deliveries.sinks() if sink.name == "mirror"]
        job = project.pipeline.settings.job
        fence = store.jobs.newest_fence(job)
        store.deliveries.record_failure(job, fence, "mirror", sink.fence, "no")


def away(project: MirroredProject) -> None:
    project.mirror.unlink()
    project.mirror.mkdir()


CHANGES: dict[str, tuple[Callable[[MirroredProject], object], str]] = {
    "an older copy": (restored, "it shows checkpoint 1"),
    "another owner": (delivered_by_another, "another process owns it"),
    "emptied": (lambda project: project.mirror.unlink(), "there is no file"),
    "a dropped table": (lambda project: project.sql("DROP TABLE total"), "dropped or renamed"),
    "other rows": (lambda project: project.sql("UPDATE total SET n = 7"), "not the same"),
    "no publication": (lambda project: shutil.rmtree(project.log.parents[2]), "it shows nothing"),
    "a publication's table": (lambda project: shutil.rmtree(project.log.parent), "dropped or renamed"),
    "a publication's log": (lambda project: max(project.log.glob("*.json")).unlink(), "dropped or renamed"),
    "a failed delivery": (failed_last, "is not complete"),
    "no server": (away, "OperationalError"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES.keys())
def test_changed_sinks_start_spark(
    project: MirroredProject, change: Callable[[MirroredProject], object], why: str
) -> None:
    change(project)
    project.emitted.clear()
    assert project.begin() is News.UNKNOWN
    assert not project.emitted
    assert project.reason is not None
    assert project.reason.code is ReasonCode.SINK_NOT_AT_REST
    assert why in str(project.reason)


def test_a_sink_at_rest_is_only_read(project: MirroredProject) -> None:
    before = project.mirror.read_bytes(), sorted(project.log.iterdir())
    assert project.begin() is News.NONE
    (reason,) = [event.reason for event in project.emitted if isinstance(event, events.NoNews)]
    assert reason is not None
    assert (reason.code, reason.params) == (ReasonCode.UNCHANGED_WITH_SINKS, {"rows": 100_000})
    assert (project.mirror.read_bytes(), sorted(project.log.iterdir())) == before
    project.sql("DROP TABLE total")
    assert project.begin() is News.UNKNOWN
    project.run()
    assert project.shown == 1
    assert project.begin() is News.NONE


def test_large_tables_are_compared_by_what_they_are(
    project: MirroredProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int | None] = []

    def changed_tables(_sink: SqliteSink, _tables: object, max_rows: int | None) -> dict[str, Reason]:
        limits.append(max_rows)
        return {}

    monkeypatch.setattr(SqliteSink, "changed_tables", changed_tables)
    assert project.begin() is News.NONE
    assert limits == [sinks_at_rest.COMPARED_ROWS]


@pytest.mark.parametrize(
    ("step", "when"),
    [
        (Step.META_DELIVERY_INTEND, "before"),
        (Step.SINK_COMMIT, "before"),
        (Step.SINK_COMMIT, "after"),
        (Step.META_DELIVERY_DONE, "before"),
    ],
    ids=str,
)
def test_a_delivery_that_died_goes_on(project: MirroredProject, step: Step, when: str) -> None:
    (project.folder / "2.json").write_text('{"id": 2}\n')
    project.run_that_dies(Strike(step, when, "crash"))
    assert project.begin() is not News.NONE
    project.run()
    assert project.shown == 2
    assert project.begin() is News.NONE


def test_a_sink_that_waits_is_not_waited_for(
    project: MirroredProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_wait(_sink: SqliteSink, report: Callable[[Reason], None]) -> None:
        report(Reason.of(ReasonCode.SINK_SERVER_AWAY, text="it is away"))

    monkeypatch.setattr(SqliteSink, "on_wait", on_wait, raising=False)
    assert project.begin() is News.UNKNOWN


def test_a_sink_that_does_not_answer_is_not_waited_for(
    project: MirroredProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Event()
    monkeypatch.setattr(sinks_at_rest, "_ANSWER_S", 0.2)
    monkeypatch.setattr(SqliteSink, "highest_fence", lambda _sink: answers.wait(60))
    assert project.begin() is News.UNKNOWN
    answers.set()
    assert "sink mirror" in str(project.reason)
    assert "within 0.2 s" in str(project.reason)


def test_a_sink_that_can_only_be_opened_to_write(
    project: MirroredProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_sink("toy-sqlite", lambda name, options: open_toy_sink(name, options))
    try:
        assert project.begin() is News.UNKNOWN
        assert "without being written to" in str(project.reason)
        project.record.unlink()
        project.run()
    finally:
        register_sink("toy-sqlite", open_toy_sink)
    (reason,) = [e.reason for e in project.emitted if isinstance(e, events.RunNotRemembered)]
    assert "the sink mirror, which cannot be opened without being written to" in str(reason)


def test_other_sinks_of_the_job_start_spark(project: MirroredProject) -> None:
    content = json.loads(project.record.read_text())
    assert content["sinks"] == ["delta-publication", "mirror"]
    project.record.write_text(json.dumps(content | {"sinks": ["mirror"]}))
    assert project.begin() is News.UNKNOWN


UNWATCHED = {
    "which Spark writes": """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("more", "noop", {})

@dp.append_flow(target="more")
def all_orders():
    return spark.readStream.table("orders")
""",
    "whose options are in the definitions": """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("more", "toy-sqlite", {"path": "{file}"})

@dp.append_flow(target="more")
def all_orders():
    return spark.readStream.table("orders")
""",
}


@pytest.mark.parametrize("why", UNWATCHED)
def test_sinks_that_only_spark_can_ask(project: MirroredProject, why: str) -> None:
    file = project.mirror.with_name("more.db")
    project.pipeline.write("definitions/more.py", UNWATCHED[why].replace("{file}", str(file)))
    project.record.unlink()
    project.run()
    (reason,) = [e.reason for e in project.emitted if isinstance(e, events.RunNotRemembered)]
    assert reason.code is ReasonCode.SOURCE_NOT_WATCHED
    assert f"the sink more, {why}" in str(reason)
    assert project.begin() is News.UNKNOWN


def test_a_plan_looks_at_sinks_by_itself(project: MirroredProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise RuntimeError("Spark starts")

    monkeypatch.setattr("tautochrone.app.launch.launch", start)
    with pytest.raises(RuntimeError, match="Spark starts"):
        plan(project.options)
