"""Values and names that need care, from the database into the tables of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.app.captures import capture_statuses
from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.cli.status import show_sources, source_line
from tautochrone.model.auto_cdc import column_list, keyed_apply_of
from tautochrone.model.names import TableName
from tautochrone.testing.sqlite_sink import FORMAT, SqliteSink

CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("db", url="{url}"{more})
"""


class Captured:
    """A database and the pipeline that captures it."""

    def __init__(self, database: psycopg.Connection, folder: Path, spark: SparkSession) -> None:
        self.database = database
        self.pipeline = Pipeline(folder, spark)

    def define(self, more: str = "") -> None:
        info = self.database.info
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        self.pipeline.write("definitions/db.py", CAPTURE.format(url=url, more=more))

    def run(self) -> None:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]


@pytest.fixture
def captured(database: psycopg.Connection, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    capture = Captured(database, tmp_path, spark)
    yield capture
    capture.pipeline.close()


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a,b", "c"), (" a", '["'), ('["x"', "y"), ('["x"]',)])
def test_key_columns_may_have_any_names(names: tuple[str, ...]) -> None:
    properties = {"tautochrone.apply.keys": column_list(names), "tautochrone.apply.sequence": "n"}
    apply = keyed_apply_of(properties, "")
    assert apply is not None
    assert apply.keys == names


@pytest.mark.spark
def test_first_copy_waits_and_captured_tables_have_properties_of_their_own(
    captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for the transactions before it. The properties are such as the sinks that mirror tables."""
    database, folder = captured.database, captured.pipeline.folder
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x text); CREATE TABLE u (id int PRIMARY KEY);"
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 3) i; INSERT INTO u VALUES (1)"
    )
    path = folder / "mirror.db"
    captured.pipeline.write(
        "definitions/mirror.py",
        "from pyspark import pipelines as dp\n"
        f"dp.create_sink('mirror', {FORMAT!r}, {{'path': {str(path)!r}}})\n",
    )
    captured.define(', table_properties={"*.t": {"tautochrone.sinks": "mirror"}}')
    require_waits_of_first_copy(captured, capsys)
    mirror, table = SqliteSink("mirror", str(path)), TableName("lake", ("default",), "db_t")
    assert sorted(mirror.rows(table)) == [(1, "x"), (2, "x"), (3, "x")]
    database.execute("DELETE FROM t WHERE id = 1; UPDATE t SET x = 'y' WHERE id = 2")
    database.execute("UPDATE t SET id = 9 WHERE id = 3")
    captured.run()
    assert sorted(mirror.rows(table)) == [(2, "y"), (9, "x")]
    assert mirror.rows(TableName("lake", ("default",), "db_u")) == []
    mirror.close()


@pytest.mark.spark
def test_invalid_values_fail_or_become_null(captured: Captured) -> None:
    database, pipeline = captured.database, captured.pipeline
    database.execute(
        'CREATE TABLE t ("a,b" int, "c d" text, day date, tags text[], PRIMARY KEY ("a,b", "c d"));'
        # Only the first column identifies a row, the other one is stored in the index.
        "CREATE TABLE u (id int, x int, PRIMARY KEY (id) INCLUDE (x));"
        "INSERT INTO t VALUES (1, 'x', 'infinity', '{a,NULL}'), (2, 'x', '2024-01-02', '{}');"
        "INSERT INTO u VALUES (1, 1)"
    )
    captured.define()
    failure = pipeline.run().failure("db_t")
    assert "CAPTURED_VALUE_INVALID" in failure
    assert "day = infinity" in failure
    # The invalid value is in the log, and a later event replaced it.
    database.execute("UPDATE t SET day = '2024-01-01' WHERE day = 'infinity'; UPDATE u SET x = 2")
    captured.run()
    rows = "SELECT `a,b`, `c d`, CAST(day AS STRING), tags FROM db_t"
    assert pipeline.query(rows) == [
        (1, "x", "2024-01-01", ["a", None]),
        (2, "x", "2024-01-02", []),
    ]
    assert pipeline.query("SELECT id, x FROM db_u") == [(1, 2)]
    database.execute("UPDATE t SET day = '0044-03-15 BC', tags = '{{a}}' WHERE \"a,b\" = 1")
    captured.define(', invalid_values="null"')
    happened = pipeline.run()
    assert happened.state == "COMPLETED"
    assert "NULL for a value that the type" in happened.refresh("db_t")["reason"]
    assert "day = 0044-03-15 BC" in happened.refresh("db_t")["reason"]
    assert pipeline.query(rows)[0] == (1, "x", None, None)
    require_source_status(captured)


def status_of(captured: Captured) -> dict[str, Any]:
    pipeline = captured.pipeline
    options = Options(spec=str(pipeline.folder / "spark-pipeline.yml"))
    with Project(options, lambda _event: None, base=pipeline.session) as project:
        (status,) = capture_statuses(project)
    return source_line(status)


def require_source_status(captured: Captured) -> None:
    """The capture follows the log, and another lake's slot is listed with the SQL that drops it."""
    database = captured.database
    orphan = f"tautochrone_db_{database.info.dbname[-8:]}"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [orphan])
    line = status_of(captured)
    assert (line["phase"], line["relations"], line["waiting"], line["chunks_left"]) == ("following", 2, [], 0)
    assert (line["chunks_done"], line["chunks_total"]) == (0, 0), "the copy is complete"
    assert line["rows_per_s"] > 0
    assert line["last_commit"] is not None
    assert line["error"] is None
    assert line["lag"]["bytes"] >= 0
    own = {entry["name"]: entry["is_own"] for entry in line["kept"]}
    assert own.pop(orphan) is False
    assert list(own.values()) == [True]
    drops = {entry["name"]: entry["drop"] for entry in line["kept"]}
    database.execute(drops[orphan])


def require_waits_of_first_copy(captured: Captured, capsys: pytest.CaptureFixture[str]) -> None:
    """Make the first run. `taut sources` says what it waits for, and of later ones nothing."""
    info = captured.database.info
    with psycopg.connect(host=info.host, dbname=info.dbname, user="postgres") as other:
        other.execute("UPDATE t SET x = 'x' WHERE id = 1")
        line = status_of(captured)
        other.commit()
        session = f"process {other.info.backend_pid}"
        (waited,) = [waited for waited in line["waits_for"] if waited["reason_params"]["session"] == session]
        assert line["phase"] == "not begun"
        assert waited["reason_code"] == "COPY_WAITS_FOR_TRANSACTION"
        show_sources([line])
        assert waited["reason"] in capsys.readouterr().out
        captured.run()
        other.execute("UPDATE t SET x = 'x' WHERE id = 1")
        line = status_of(captured)
        assert (line["phase"], line["waits_for"]) == ("following", []), "only the first copy's are listed"
