"""Several jobs of one project, each with its own fence: one instant over all of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.errors import SettingsError
from tautochrone.model.checkpoint import CheckpointState

JOBS = """
    [run]
    patience = "0s"
    [jobs.counts]
    datasets = ["word_count"]
    [jobs.sums]
    datasets = ["word_sum"]
    [jobs.joins]
    datasets = ["both"]
"""
INGEST = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    @dp.table
    def word_value():
        spark = SparkSession.active()
        return spark.readStream.schema("word STRING, val BIGINT").json("{source}")
"""
DEFINITIONS = """
    CREATE MATERIALIZED VIEW word_count AS SELECT word, count(*) AS cnt FROM word_value GROUP BY word;
    CREATE MATERIALIZED VIEW word_sum AS SELECT word, sum(val) AS total FROM word_value GROUP BY word;
    CREATE MATERIALIZED VIEW both AS
      SELECT c.word, c.cnt, s.total FROM word_count c JOIN word_sum s ON c.word = s.word;
"""
ALL = ("test", "counts", "sums", "joins")


def define(pipeline: Pipeline, source: Path) -> None:
    pipeline.write("definitions/words.py", INGEST.format(source=source))
    pipeline.write("definitions/words.sql", DEFINITIONS)


def settings_of(job: str, patience: str = "0s") -> str:
    return JOBS.replace("[run]", f'[run]\njob = "{job}"').replace("0s", patience)


