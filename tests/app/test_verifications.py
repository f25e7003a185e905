"""`taut verify` while a run goes on: its Spark recomputes its views, as a Spark of the command would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

import tautochrone.app.job_queries
from tautochrone.app import verifications
from tautochrone.app.locate import Options, locate
from tautochrone.app.open import Project
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import serving_processes
from tautochrone.app.unchanged import definitions_of
from tautochrone.cli.main import main
from tautochrone.errors import QueryError
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.verdict import Verdict, Verification

pytestmark = pytest.mark.spark

EVENTS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.table
def events():
    spark = SparkSession.getActiveSession()
    return spark.readStream.schema("k INT, v INT").json({folder!r})
"""
VIEWS = """
CREATE MATERIALIZED VIEW totals AS SELECT k, sum(v) AS v FROM events GROUP BY k;
CREATE MATERIALIZED VIEW times AS SELECT k, uuid() AS u FROM events;
"""


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "1.json").write_text('{"k": 1, "v": 2}\n{"k": 1, "v": 3}\n{"k": 2, "v": 4}\n')
    pipeline = Pipeline(tmp_path / "project", spark)
    pipeline.write("definitions/events.py", EVENTS.format(folder=str(rows)))
    pipeline.write("definitions/views.sql", VIEWS)
    pipeline.run()
    monkeypatch.chdir(pipeline.folder)
    return pipeline


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verifications for which a Spark would have started."""
    started: list[str] = []

    @contextmanager
    def verification_by_spark(
        _options: Options, names: list[str], _checkpoint: int
    ) -> Iterator[Verification]:
        started.append(" ".join(names))
        yield Verification(named=[], verdicts=iter(()))

    monkeypatch.setattr(verifications, "verification_by_spark", verification_by_spark)
    return started


@contextmanager
def running(pipeline: Pipeline) -> Iterator[Project]:
    """As `taut run --continuous`, without its loop."""
    located = locate(Options(spec=str(pipeline.folder / "spark-pipeline.yml")))
    definitions = definitions_of(*located)
    with Project(Options(), lambda _: None, base=pipeline.session, located=located) as project:
        project.job()
        project.announce(definitions)
        yield project


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return {line["dataset"].rsplit(".", 1)[-1]: line for line in lines}


def test_the_run_recomputes_its_views(
    pipeline: Pipeline, starts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with running(pipeline):
        assert main(["verify", "--json"]) == 0
        by_view = verdicts(capsys)
        assert (by_view["totals"]["equal"], by_view["totals"]["checkpoint"]) == (True, 1)
        assert by_view["times"]["equal"] is None
        assert "not deterministic" in by_view["times"]["reason"]
        assert main(["verify", "totals", "events", "--checkpoint", "1"]) == 3
        assert "events was not compared: it is not a view" in capsys.readouterr().err
        assert main(["verify", "total"]) == 1
        refused = capsys.readouterr().err
        assert "DATASET_NOT_FOUND" in refused
        assert "did you mean totals?" in refused
        assert main(["verify", "--checkpoint", "9"]) == 1
        assert "CHECKPOINT_NOT_FOUND" in capsys.readouterr().err
        # Spark, the JVM and the definitions of the run are as they were.
        pipeline.run()
    assert not starts


def test_a_difference_and_errors_of_the_run_arrive(
    pipeline: Pipeline,
    starts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = TableName("lake", ("default",), "totals")

    def different(*_: object) -> Iterator[Verdict]:
        yield Verdict(
            dataset=name, checkpoint=CheckpointNumber(1), equal=False, missing=2, unexpected=1, reason=None
        )

    def breaks(*_: object) -> Iterator[Verdict]:
        yield from different()
        raise QueryError("MADE_UP", "the disk is full", hint="make room")

    def defect(*_: object) -> Iterator[Verdict]:
        yield from different()
        raise AssertionError("cut off")

    with running(pipeline):
        monkeypatch.setattr(tautochrone.app.job_queries, "verify", different)
        assert main(["verify"]) == 1
        assert "DIFFERENT  (2 missing, 1 unexpected)" in capsys.readouterr().out
        monkeypatch.setattr(tautochrone.app.job_queries, "verify", breaks)
        assert main(["verify"]) == 1
        refused = capsys.readouterr().err
        assert "[MADE_UP] the disk is full" in refused
        assert "make room" in refused
        monkeypatch.setattr(tautochrone.app.job_queries, "verify", defect)
        assert main(["verify"]) == 1
        refused = capsys.readouterr().err
        assert "[INTERNAL_ERROR] AssertionError: cut off" in refused
        assert "a defect of Tautochrone" in refused
        # A verification that broke off does not keep others out.
        monkeypatch.setattr(tautochrone.app.job_queries, "verify", different)
        assert main(["verify"]) == 1
        assert "DIFFERENT" in capsys.readouterr().out
    assert not starts


def test_what_starts_a_spark_of_its_own(
    pipeline: Pipeline, starts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "nobody runs"]) == 3
    with running(pipeline):
        main(["verify", "own", "--own-spark"])
        main(["verify", "conf", "--conf", "spark.sql.ansi.enabled=false"])
        assert "Spark starts" not in capsys.readouterr().err
        pipeline.write("definitions/views.sql", VIEWS.replace("sum(v)", "max(v)"))
        main(["verify", "changed"])
        assert "was started with other definitions or settings" in capsys.readouterr().err
        pipeline.write("definitions/views.sql", VIEWS)
        # Nobody knows what such a file reads.
        pipeline.write("definitions/more.py", "import socket\n")
        main(["verify", "unknown"])
        assert "more.py" in capsys.readouterr().err
    assert starts == ["nobody runs", "own", "conf", "changed", "unknown"]


@pytest.mark.parametrize("reads", [True, False])
def test_variables_count_where_they_are_read(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    code = "import os\nFOLDER = os.environ.get('FOLDER')\n" if reads else "FOLDER = 'a'\n"
    pipeline.write("definitions/more.py", code)
    located = locate(Options(spec=str(pipeline.folder / "spark-pipeline.yml")))
    before = definitions_of(*located)
    monkeypatch.setenv("FOLDER", "elsewhere")
    assert (definitions_of(*located) != before) is reads
    monkeypatch.setenv("_TAUT_RESTARTS", "1")
    monkeypatch.delenv("FOLDER")
    assert definitions_of(*located) == before


def test_only_who_has_the_key_may_ask(pipeline: Pipeline) -> None:
    with running(pipeline) as project:
        (process,) = serving_processes(project.spec, project.settings)
        stranger = RemoteReader(process.uri, key="x")
        with stranger, pytest.raises(QueryError, match="QUERY_KEY_MISSING"):
            stranger.verify()
        with RemoteReader(process.uri, key=process.key) as own:
            first, second = own.verify(), own.verify()
            assert next(first.verdicts).equal
            with pytest.raises(QueryError, match="TOO_MANY_QUERIES"):
                next(second.verdicts)


def test_a_client_that_goes_away_stops_the_computation(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = Event(), Event()

    def endless(session: SparkSession, *_: object) -> Iterator[Verdict]:
        begun.set()
        try:
            session.sql("SELECT count(*) FROM range(1e6) a JOIN range(1e9) b ON a.id + b.id < 0").collect()
            yield from ()
        finally:
            ended.set()

    with running(pipeline) as project:
        (process,) = serving_processes(project.spec, project.settings)
        monkeypatch.setattr(tautochrone.app.job_queries, "verify", endless)
        with RemoteReader(process.uri, key=process.key) as reader:
            verification = reader.verify()
            assert begun.wait(60)
            assert not ended.is_set()
            verification.stop()
        assert ended.wait(60)


def test_what_is_verified_stays_readable(pipeline: Pipeline) -> None:
    with running(pipeline) as project:
        (process,) = serving_processes(project.spec, project.settings)
        store = project.store()
        with RemoteReader(process.uri, key=process.key) as reader:
            verification = reader.verify()
            next(verification.verdicts)
            assert [(pin.owner, pin.checkpoint) for pin in store.pins.live()] == [("verify", 1)]
            assert list(verification.verdicts)
        assert not store.pins.live()
