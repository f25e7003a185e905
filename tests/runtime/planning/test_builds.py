"""Plans that are built beside the deployed views, compared, applied and dropped."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.runtime.commands import taut_in_process
from tests.runtime.delivery.test_stream_sinks import wait_until
from tests.support.harness import Pipeline

from tautochrone.model import limits
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.model.project_build import BuildState, BuiltTable, ProjectBuild
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.planning import build as planning_build
from tautochrone.runtime.planning.apply_build import apply_build
from tautochrone.runtime.planning.build import build, survey
from tautochrone.runtime.planning.drop_build import drop_build
from tautochrone.runtime.planning.plan_project import plan_project
from tautochrone.testing.sqlite_sink import FORMAT, open_toy_sink

pytestmark = pytest.mark.spark

SALES = """
from pyspark import pipelines as dp

@dp.table
def sales():
    return spark.readStream.schema("id BIGINT, kind STRING, amount BIGINT").json("@IN@")
"""
TOTALS = "CREATE MATERIALIZED VIEW totals AS SELECT kind, sum(amount) AS amount FROM sales GROUP BY kind;"
TOP = "CREATE MATERIALIZED VIEW top AS SELECT max(amount) AS amount FROM totals;"
BIG = "CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 3;"
CHANGED = TOTALS.replace("sum(amount)", "2 * sum(amount)")
WIDER = TOTALS.replace("sum(amount) AS", "count(*) AS n, sum(amount) AS")


class Project(Pipeline):
    """Sales of three kinds, totals of them, and two more views. Commands run in this process."""

    def add_sales(self, *amounts: int) -> None:
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        rows = [{"id": 100 * number + n, "kind": f"k{n % 3}", "amount": a} for n, a in enumerate(amounts)]
        (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def define(self, name: str, text: str | None) -> None:
        if text is None:
            (self.folder / f"definitions/{name}.sql").unlink()
        else:
            self.write(f"definitions/{name}.sql", text)

    def taut(self, *words: str, effects: Effects | None = None) -> subprocess.CompletedProcess[str]:
        self._close_project()
        return taut_in_process(self.folder, self.session, *words, effects=effects)

    def build(self, *words: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """The id of a new build, and what differs, by table."""
        done = self.taut("plan", "--build", "--json", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        *tables, last = map(json.loads, done.stdout.splitlines())
        return last["build"], {re.sub(r".*\.", "", line["table"]): line for line in tables}

    def apply(self, build: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.taut("apply", build, "--json", *words)

    def attempt(self, act: Callable[[Job], object], strike: Strike | None = None) -> StrikingEffects:
        """A process that does something with a job, and dies at the strike."""
        effects = StrikingEffects(strike)
        with self.opened(effects) as (job, _):
            if strike is None:
                act(job)
            else:
                with pytest.raises(Crash):
                    act(job)
                assert effects.struck, f"nothing took {strike}"
        return effects

    def builds(self) -> tuple[ProjectBuild, ...]:
        with self.opened() as (job, _):
            return job.store.builds.of_job(job.name)

    def versions(self) -> dict[str, str]:
        with self.opened() as (job, _):
            latest = job.store.checkpoints.latest_published(job.name)
            assert latest is not None
            versions = job.store.reads.published_versions(latest.number)
            return {name.table: version for name, version in versions.items()}


def described(folder: Path, spark: SparkSession, settings: str = "") -> Project:
    project = Project(folder, spark, may_fall_back=True, settings=settings)
    project.write("definitions/sales.py", SALES.replace("@IN@", str(folder / "in")))
    for name, text in (("totals", TOTALS), ("top", TOP), ("big", BIG)):
        project.define(name, text)
    project.add_sales(1, 2, 3, 4, 5, 6)
    return project


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Iterator[Project]:
    project = described(tmp_path, spark)
    assert project.run().state == "COMPLETED"
    yield project
    project.close()


def error_class(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    matched = re.search(r"\[([A-Z_]+)\]", done.stderr)
    assert matched, done.stdout + done.stderr
    return matched[1]


def build_all(job: Job) -> None:
    build(job, survey(job, plan_project(job)), lambda _: [], lambda *_: None)


def apply_newest(job: Job) -> None:
    apply_build(job, job.store.builds.of_job(job.name)[-1])


def drop_all(job: Job) -> None:
    for each in job.store.builds.of_job(job.name):
        drop_build(job.store, job.lake, job.effects, each)


def amounts(project: Project) -> list[int]:
    return [amount for (amount,) in project.query("SELECT amount FROM totals")]


OLD, NEW = [5, 7, 9], [10, 14, 18]


def test_what_was_looked_at_is_the_next_checkpoint(project: Project) -> None:
    project.define("totals", CHANGED)
    identity, differences = project.build("--key", "kind")
    assert differences.keys() == {"totals", "top"}
    totals = differences["totals"]
    assert (totals["added"], totals["removed"], totals["changed"]) == (3, 3, 3)
    assert totals["changed_values"] == {"amount": 3}
    assert sorted(row["amount"] for row in totals["rows_added"]) == NEW
    assert amounts(project) == OLD
    (built,) = project.builds()
    assert not any(view.comparison and view.comparison.samples for view in built.views), "in no list"
    with project.opened() as (job, _):
        view = job.store.builds.look_up(built.id).views[0]
    assert view.difference is not None
    assert view.table.table == "totals"
    assert "+2 * sum(amount) AS amount" in view.difference
    assert view.comparison is not None
    assert (view.comparison.added, view.comparison.changed, len(view.comparison.samples)) == (3, 3, 2)
    shown = project.taut("diff", "1", f"plan-{identity}", "totals", "--json")
    assert json.loads(shown.stdout)["added"] == 3, shown.stderr
    before, jobs = project.versions(), project.spark_jobs()
    done = project.apply(identity)
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.spark_jobs() == jobs, "applying computes nothing"
    reasons = {
        e["dataset"]: e["reason_code"] for e in map(json.loads, done.stdout.splitlines()) if "mode" in e
    }
    assert reasons["lake.default.totals"] == reasons["lake.default.top"] == "BUILD_APPLIED"
    assert amounts(project) == NEW
    assert project.query("SELECT amount FROM top") == [(18,)]
    after = project.versions()
    assert (after["big"], after["sales"]) == (before["big"], before["sales"])
    assert project.builds() == ()
    assert error_class(project.apply(identity)) == "BUILD_NOT_FOUND"
    (listed,) = map(json.loads, project.taut("plan", "--list", "--json").stdout.splitlines())
    assert (listed["id"], listed["state"], listed["tables"][0]["added"]) == (identity, "applied", 3)
    project.add_sales(10)
    happened = project.run()
    assert happened.refresh("totals")["reason_code"] != "DEFINITION_CHANGED"
    assert amounts(project) == [14, 18, 30]
    project.verify()


def test_columns_and_new_views(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # The views keep states.
    monkeypatch.setattr(limits, "TINY_INPUT_ROWS", 0)
    project.define("totals", WIDER)
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT sum(n) AS n FROM totals;")
    project.define("big", None)
    identity, differences = project.build()
    assert differences.keys() == {"totals", "counts", "top"}
    assert differences["totals"]["columns_added"] == ["n"]
    assert (differences["counts"]["added"], differences["top"]["same"]) == (1, True)
    with pytest.raises(Exception, match="counts"):
        project.query("SELECT * FROM counts")
    # Rows come before it is applied, and a run with the former definitions takes them.
    project.define("totals", TOTALS)
    project.define("counts", None)
    project.define("big", BIG)
    project.add_sales(7, 8)
    assert project.run().state == "COMPLETED"
    project.define("totals", WIDER)
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT sum(n) AS n FROM totals;")
    project.define("big", None)
    done = project.apply(identity)
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.query("SELECT n, amount FROM totals") == [(2, 9), (3, 12), (3, 15)]
    assert project.query("SELECT n FROM counts") == [(8,)]
    project.add_sales(1)
    assert project.run().state == "COMPLETED"
    assert project.query("SELECT n FROM counts") == [(9,)]
    project.verify()


def test_a_sink_and_a_build_over_it(project: Project) -> None:
    """The change from one definition to the other reaches the sink, over the same columns and over others."""
    mirror = project.folder / "mirror.db"
    project.write("tautochrone.toml", f'[sinks.mirror]\nformat = "{FORMAT}"\noptions.path = "{mirror}"\n')
    project.reload()
    as_sent = "totals TBLPROPERTIES ('tautochrone.sinks' = 'mirror') AS"
    project.define("totals", TOTALS.replace("totals AS", as_sent))
    assert project.run().state == "COMPLETED"
    # A sink has new columns behind those that it has.
    for text, columns in ((CHANGED, "kind, amount"), (WIDER, "kind, amount, n")):
        project.define("totals", text.replace("totals AS", as_sent))
        project.attempt(build_all)
        project.add_sales(1)
        project.attempt(apply_newest)
        rows = project.query(f"SELECT {columns} FROM totals")
        sink = open_toy_sink("mirror", {"path": str(mirror)})
        assert sorted(sink.rows(TableName("lake", ("default",), "totals"))) == rows
        sink.close()
    assert project.run().state == "COMPLETED"
    project.verify()


def test_refusals(project: Project) -> None:
    project.define("totals", CHANGED)
    identity, _ = project.build()
    other, _ = project.build()
    project.define("big", BIG.replace("> 3", "> 4"))
    assert error_class(project.apply(identity)) == "BUILD_DEFINITIONS_CHANGED"
    assert error_class(project.apply("0123abcd")) == "BUILD_NOT_FOUND"
    project.define("big", BIG)
    assert project.apply(identity).returncode == 0
    assert error_class(project.apply(other)) == "BUILD_BASE_CHANGED"
    assert project.taut("plan", "--drop").returncode == 0
    assert project.builds() == ()
    assert project.taut("plan", "--build").stdout == "nothing to build: no view changes\n"
    project.define("totals", TOTALS)
    project.define("stream", "CREATE STREAMING TABLE stream AS SELECT kind FROM STREAM totals;")
    assert error_class(project.taut("plan", "--build")) == "BUILD_NOT_POSSIBLE"
    project.define("stream", None)
    identity, _ = project.build()
    assert project.taut("revise", "sales", "--to", "1", "--accept").returncode == 0
    assert error_class(project.apply(identity)) == "CHECKPOINT_REVOKED"


def test_streaming_tables_that_change(project: Project) -> None:
    """Views are built over new columns as NULL, as the run that applies them reads them."""
    text = SALES.replace("@IN@", str(project.folder / "in"))
    project.write("definitions/sales.py", text.replace("amount BIGINT", "amount BIGINT, note STRING"))
    project.define("big", BIG.replace("amount FROM", "amount, upper(note) AS note FROM"))
    project.define("stream", "CREATE STREAMING TABLE stream AS SELECT id FROM STREAM sales;")
    project.write("invariants/notes.sql", "SELECT * FROM sales WHERE note <> ''")
    identity, differences = project.build()
    assert {name: line["columns_added"] for name, line in differences.items()} == {"big": ["note"]}
    assert [build.notes for build in project.builds()] == [()]
    done = project.apply(identity)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (e for e in map(json.loads, done.stdout.splitlines()) if e.get("dataset") == "lake.default.big")
    assert line["nodes"][0]["reason_code"] == "BUILD_APPLIED"
    assert line["rows_inserted"] == 3, "what follows is an append of no row"
    assert project.query("SELECT DISTINCT note FROM big") == [(None,)]
    project.write("in/note.json", '{"id": 7, "kind": "k", "amount": 9, "note": ""}\n')
    assert project.run().state == "COMPLETED"
    assert project.query("SELECT note FROM big WHERE id = 7") == [("",)]
    assert project.query("SELECT count(*) FROM stream") == [(7,)]
    project.verify()


def test_checks_of_built_rows(project: Project) -> None:
    project.write("invariants/positive.sql", "SELECT * FROM totals WHERE amount < 0")
    test = "unit_tests:\n  - name: two\n    model: totals\n    given:\n      - input: sales\n        rows:\n"
    test += "          - {kind: a, amount: 1}\n    expect:\n      rows:\n        - {kind: a, amount: 1}\n"
    project.write("tests.yml", test)
    project.define("totals", TOTALS.replace("sum(amount)", "-sum(amount)"))
    done = project.taut("plan", "--build")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "! invariant positive: " in done.stdout
    assert "! unit test two of totals: " in done.stdout
    (built,) = project.builds()
    assert error_class(project.apply(built.id)) == "BUILD_CHECKS_FAILED"
    assert project.taut("plan", "--drop", built.id).returncode == 0
    expected = "totals (CONSTRAINT small EXPECT (amount < 6) ON VIOLATION FAIL UPDATE) AS"
    project.define("totals", TOTALS.replace("totals AS", expected))
    assert error_class(project.taut("plan", "--build")) == "EXPECTATION_FAILED"
    project.define("totals", TOTALS.replace("sum(amount)", "sum(amount / (amount - 1))"))
    assert "could not be built" in project.taut("plan", "--build").stderr
    assert project.builds() == ()
    assert branches(project) == set()


def branches(project: Project) -> set[str]:
    """The branches of all tables that are not main."""
    names = set()
    for table in ("totals", "top", "big", "counts"):
        if project.session.catalog.tableExists(f"lake.default.{table}"):
            rows = project.session.sql(f"SELECT name FROM lake.default.{table}.refs").collect()
            names |= {name for (name,) in rows}
    return names - {"main"}


def test_a_full_refresh_stays(project: Project) -> None:
    """What was decided and not applied does not come back over rows that were computed later."""
    project.define("totals", CHANGED)
    project.attempt(build_all)
    project.attempt(build_all)
    decided = Strike(Step.META_APPLY_BUILD, "after", "crash")
    for each in project.builds():
        project.attempt(partial(apply_build, build=each), decided)
    assert [each.state for each in project.builds()] == [BuildState.DECIDED] * 2
    happened = project.run(full=["totals"])
    assert happened.refresh("totals")["reason_code"] == "FULL_REFRESH_REQUESTED"
    assert (project.builds(), branches(project)) == ((), set())
    project.add_sales(10)
    assert project.run().refresh("totals")["nodes"][0]["reason_code"] != "BUILD_APPLIED"
    assert amounts(project) == [14, 18, 30]


def test_rows_that_came_meanwhile(project: Project) -> None:
    """They are followed in the refresh that applies the build, which says both; or they are refused."""
    checked = BIG.replace("big AS", "big (CONSTRAINT small EXPECT (amount < 6)) AS")
    project.define("big", checked)
    identity, _ = project.build()
    project.define("big", BIG)
    project.add_sales(8, 9)
    assert project.run().state == "COMPLETED"
    project.define("big", checked)
    done = project.apply(identity)
    assert done.returncode == 0, done.stderr
    (line,) = (e for e in map(json.loads, done.stdout.splitlines()) if e.get("dataset") == "lake.default.big")
    assert line["reason_code"] != "BUILD_APPLIED"
    assert line["nodes"][0]["reason_code"] == "BUILD_APPLIED"
    assert [(e["violations"], e["change"]) for e in line["expectations"]] == [(3, 3)]

    strict = checked.replace("(amount < 6)", "(amount < 10) ON VIOLATION FAIL UPDATE")
    project.define("big", strict)
    identity, _ = project.build()
    project.define("big", checked)
    project.add_sales(10)
    assert project.run().state == "COMPLETED"
    project.define("big", strict)
    for _ in range(2):
        done = project.apply(identity)
        assert (done.returncode, [each.id for each in project.builds()]) == (1, [identity])
        assert f"no checkpoint shows plan {identity} (FAILED)" in done.stderr
    assert branches(project) == set()


def test_another_job_keeps_the_build_from_readers(tmp_path: Path, spark: SparkSession) -> None:
    def use(name: str) -> None:
        project.write("tautochrone.toml", settings.replace("@", name))
        project.reload()

    settings = '[run]\njob = "@"\npatience = "0s"\n[jobs.totals]\ndatasets = ["totals"]\n'
    settings += '[jobs.top]\ndatasets = ["top"]\n'
    project = described(tmp_path, spark, settings.replace("@", "test"))
    for name in ("test", "totals", "top", "totals"):
        use(name)
        project.run()
    project.define("totals", CHANGED)
    project.attempt(build_all)
    project.attempt(apply_newest)
    assert (len(project.builds()), branches(project), amounts(project)) == (1, set(), OLD)
    use("top")
    project.run()
    assert amounts(project) == NEW
    use("totals")
    project.attempt(apply_newest)
    assert project.builds() == ()
    project.close()


def test_the_base_stays_pinned(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while one view takes longer than the lease."""
    monkeypatch.setattr(planning_build, "_LEASE_MS", 1500)
    pins: list[int] = []

    def built(_table: BuiltTable, _duration_ms: int) -> None:
        time.sleep(2)
        pins.append(len(project.job.store.pins.live()))

    project.define("big", BIG.replace("> 3", "> 4"))
    with project.opened() as (job, _):
        build(job, survey(job, plan_project(job)), lambda _: [], built)
        assert (pins, job.store.pins.live()) == ([1], ())


