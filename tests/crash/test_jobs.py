"""Three jobs as real processes over one lake: each is killed, the others go on, strong reads never mix."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline
from tests.support.process import TautProcess

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SETTINGS = """
    [run]
    interval = "500ms"
    lease = "5s"
    patience = "10s"
    [jobs.counts]
    datasets = ["word_count"]
    [jobs.rest]
    datasets = ["word_sum", "both"]
"""
INGEST = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    @dp.table
    def word_value():
        spark = SparkSession.active()
        return spark.readStream.schema("word STRING, val BIGINT").json("{source}")
"""
VIEWS = """
    CREATE MATERIALIZED VIEW word_count AS SELECT word, count(*) AS cnt FROM word_value GROUP BY word;
    CREATE MATERIALIZED VIEW word_sum AS SELECT word, sum(val) AS total FROM word_value GROUP BY word;
    CREATE MATERIALIZED VIEW both AS
      SELECT c.word, c.cnt, s.total FROM word_count c JOIN word_sum s ON c.word = s.word;
"""
STRONG = """SELECT t.word, t.cnt AS t1, c.cnt AS c1, b.cnt AS b1, t.total AS t2, s.total AS s2, b.total AS b2
  FROM (SELECT word, count(*) AS cnt, sum(val) AS total FROM word_value GROUP BY word) t
  FULL JOIN word_count c ON t.word = c.word FULL JOIN word_sum s ON t.word = s.word
  FULL JOIN both b ON t.word = b.word"""
JOBS = ("words", "counts", "rest")


@pytest.mark.timeout(1_800)
def test_jobs_are_killed_one_after_the_other(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    source.mkdir()
    spec = "name: words\nstorage: storage\nlibraries:\n  - glob:\n      include: definitions/**\n"
    pipeline = Pipeline(tmp_path / "p", spark, spec=spec, settings=SETTINGS)
    pipeline.write("definitions/words.py", INGEST.format(source=source))
    pipeline.write("definitions/words.sql", VIEWS)
    path = pipeline.folder / "spark-pipeline.yml"
    written = 0

    def add() -> None:
        nonlocal written
        written += 1
        rows = "".join(f'{{"word": "w{i % 5}", "val": {i * written}}}\n' for i in range(20))
        (source / f"{written}.json").write_text(rows)

    def consistent() -> int:
        """A strong read: how many rows of the source it shows; all tables agree."""
        rows = pipeline.reader.sql(STRONG).collect()
        assert all(row.t1 == row.c1 == row.b1 and row.t2 == row.s2 == row.b2 for row in rows), rows
        return sum(row.t1 for row in rows)

    def start(job: str) -> TautProcess:
        return TautProcess(path, "--continuous", "--job", job)

    def published(events: list[dict[str, object]]) -> bool:
        return any(event["event"] == "checkpoint" for event in events)

    add()
    running = {job: start(job) for job in JOBS}
    try:
        for process in running.values():
            process.wait_for(published)
        seen = 0
        for victim in JOBS:
            add()
            running[victim].kill()
            add()
            seen = max(seen, consistent())
            running[victim] = start(victim)
            running[victim].wait_for(published)
            assert consistent() >= seen
        for job in reversed(JOBS):
            assert running[job].stop() in (0, 130), running[job].output()
    finally:
        for process in running.values():
            process.__exit__(None, None, None)
    # Whatever the last ones left: one run of each, in the order in which they read each other.
    _finish(pipeline)
    assert consistent() == 20 * written
    pipeline.close()


def _finish(pipeline: Pipeline) -> None:
    for job in JOBS:
        settings = SETTINGS.replace("10s", "0s").replace("[run]", f'[run]\njob = "{job}"')
        pipeline.write("tautochrone.toml", settings)
        pipeline.reload()
        pipeline.run()
        pipeline.verify()
