"""Queries through a service: the rows, instants and errors of a reader of this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.metaservice.serving import serving
from tests.published_lake import Lake

import tautochrone
from tautochrone.app import queries
from tautochrone.app.locate import Options, locate
from tautochrone.app.query_runner import SparkQueryRunner
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import announced, serving_processes
from tautochrone.cli.main import main
from tautochrone.cli.reading import rows_of
from tautochrone.errors import AccessError, CheckpointUnavailableError, MetaError, QueryError
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.pages import Forms
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.query import Query, QueryAnswer
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.reader import Reader
from tautochrone.rest_catalog.read_points import ReadPoints

pytestmark = pytest.mark.spark

TOKEN = "reader-of-the-tests"
INSTANCE = "0123456789abcdef"
SPEC = """\
name: shop
storage: storage
database: db
libraries: []
configuration:
  spark.sql.session.timeZone: Asia/Kathmandu
  spark.sql.ansi.enabled: "false"
"""
VALUES = (
    "true", "1Y", "-2S", "3", "9223372036854775807L", "1.5F", "double('NaN')", "-0.0D", "1.50", "'é\\n'",
    "X'00ff'", "DATE '0001-01-01'", "DATE '9999-12-31'", "TIMESTAMP '2026-03-29 02:30:00.123456'",
    "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'", "INTERVAL '-1 02:03:04.5' DAY TO SECOND",
    "INTERVAL '1-2' YEAR TO MONTH", "make_interval(1, 2, 0, 3)", "array(1, NULL)", "array()",
    "map('k', array(1.50), 'n', NULL)", "map(named_struct('a', 1), 2)", "named_struct('a', 1, 'b', X'0a')",
    "parse_json('{\"a\": [1, null]}')", "NULL", "CAST(12345678901234567890.123456789 AS DECIMAL(38, 9))",
    "CAST('c' AS CHAR(3))", "named_struct('a', 1, 'a', 2)", "array(INTERVAL '1-2' YEAR TO MONTH)",
    "map('k', parse_json('[1]'))", "array(TIMESTAMP '2026-03-29 02:30:00')",
)  # fmt: skip


@pytest.fixture
def folder(lake: Lake, tmp_path: Path) -> Path:
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def uri(lake: Lake, folder: Path) -> Iterator[str]:
    spec, settings = locate(Options(spec=str(folder / "spark-pipeline.yml")))
    settings = replace(settings, catalog=lake.settings)
    with SparkQueryRunner(spec, settings, lake.store, base=lake.spark) as runner:
        app = create_app(
            access=Access.by_tokens({TOKEN: Role.READ}),
            store=lake.store,
            forms=Forms(runner=runner),
            instance=INSTANCE,
        )
        with serving(app) as uri:
            yield uri


@pytest.fixture
def remote(uri: str) -> Iterator[RemoteReader]:
    with tautochrone.connect(uri, token=TOKEN) as reader:
        yield reader


@pytest.mark.parametrize("value", VALUES)
def test_values_of_every_type(lake: Lake, remote: RemoteReader, value: str) -> None:
    query = f"SELECT {value} AS v, {value} AS v FROM range(2) UNION ALL SELECT NULL, {value}"
    # `range` is no table of a pipeline: both read without a checkpoint.
    conf = {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.ansi.enabled": "false"}
    with Reader(lake.store, lake.settings, base=lake.spark, database="db", conf=conf) as reader:
        rows = reader.arrow(Query(sql=query)).rows
        rows_of(rows)  # what `taut query` prints
        received = remote.sql(query)
        assert (received.schema, str(received.to_pylist())) == (rows.schema, str(rows.to_pylist()))
        texts = [row[0] for row in reader.sql(f"SELECT CAST(({value}) AS STRING)").collect()]
    assert rows.column_names == ["v", "v"]
    assert (rows.num_rows, rows.column(0).null_count, texts[0] is None) == (
        3,
        3 if value == "NULL" else 1,
        value == "NULL",
    )


def test_instants(lake: Lake, remote: RemoteReader) -> None:
    count = "SELECT count(*) AS n FROM orders"
    newest = remote.arrow(Query(sql=count))
    assert (newest.rows.to_pylist(), newest.checkpoint, newest.behind) == ([{"n": 3}], lake.numbers[1], {})
    # A later query may read an older checkpoint.
    assert remote.sql(count, checkpoint=lake.numbers[0]).to_pylist() == [{"n": 2}]
    assert remote.sql(count).to_pylist() == [{"n": 3}]
    assert remote.arrow(Query(sql=count, consistency=Consistency.WEAK)).checkpoint is None
    lake.cut(fail=True)
    behind = remote.arrow(Query(sql="SELECT n FROM totals"))
    assert behind.checkpoint == lake.numbers[1]
    assert behind.behind == {"lake.db.totals": "not complete at checkpoint 3: division by zero"}
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        remote.sql(count, checkpoint=999)


class NotYet:
    """A runner whose checkpoint after the token comes with the third try."""

    def __init__(self) -> None:
        self.queries: list[Query] = []

    def arrow(self, query: Query) -> QueryAnswer:
        self.queries.append(query)
        if len(self.queries) < 3:
            raise CheckpointUnavailableError("READ_NOT_YET", "no checkpoint is after it", retryable=True)
        return QueryAnswer(rows=pa.table({"n": [1]}), checkpoint=7)


def test_a_read_waits_for_what_was_written(lake: Lake) -> None:
    runner: Any = NotYet()
    app = create_app(access=Access.on_loopback(Role.READ), store=lake.store, forms=Forms(runner=runner))
    with serving(app) as uri, RemoteReader(uri) as reader:
        token = reader.write_token()
        with pytest.raises(CheckpointUnavailableError, match="READ_NOT_YET") as not_yet:
            reader.sql("SELECT 1", after=token)
        assert not_yet.value.retryable
        answer = reader.arrow(Query(sql="SELECT 1", after=token, wait_ms=30_000))
    assert (answer.rows.to_pylist(), answer.checkpoint) == ([{"n": 1}], 7)
    assert [query.after for query in runner.queries] == [token] * 3


def test_refusals(uri: str, remote: RemoteReader) -> None:
    with pytest.raises(QueryError, match="QUERY_NOT_READ_ONLY"):
        remote.sql("DROP TABLE orders")
    with pytest.raises(QueryError, match="UNRESOLVED_COLUMN") as wrong:
        remote.sql("SELECT nothing FROM orders")
    assert wrong.value.sqlstate == "42703"
    with pytest.raises(QueryError, match="USER_RAISED_EXCEPTION"):
        remote.sql("SELECT raise_error('while it runs')")
    # The project's own setting: without ANSI a division by zero is NULL.
    assert remote.sql("SELECT 1 / 0 AS v").to_pylist() == [{"v": None}]
    with pytest.raises(QueryError, match="REQUEST_INVALID"):
        remote.sql("")
    with RemoteReader(uri) as without_token, pytest.raises(AccessError, match="TOKEN_MISSING"):
        without_token.sql("SELECT 1")
    with RemoteReader("http://127.0.0.1:9") as nobody, pytest.raises(MetaError, match="UNREACHABLE"):
        nobody.sql("SELECT 1")


def test_a_service_without_a_project_has_no_queries(lake: Lake) -> None:
    with serving(create_app(access=Access.on_loopback(Role.READ), store=lake.store)) as uri:
        with RemoteReader(uri) as reader, pytest.raises(QueryError, match="QUERIES_UNAVAILABLE"):
            reader.sql("SELECT 1")
        # A query changes nothing, but another site's page must not send one.
        answer = httpx.post(f"{uri}/api/v1/query", json={"sql": "SELECT 1"}, headers={"Origin": "http://x"})
        assert answer.json()["error_class"] == "CROSS_SITE_REQUEST"


def test_only_who_has_the_key_may_ask_a_job(lake: Lake) -> None:
    runner: Any = NotYet()
    runner.queries += [Query(sql="SELECT 1")] * 2
    with EmbeddedServer(ReadPoints(lake.store), lake.source, store=lake.store, queries=lambda: runner) as job:
        for key in ("", "x", job.key[:-1]):
            with RemoteReader(job.uri, key=key) as stranger:
                with pytest.raises(QueryError, match="QUERY_KEY_MISSING"):
                    stranger.sql("SELECT 1")
                assert stranger.write_token()
        with RemoteReader(job.uri, key=job.key) as own:
            assert own.sql("SELECT 1").to_pylist() == [{"n": 1}]
        page = httpx.get(f"{job.uri}/query").text
        assert "only shows" in page


def located(folder: Path, **options: Any) -> tuple[PipelineSpec, Settings]:
    return locate(Options(spec=str(folder / "spark-pipeline.yml"), **options))


def test_what_answers_is_announced(uri: str, folder: Path) -> None:
    own = located(folder)
    with (
        announced(*own, uri, INSTANCE, has_spark=False),
        announced(*own, uri, "another", has_spark=True),
    ):
        assert [process.instance for process in serving_processes(*own)] == [INSTANCE]
        # What reads something else would give another answer.
        others = (
            {"conf": {"spark.sql.ansi.enabled": "true"}},
            {"given": {"meta.url": f"sqlite:///{folder}/other.db"}},
        )
        for options in others:
            assert serving_processes(*located(folder, **options)) == []
        copy = folder / "copy"
        shutil.copytree(folder / "storage", copy / "storage")
        shutil.copy(folder / "spark-pipeline.yml", copy)
        assert serving_processes(*located(copy)) == []
        left = [*(folder / "storage" / "serving").glob("*.json")]
        assert {file.stat().st_mode & 0o777 for file in left} == {0o600}
    assert len(left) == 2
    assert not [*(folder / "storage" / "serving").iterdir()]
    # What a killed process left goes when another one starts.
    serving_folder = folder / "storage" / "serving"
    (serving_folder / "dead.json").write_text(left[0].name)
    hostile = {"uri": "http://[", "has_spark": True, "key": "", "reads": ""}
    (serving_folder / "hostile.json").write_text(json.dumps(hostile))
    (serving_folder / "strange.json").write_text(json.dumps(hostile | {"uri": 7}))
    with announced(*own, uri, INSTANCE, has_spark=True):
        names = [file.name for file in (folder / "storage" / "serving").iterdir()]
        assert names == [f"{INSTANCE}.json"]
    assert serving_processes(*own) == []


def test_a_program_reads_through_what_runs(folder: Path, uri: str) -> None:
    def connected() -> RemoteReader:
        return tautochrone.connect(folder, token=TOKEN, own_spark=False)

    with pytest.raises(MetaError, match="NO_RUNNING_SERVICE"):
        connected()
    own = located(folder)
    with announced(*own, uri, INSTANCE, has_spark=True), connected() as reader:
        assert reader.sql("SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 3}]


def test_taut_query_goes_through_what_runs(
    folder: Path,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", TOKEN)
    starts: list[Query] = []

    def answer_of_spark(_options: Options, query: Query) -> None:
        starts.append(query)
        raise QueryError("STARTED_SPARK", "a Spark of its own would start")

    monkeypatch.setattr(queries, "answer_of_spark", answer_of_spark)
    count = "SELECT count(*) AS n, X'0aff' AS b, map(1, TIMESTAMP '2026-01-01 00:00:00') AS m FROM orders"
    with announced(*located(folder), uri, INSTANCE, has_spark=True):
        assert main(["query", count, "--format", "json"]) == 0
        assert capsys.readouterr().out == '{"n": 3, "b": "0AFF", "m": {"1": "2026-01-01 00:00:00"}}\n'
        assert main(["query", count, "--checkpoint", "999"]) == 1
        assert not starts
        # What the service refuses may be right for who owns the project.
        assert main(["query", "SELECT * FROM json.`/tmp/rows.json`"]) == 1
        assert "did not answer: TABLE_OR_VIEW_NOT_FOUND" in capsys.readouterr().err
        assert main(["query", count, "--own-spark"]) == 1
        assert main(["query", count, "--conf", "spark.sql.ansi.enabled=true"]) == 1
        assert len(starts) == 3
    assert main(["query", count]) == 1
    assert len(starts) == 4