BUILD_STRIKES = [
    Strike(step, when, "crash", nth)
    for step, nth in [
        (Step.META_BUILD, 1), (Step.LAKE_CREATE, 1), (Step.LAKE_BUILD, 1), (Step.LAKE_BUILD, 2),
        (Step.META_BUILT, 1),
    ]
    for when in ("before", "after")
]  # fmt: skip
DROP_STRIKES = [
    Strike(step, when, "crash", nth)
    for step, nth in [
        (Step.LAKE_DROP_BUILD, 1), (Step.LAKE_DISCARD, 1), (Step.LAKE_DROP_BUILD, 2), (Step.LAKE_DROP, 1),
        (Step.LAKE_DELETE, 1), (Step.META_DROP_BUILD, 1),
    ]
    for when in ("before", "after")
]  # fmt: skip
APPLY_STRIKES = [
    Strike(step, when, "crash", nth)
    for step, nth in [
        (Step.META_APPLY_BUILD, 1), (Step.LAKE_APPLY_BUILD, 1), (Step.LAKE_APPLY_BUILD, 2),
        (Step.META_VERSION, 1), (Step.META_PUBLISH, 1), (Step.META_BUILD_APPLIED, 1),
    ]
    for when in ("before", "after")
]  # fmt: skip


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([BUILD_STRIKES[5]], id="some"),
        pytest.param(BUILD_STRIKES, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_build_that_dies_is_dropped(project: Project, strikes: list[Strike]) -> None:
    files = set((project.folder / "storage").rglob("*.parquet"))
    project.define("totals", CHANGED)
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM totals;")
    for strike in strikes:
        project.attempt(build_all, strike)
    assert amounts(project) == OLD
    project.attempt(drop_all)
    assert (project.builds(), branches(project)) == ((), set())
    assert not project.session.catalog.tableExists("lake.default.counts")
    left = set((project.folder / "storage").rglob("*.parquet")) - files
    assert len(left) <= len(strikes), "only what was staged without a commit is left to maintenance"
    project.attempt(build_all)
    project.attempt(apply_newest)
    assert amounts(project) == NEW


def test_a_build_that_a_lost_store_knew_is_dropped(project: Project) -> None:
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM totals;")
    project.attempt(build_all)
    with project.opened() as (job, _):
        (lost,) = job.store.builds.of_job(job.name)
        job.store.builds.remove(job.name, lost.id)
    done = project.taut("plan", "--drop")
    assert (done.returncode, done.stdout) == (0, f"plan {lost.id} is dropped\n")
    assert not project.session.catalog.tableExists("lake.default.counts")
    assert project.run().state == "COMPLETED"
    assert project.query("SELECT n FROM counts") == [(3,)]


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([DROP_STRIKES[1], DROP_STRIKES[7]], id="some"),
        pytest.param(DROP_STRIKES, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_drop_that_dies_is_completed(project: Project, strikes: list[Strike]) -> None:
    project.define("totals", CHANGED)
    project.define("counts", "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM totals;")
    for strike in strikes:
        if len(strikes) > 2 or not project.builds():
            # What the strike before left may lack its step.
            project.attempt(build_all)
        project.attempt(drop_all, strike)
    project.attempt(drop_all)
    assert (project.builds(), branches(project)) == ((), set())
    assert not project.session.catalog.tableExists("lake.default.counts")
    assert project.run().state == "COMPLETED"
    assert amounts(project) == NEW


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([APPLY_STRIKES[3], APPLY_STRIKES[8]], id="some"),
        pytest.param(APPLY_STRIKES, id="all", marks=pytest.mark.slow),
    ],
)
def test_an_apply_that_dies_is_completed(project: Project, strikes: list[Strike]) -> None:
    project.define("totals", CHANGED)
    project.attempt(build_all)
    for strike in strikes:
        with project.opened(StrikingEffects(strike)) as (job, _), contextlib.suppress(Crash):
            apply_newest(job)
        assert amounts(project) in (OLD, NEW)
        assert project.query("SELECT amount FROM top") == [(max(amounts(project)),)]
        if not project.builds():
            break
    # Whoever comes next goes on.
    if len(strikes) < 3:
        project.run()
    elif project.builds():
        project.attempt(apply_newest)
    assert amounts(project) == NEW
    assert (project.builds(), branches(project)) == ((), set())
    project.verify()


