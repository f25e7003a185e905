"""Plans that are applied where the lake, the store or other processes went on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike
from tests.runtime.delivery.test_stream_sinks import wait_until
from tests.runtime.maintenance.conftest import SETTINGS as UPKEEP
from tests.runtime.planning.test_builds import (
    BIG,
    CHANGED,
    NEW,
    OLD,
    TOTALS,
    WIDER,
    Project,
    amounts,
    apply_newest,
    branches,
    build_all,
    described,
    drop_all,
    error_class,
)
from tests.support.stores import fresh_postgres

from tautochrone.errors import FencedError
from tautochrone.model import limits
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.effects import Step
from tautochrone.model.project_build import BuiltTable
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.loop.takeover import take_over
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.planning.build import build, survey
from tautochrone.runtime.planning.plan_project import plan_project

pytestmark = pytest.mark.spark

Begin = Callable[..., Project]
BOTH = pytest.mark.parametrize(
    "changed",
    [
        pytest.param(CHANGED, id="same_columns", marks=pytest.mark.slow),
        pytest.param(WIDER, id="other_columns"),
    ],
)
"""The new definition of `totals`."""


@pytest.fixture
def begin(tmp_path: Path, spark: SparkSession) -> Iterator[Begin]:
    """Makes a project with these settings, and runs it."""
    projects: list[Project] = []

    def started(settings: str = "") -> Project:
        projects.append(described(tmp_path, spark, settings))
        assert projects[-1].run().state == "COMPLETED"
        return projects[-1]

    yield started
    for each in projects:
        each.close()


def run_with_old(project: Project, *amounts_added: int) -> None:
    """New sales, which a run with the deployed definitions takes."""
    project.define("totals", TOTALS)
    project.add_sales(*amounts_added)
    assert project.run().state == "COMPLETED"
    project.define("totals", CHANGED)


@BOTH
def test_maintenance_took_the_base(begin: Begin, changed: str) -> None:
    """What came since cannot be followed from an expired version: it is computed. The built rows stay."""
    project = begin(UPKEEP)
    project.define("totals", changed)
    project.attempt(build_all)
    (built,) = project.builds()
    for amount in (10, 20, 30, 40):
        run_with_old(project, amount)
    with project.opened() as (job, _):
        take_over(job)
        Maintenance(job).run()
        assert job.store.checkpoints.get(built.base).state is CheckpointState.EXPIRED
    project.define("totals", changed)
    project.attempt(apply_newest)
    factor = 2 if changed == CHANGED else 1
    assert amounts(project) == sorted(factor * n for n in (105, 7, 9))
    assert (project.builds(), branches(project)) == ((), set())
    project.add_sales(1)
    assert project.run().state == "COMPLETED"
    project.verify()


def test_the_base_stays_when_a_later_checkpoint_is_revised(begin: Begin) -> None:
    project = begin()
    project.define("totals", CHANGED)
    identity, _ = project.build()
    run_with_old(project, 10)
    run_with_old(project, 100)
    (project.folder / "in/2.json").unlink()
    done = project.taut("revise", "sales", "--to", "2", "--read-again", "--accept")
    assert done.returncode == 0, done.stderr
    assert project.apply(identity).returncode == 0
    assert amounts(project) == [14, 18, 30]
    assert project.run().state == "COMPLETED"
    project.verify()


def test_a_store_in_postgresql(begin: Begin) -> None:
    project = begin(f'[meta]\nurl = "{fresh_postgres()}"\n')
    project.define("totals", CHANGED)
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM totals;")
    identity, differences = project.build("--key", "kind")
    assert differences["totals"]["changed"] == 3
    assert project.apply(identity).returncode == 0
    assert (amounts(project), project.query("SELECT n FROM counts")) == (NEW, [(3,)])
    assert project.run().state == "COMPLETED"
    project.verify()


@BOTH
def test_two_plans_at_once(begin: Begin, spark: SparkSession, changed: str) -> None:
    """The second is built while the first is. Each has its own rows, and only the first is applied."""
    project = begin()
    project.define("totals", changed)
    project.define("big", BIG.replace("> 3", "> 4"))
    other = Project(project.folder, spark, may_fall_back=True)
    started: list[str] = []

    def built(_table: BuiltTable, _duration_ms: int) -> None:
        if not started:
            started.append(other.build()[0])

    with project.opened() as (job, _):
        first = build(job, survey(job, plan_project(job)), lambda _: [], built)
    other.close()
    assert {each.id for each in project.builds()} == {first.id, *started}
    assert project.apply(first.id).returncode == 0
    assert error_class(project.apply(started[0])) == "BUILD_BASE_CHANGED"
    assert project.query("SELECT count(*) FROM big") == [(2,)]
    assert project.taut("plan", "--drop", started[0]).returncode == 0
    assert (project.builds(), branches(project)) == ((), set())
    assert project.run().state == "COMPLETED"
    project.verify()


def test_a_running_job_is_taken_over(begin: Begin) -> None:
    """`--takeover` ends a continuous run, which publishes nothing over the applied rows."""
    project = begin()
    project.define("totals", CHANGED)
    identity, _ = project.build()
    other = Project(project.folder, project.session, may_fall_back=True)
    project.define("totals", TOTALS)
    other.reload()
    with other.opened() as (job, happened):
        running = Run(job)

        def run_until_fenced() -> None:
            with pytest.raises(FencedError):
                running.continuously(300)

        thread = Thread(target=run_until_fenced)
        thread.start()
        project.add_sales(10)
        wait_until(lambda: bool(happened.checkpoints))
        project.define("totals", CHANGED)
        done = project.apply(identity, "--takeover")
        thread.join(timeout=60)
        is_ended = not thread.is_alive()
        running.stop()
        thread.join(timeout=60)
    other.close()
    assert is_ended, "the run that lost its job does not end"
    assert done.returncode == 0, done.stderr
    assert amounts(project) == [14, 18, 30]
    assert project.run().state == "COMPLETED"
    project.verify()


def test_views_over_new_streaming_tables(begin: Begin) -> None:
    """They are built over no rows, and follow those that the flows bring."""
    project = begin()
    text = (project.folder / "definitions/sales.py").read_text()
    returns = text.replace("sales", "returns").replace(f"{project.folder}/in", f"{project.folder}/back")
    project.write("definitions/returns.py", returns)
    project.write("back/1.json", '{"id": 7, "kind": "k2", "amount": 3}\n')
    project.define("stream", "CREATE STREAMING TABLE stream AS SELECT id FROM STREAM sales;")
    project.define("ids", "CREATE MATERIALIZED VIEW ids AS SELECT count(*) AS n FROM stream;")
    project.define(
        "totals",
        "CREATE MATERIALIZED VIEW totals AS SELECT s.kind, sum(s.amount - coalesce(r.amount, 0)) AS amount "
        "FROM sales s LEFT JOIN returns r ON s.kind = r.kind AND s.amount = r.amount GROUP BY s.kind;",
    )
    project.write("invariants/none.sql", "SELECT * FROM returns WHERE amount < 0")
    _, differences = project.build()
    assert differences["ids"]["added"] == 1
    assert differences["totals"]["same"]
    (built,) = project.builds()
    noted = {note.split(" is new")[0] for note in built.notes}
    assert noted == {"lake.default.returns", "lake.default.stream"}
    assert not project.session.catalog.tableExists("lake.default.returns")
    again, _ = project.build()
    assert project.taut("plan", "--drop", again).returncode == 0
    project.attempt(apply_newest)
    assert project.builds() == ()
    assert amounts(project) == OLD
    assert project.query("SELECT n FROM ids") == [(6,)]
    project.verify()
    assert project.run().state == "COMPLETED"
    assert project.query("SELECT kind, amount FROM totals") == [("k0", 5), ("k1", 7), ("k2", 6)]
    project.verify()


PUBLISHED = "TBLPROPERTIES ('tautochrone.publish' = 'delta, hudi, paimon') AS"


@BOTH
def test_publications_get_the_built_rows(begin: Begin, changed: str) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("hudi")
    from tests.sinks.publications.toy_lake import READERS, listed_versions

    project = begin()
    project.define("totals", TOTALS.replace(" AS", f" {PUBLISHED}", 1))
    assert project.run().state == "COMPLETED"
    project.define("totals", changed.replace(" AS", f" {PUBLISHED}", 1))
    project.attempt(build_all)
    project.add_sales(1)
    project.attempt(apply_newest)
    assert project.run().state == "COMPLETED"
    project.verify()
    expected = project.query("SELECT kind, amount FROM totals")
    folder = project.folder / "storage/publications"
    for name, read in READERS.items():
        (table,) = (folder / name).glob("default*/totals")
        _, versions = max(listed_versions(folder / name).items())
        rows = read(table, next(iter(versions.values()))).select(["kind", "amount"]).to_pylist()
        assert sorted((row["kind"], row["amount"]) for row in rows) == expected, name


def state_refs(project: Project) -> set[tuple[str, str]]:
    """Branches of state tables that are not main."""
    session, query = project.session, "SELECT name FROM lake._tautochrone.{}.refs WHERE name <> 'main'"
    tables = [row.tableName for row in session.sql("SHOW TABLES IN lake._tautochrone").collect()]
    return {(table, name) for table in tables for (name,) in session.sql(query.format(table)).collect()}


COUNTS = "CREATE MATERIALIZED VIEW counts AS SELECT amount, count(*) AS n FROM totals GROUP BY amount;"


@BOTH
def test_states_of_built_rows(begin: Begin, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """The first change after the plan is applied is followed."""
    monkeypatch.setattr(limits, "TINY_INPUT_ROWS", 0)
    project = begin('[refresh]\npolicy = "incremental"\n')
    project.define("totals", changed)
    project.define("counts", COUNTS)
    project.attempt(build_all)
    assert {table.split("__")[1] for table, _ in state_refs(project)} == {"totals", "counts", "top"}
    project.attempt(drop_all)
    assert state_refs(project) == set()
    assert not [
        row
        for row in project.session.sql("SHOW TABLES IN lake._tautochrone").collect()
        if "counts" in row.tableName
    ]
    project.attempt(build_all)
    project.define("counts", None)
    run_with_old(project, 10)
    project.define("totals", changed)
    project.define("counts", COUNTS)
    project.attempt(apply_newest)
    assert state_refs(project) == set()
    project.verify()
    project.add_sales(1, 2, 3)
    happened = project.run()
    for view in ("totals", "counts", "top"):
        nodes = {node["mode"] for node in happened.refresh(view)["nodes"]}
        assert nodes <= {"append", "incremental"}, happened.refresh(view)
    project.verify()


STATE_STRIKES = [
    Strike(Step.LAKE_APPLY_BUILD, when, "crash", nth) for nth in (1, 2, 3, 4) for when in ("before", "after")
]


@pytest.mark.parametrize(
    "strike",
    [STATE_STRIKES[1], *(pytest.param(s, marks=pytest.mark.slow) for s in (*STATE_STRIKES[2:],))],
    ids=str,
)
@pytest.mark.parametrize("goes_back", [False, True], ids=["goes_on", "goes_back"])
def test_states_after_a_death(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, strike: Strike, goes_back: bool
) -> None:
    """With the new definitions or with the old ones: states are those of the rows, or computed anew."""
    monkeypatch.setattr(limits, "TINY_INPUT_ROWS", 0)
    project = begin('[refresh]\npolicy = "incremental"\n')
    project.define("totals", CHANGED)
    project.attempt(build_all)
    project.attempt(apply_newest, strike)
    if goes_back:
        run_with_old(project, 5, 50)
        project.verify()
    for amount in (1, 20):
        project.add_sales(amount)
        assert project.run().state == "COMPLETED"
        project.verify()
    assert (project.builds(), state_refs(project)) == ((), set())