class Topology:
    """Four jobs over one lake and one store."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        self.rows = 0
        self.jobs = {name: self._pipeline(folder, spark, name) for name in ALL}

    def _pipeline(self, folder: Path, spark: SparkSession, job: str) -> Pipeline:
        spec = (
            f"name: test\nstorage: {folder}/storage\nlibraries:\n  - glob:\n      include: definitions/**\n"
        )
        pipeline = Pipeline(folder / job, spark, spec=spec, settings=settings_of(job))
        define(pipeline, self.source)
        return pipeline

    def set_patience(self, patience: str) -> None:
        for job, pipeline in self.jobs.items():
            pipeline.write("tautochrone.toml", settings_of(job, patience))
            pipeline.reload()

    def add(self, number: int) -> None:
        """Ten more rows, in a file of that number."""
        self.rows += 10
        rows = "".join(f'{{"word": "w{i % 3}", "val": {i + number}}}\n' for i in range(10))
        (self.source / f"{number}.json").write_text(rows)

    def run(self, *jobs: str) -> dict[str, Happened]:
        return {job: self.jobs[job].run() for job in jobs}

    def close(self) -> None:
        for pipeline in self.jobs.values():
            pipeline.close()


@pytest.fixture
def topology(tmp_path: Path, spark: SparkSession) -> Iterator[Topology]:
    jobs = Topology(tmp_path, spark)
    yield jobs
    jobs.close()
    shutil.rmtree(tmp_path / "storage", ignore_errors=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Topology]:
    jobs = Topology(tmp_path_factory.mktemp("started"), spark)
    jobs.add(1)
    first = jobs.run(*ALL)
    # The first job to come is alone; each that joins opens one that all take part in.
    assert first["joins"].state == "COMPLETED"
    yield jobs
    jobs.close()


@pytest.fixture
def met(started: Topology) -> Topology:
    """All jobs are at one checkpoint. The tests share them: each ends as the next one begins."""
    return started


STRONG = """SELECT t.word, t.cnt AS t1, c.cnt AS c1, t.total AS t2, s.total AS s2
  FROM (SELECT word, count(*) AS cnt, sum(val) AS total FROM word_value GROUP BY word) t
  JOIN word_count c ON t.word = c.word JOIN word_sum s ON t.word = s.word"""


def test_four_jobs_at_one_checkpoint(met: Topology) -> None:
    reader, before = met.jobs["joins"].reader, met.rows
    assert reader.sql("SELECT count(*) FROM both").collect()[0][0] == 3

    met.add(2)
    met.run("test", "counts")
    rows = reader.sql(STRONG).collect()
    assert all(row.t1 == row.c1 and row.t2 == row.s2 for row in rows)
    assert sum(row.c1 for row in rows) == before, "sums has not done its part: all stand where they stood"
    weak = reader.sql(STRONG, "weak").collect()
    assert sum(row.c1 for row in weak) == met.rows
    assert any(row.t2 != row.s2 for row in weak)
    store = met.jobs["test"].job.store
    behind = store.reads.resolve(tables=list(store.roots.reported("test"))).behind
    assert "its job sums isn't running" in " ".join(behind.values())

    after = met.run("sums", "joins")
    assert after["joins"].of("checkpoint")[0]["state"] == "published"
    rows = reader.sql(STRONG).collect()
    assert sum(row.c1 for row in rows) == met.rows
    assert all(row.t1 == row.c1 and row.t2 == row.s2 for row in rows)
    for job in ALL[1:]:
        assert all(verdict.equal for verdict in met.jobs[job].verify())
    assert {after[job].mode(view)[0] for job, view in (("sums", "word_sum"), ("joins", "both"))} <= {
        "incremental",
        "diff",
        "full",
    }


def test_a_job_that_comes_back_jumps_to_the_newest(met: Topology) -> None:
    # Who has nothing to do opens no checkpoint.
    again = met.run("test", "joins")
    assert all(happened.of("checkpoint") == [] for happened in again.values())
    assert all(happened.of("no_news") for happened in again.values())
    store = met.jobs["test"].job.store
    for number in (3, 4):
        met.add(number)
        happened = met.run("test", "counts", "joins")
        # It cannot go on without its other input, says so, and keeps nobody waiting.
        assert happened["joins"].of("waiting_for_job")[0]["job"] == "sums"
        assert "sums" in happened["joins"].of("checkpoint_left")[0]["reason"]
    returned = met.run("sums")["sums"]
    assert len(returned.of("checkpoint")) == 1
    joined = met.run("joins")["joins"]
    assert joined.of("checkpoint")[-1]["state"] == "published"
    states = [c.state for c in store.checkpoints.newest(4)]
    assert states[0] is CheckpointState.PUBLISHED
    assert CheckpointState.PARTIAL in states
    assert all(verdict.equal for verdict in met.jobs["joins"].verify())


def test_concurrent_runs_end_when_readers_see_all_rows(met: Topology) -> None:
    met.set_patience("90s")
    met.add(5)
    with ThreadPoolExecutor(len(ALL)) as pool:
        # Who ingests is so much earlier that it has done all when the others begin.
        first = pool.submit(met.jobs["test"].run)
        store = met.jobs["counts"].job.store
        newest = store.checkpoints.newest(1)[0].number
        while store.checkpoints.newest(1)[0].number == newest:
            assert not first.done()
            time.sleep(0.05)
        later_runs = {job: pool.submit(met.jobs[job].run) for job in ("sums", "counts", "joins")}
        ended = {job: run.result(timeout=200) for job, run in {"test": first, **later_runs}.items()}
    met.set_patience("0s")
    assert {job: happened.state for job, happened in ended.items()} == dict.fromkeys(ALL, "COMPLETED")
    (done,) = ended["test"].of("checkpoint")
    assert (done["state"], done["waits_for"]) == ("open", ["counts", "joins", "sums"])
    assert ended["test"].of("waiting_for_jobs")[0]["jobs"] == ["counts", "joins", "sums"]
    (published,) = ended["test"].of("checkpoint_published")
    assert published["checkpoint"] == done["checkpoint"]
    rows = met.jobs["joins"].reader.sql(STRONG).collect()
    assert sum(row.c1 for row in rows) == met.rows
    assert {status.readable for status in store.datasets.statuses()} == {done["checkpoint"]}


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        ('[run]\njob = "cuonts"\n[jobs.counts]\ndatasets = ["word_count"]', "JOB_NOT_FOUND.*cuonts"),
        ('[jobs.counts]\ndatasets = ["*"]', "JOB_HAS_NO_DATASETS"),
        ('[jobs.counts]\ndatasets = ["nothing"]', "DATASET_NOT_FOUND"),
        ('[jobs.a]\ndatasets = ["word_*"]\n[jobs.b]\ndatasets = ["word_sum"]', "DATASET_IN_TWO_JOBS"),
        ("[jobs.a]\ndatasets = []", "INVALID_SETTING"),
    ],
)
def test_what_is_wrong_with_jobs(tmp_path: Path, spark: SparkSession, jobs: str, error: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    if "[]" in jobs:
        with pytest.raises(SettingsError, match=error):
            Pipeline(tmp_path / "p", spark, settings=jobs)
        return
    pipeline = Pipeline(tmp_path / "p", spark, settings=jobs)
    define(pipeline, source)
    with pytest.raises(SettingsError, match=error):
        pipeline.run()


def test_an_invariant_over_tables_of_two_jobs(topology: Topology) -> None:
    for pipeline in topology.jobs.values():
        pipeline.write(
            "invariants/same.sql",
            "SELECT word, total FROM word_count c FULL JOIN word_sum s USING (word) "
            "WHERE total > 100 OR cnt IS NULL OR total IS NULL",
        )
    jobs = ("test", "counts", "sums")
    topology.add(1)
    topology.run(*jobs)
    topology.add(2)
    # All that it writes is there; what it has to compare with is not.
    waiting = topology.run("test", "sums")["sums"]
    assert waiting.of("refresh")[-1]["dataset"] == "lake.default.word_sum"
    assert waiting.of("waiting_for_job")[-1]["job"] == "counts"
    assert waiting.of("checkpoint") == []
    assert topology.run("counts", "sums")["sums"].of("checkpoint")[-1]["failed"] == []
    reader = topology.jobs["counts"].reader
    count = "SELECT sum(cnt) FROM word_count"
    for consistency in ("strong", "weak"):
        assert reader.sql(count, consistency).collect()[0][0] == 20

    topology.add(1_000)
    happened = topology.run(*jobs)
    assert happened["counts"].of("invariant_broken") == []
    # Its own part is done, and readers do not see it: whom it would have to wait for it says.
    (done,) = happened["counts"].of("checkpoint")
    assert (done["state"], done["waits_for"]) == ("open", ["sums"])
    (event,) = happened["counts"].of("checkpoint_left")
    assert event["error_class"] == "CHECKPOINT_NOT_READABLE"
    assert (event["checkpoint"], event["jobs"]) == (done["checkpoint"], ["sums"])
    assert happened["counts"].state == "FAILED"
    assert happened["sums"].state == "FAILED"
    assert happened["sums"].of("invariant_broken")[0]["rows"] == 3
    newest = topology.jobs["sums"].job.store.checkpoints.newest(1)[0]
    assert newest.state is CheckpointState.PARTIAL
    assert [invariant.name for invariant in newest.broken] == ["same"]
    # Whoever runs next hears what holds its tables back.
    again = topology.run("counts")["counts"]
    assert again.of("checkpoint") == []
    (event,) = again.of("checkpoint_left")
    assert (event["jobs"], event["invariants"]) == (["sums"], ["same"])
    assert again.state == "FAILED"
    # Also the table of the job that did its part stays where both stood.
    for consistency in ("strong", "weak"):
        assert reader.sql(count, consistency).collect()[0][0] == 20