@pytest.mark.parametrize(
    "strike",
    [
        APPLY_STRIKES[3],
        *(
            pytest.param(strike, marks=pytest.mark.slow)
            for strike in (*APPLY_STRIKES[:3], *APPLY_STRIKES[4:])
        ),
    ],
    ids=str,
)
def test_the_old_definitions_stand_after_a_death(project: Project, strike: Strike) -> None:
    project.define("totals", CHANGED)
    project.attempt(build_all)
    project.define("totals", TOTALS)
    project.add_sales(2)
    assert project.run().state == "COMPLETED"
    project.define("totals", CHANGED)
    project.attempt(apply_newest, strike)
    project.define("totals", TOTALS)
    project.add_sales(1)
    assert project.run().state == "COMPLETED"
    assert amounts(project) == [7, 8, 9]
    project.verify()
    # The new ones may come after all, by a run.
    project.define("totals", CHANGED)
    assert project.run().state == "COMPLETED"
    assert amounts(project) == [14, 16, 18]
    project.verify()
    project.attempt(drop_all)
    assert (project.builds(), branches(project)) == ((), set())


def test_a_build_beside_a_run(project: Project) -> None:
    with project.running() as happened:
        project.define("totals", CHANGED)
        built = taut_in_process(project.folder, project.session, "plan", "--build")
        assert built.returncode == 0, built.stderr
        (identity,) = re.findall(r"plan (\w{8}) is built", built.stdout)
        assert (
            error_class(taut_in_process(project.folder, project.session, "apply", identity)) == "JOB_RUNNING"
        )
        number = happened.checkpoints[-1] if happened.checkpoints else 1
        project.add_sales(100)
        wait_until(lambda: happened.checkpoints[-1:] > [number])
    assert project.apply(identity).returncode == 0
    assert amounts(project) == [14, 18, 210]
    assert project.run().state == "COMPLETED"
    project.verify()
