"""The REST catalog through HTTP, PyIceberg, Spark SQL and Spark streaming."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from tests.published_lake import Lake, name

from tautochrone.iceberg.sessions.spark_sessions import reader_session
from tautochrone.meta import MetaStore
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.model.names import Version
from tautochrone.rest_catalog.read_points import ReadPoints

pytestmark = pytest.mark.spark


def ask(lake: Lake, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(lake.uri + path, method=method, data=body)
    try:
        with urllib.request.urlopen(request) as answer:
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else None
    except urllib.error.HTTPError as error:
        with error:
            raw = error.read()
            return error.code, json.loads(raw)["error"] if raw else None


def pyiceberg_rows(lake: Lake, read_point: str, table: str) -> list[dict[str, Any]]:
    catalog = load_catalog("x", type="rest", uri=lake.uri, warehouse=read_point)
    rows = catalog.load_table(table).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: tuple(row.values()))


def spark_rows(lake: Lake, read_point: str, query: str) -> list[tuple[Any, ...]]:
    session = reader_session(lake.spark, "lake", lake.uri, read_point)
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_spark_and_pyiceberg_read_the_cut(lake: Lake) -> None:
    first, second = lake.numbers
    query = "SELECT * FROM lake.db.orders"
    # At the first cut the table had neither the later column nor the partition field and sort order over it.
    assert spark_rows(lake, f"checkpoint-{first}", query) == [(1, 10), (2, 20)]
    assert spark_rows(lake, f"checkpoint-{second}", query) == [
        (1, 10, None),
        (2, 20, None),
        (3, 30, "new"),
    ]
    assert spark_rows(lake, "strong", "SELECT n FROM lake.db.totals") == [(3,)]
    assert pyiceberg_rows(lake, f"checkpoint-{first}", "db.orders") == [
        {"id": 1, "price": 10},
        {"id": 2, "price": 20},
    ]
    assert [r["id"] for r in pyiceberg_rows(lake, "strong", "db.orders")] == [1, 2, 3]
    assert pyiceberg_rows(lake, "strong", "a.b.outside")[0] == {"id": 1, "label": "one"}


def test_deletion_vectors_before_and_after_the_cut(lake: Lake) -> None:
    third = lake.cut()
    fourth_rows = [2, 3, 4]
    assert [r["id"] for r in pyiceberg_rows(lake, f"checkpoint-{third}", "db.orders")] == fourth_rows
    lake.spark.sql("DELETE FROM lake.db.orders WHERE id = 2")
    lake.spark.sql("ALTER TABLE lake.db.orders DROP COLUMN price")
    ids = "SELECT id FROM lake.db.orders"
    assert spark_rows(lake, f"checkpoint-{third}", ids) == [(2,), (3,), (4,)]
    assert spark_rows(lake, f"checkpoint-{third}", "SELECT sum(price) FROM lake.db.orders") == [(90,)]
    assert [r["price"] for r in pyiceberg_rows(lake, "strong", "db.orders")] == [20, 30, 40]
    assert spark_rows(lake, f"checkpoint-{lake.cut()}", ids) == [(3,), (4,)]


def test_stream_reads_up_to_the_cut_and_resumes_at_the_next(lake: Lake, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def collect_ids(batch: Any, _number: int) -> None:
        seen.append(sorted(row[0] for row in batch.select("id").collect()))

    def run(number: int) -> list[int]:
        seen.clear()
        session = reader_session(lake.spark, "lake", lake.uri, f"checkpoint-{number}")
        query = (
            session.readStream.option("streaming-skip-delete-snapshots", "true")
            .option("streaming-skip-overwrite-snapshots", "true")
            .table("lake.db.orders")
            .writeStream.foreachBatch(collect_ids)
            .option("checkpointLocation", str(tmp_path / "stream"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(number for batch in seen for number in batch)

    first, second = lake.numbers
    assert run(first) == [1, 2]
    assert run(first) == []
    assert run(second) == [3]
    third = lake.cut()
    lake.spark.sql("INSERT INTO lake.db.orders VALUES (5, 50, 'after')")
    assert run(third) == [4]


def test_config_resolves_strong_to_a_pinned_checkpoint(lake: Lake) -> None:
    status, config = ask(lake, "/v1/config?warehouse=strong")
    assert status == 200
    assert config["overrides"] == {"prefix": f"checkpoint-{lake.numbers[-1]}"}
    assert config["defaults"] == {}
    assert all(endpoint.startswith(("GET", "HEAD")) for endpoint in config["endpoints"])
    assert lake.store.pins.pinned_checkpoints() == {lake.numbers[-1]}
    ask(lake, "/v1/config")
    assert len(lake.read_points._leases) == 1
    for read_point in ("weak", f"checkpoint-{lake.numbers[0]}"):
        assert ask(lake, f"/v1/config?warehouse={read_point}")[1]["overrides"] == {"prefix": read_point}
    for read_point, error_class in (("checkpoint-99", "CHECKPOINT_NOT_FOUND"), ("x", "INSTANT_NOT_FOUND")):
        status, error = ask(lake, f"/v1/config?warehouse={read_point}")
        assert (status, error["code"]) == (404, 404)
        assert error_class in error["message"]


def test_names_and_namespaces(lake: Lake) -> None:
    assert ask(lake, "/v1/strong/namespaces")[1] == {"namespaces": [["a"], ["db"], ["empty"]]}
    assert ask(lake, "/v1/strong/namespaces?parent=a")[1] == {"namespaces": [["a", "b"]]}
    assert ask(lake, "/v1/strong/namespaces/a%1Fb/tables")[1] == {
        "identifiers": [{"namespace": ["a", "b"], "name": "outside"}]
    }
    assert ask(lake, "/v1/strong/namespaces/a%1Fb")[1]["namespace"] == ["a", "b"]
    assert ask(lake, "/v1/strong/namespaces/db/views")[1] == {"identifiers": []}
    for path, status in (
        ("db", 200),
        ("nope", 404),
        ("db/tables/orders", 200),
        ("db/tables/nope", 404),
        ("db/views/orders", 404),
    ):
        assert ask(lake, f"/v1/strong/namespaces/{path}", "HEAD")[0] == status
    for path, kind in (
        ("nope", "NoSuchNamespaceException"),
        ("nope/tables", "NoSuchNamespaceException"),
        ("db/tables/nope", "NoSuchTableException"),
        ("db/views/nope", "NoSuchViewException"),
    ):
        assert ask(lake, f"/v1/strong/namespaces/{path}")[1]["type"] == kind


def test_writes_are_refused_in_icebergs_form(lake: Lake) -> None:
    for method, path in (
        ("POST", "/v1/strong/namespaces"),
        ("POST", "/v1/strong/namespaces/db/tables"),
        ("POST", "/v1/strong/namespaces/db/tables/orders"),
        ("DELETE", "/v1/strong/namespaces/db/tables/orders"),
        ("POST", "/v1/strong/tables/rename"),
        ("POST", "/v1/strong/transactions/commit"),
        ("DELETE", "/v1/strong/namespaces/db"),
    ):
        status, error = ask(lake, path, method, b"{}")
        assert (status, error["type"], error["code"]) == (405, "UnsupportedOperationException", 405)
        assert "read-only" in error["message"]
    assert ask(lake, "/v1/strong/namespaces/db/tables/orders/metrics", "POST", b"{}")[0] == 204
    session = reader_session(lake.spark, "lake", lake.uri, "strong")
    for statement in (
        "INSERT INTO lake.db.totals VALUES (1)",
        "CREATE TABLE lake.db.fresh (id INT) USING iceberg",
        "DROP TABLE lake.db.orders",
        "CREATE NAMESPACE lake.fresh",
    ):
        with pytest.raises(Exception, match=r"(?i)not support|read-only|unsupported"):
            session.sql(statement)
    assert lake.version("db.totals")


def test_table_without_version_gives_the_reason(lake: Lake) -> None:
    lake.spark.sql("INSERT INTO lake.db.orders VALUES (9, 9, 'x')")
    broken = lake.cut(fail=True)
    status, error = ask(lake, f"/v1/checkpoint-{broken}/namespaces/db/tables/totals")
    assert (status, error["type"]) == (404, "NoSuchTableException")
    assert f"not complete at checkpoint {broken}: division by zero" in error["message"]
    listed = ask(lake, f"/v1/checkpoint-{broken}/namespaces/db/tables")[1]["identifiers"]
    assert [entry["name"] for entry in listed] == ["orders"]


def test_expired_snapshot_has_its_own_error(lake: Lake) -> None:
    lake.spark.sql(
        "CALL lake.system.expire_snapshots(table => 'db.orders', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    error = ask(lake, f"/v1/checkpoint-{lake.numbers[0]}/namespaces/db/tables/orders")[1]
    assert "SNAPSHOT_GONE" in error["message"]


def test_weak_reads_the_newest_reported_version(lake: Lake) -> None:
    assert [r["id"] for r in pyiceberg_rows(lake, "weak", "db.orders")] == [1, 2, 3]
    lake.store.roots.report("job", lake.fence, {name("orders"): lake.version("db.orders")})
    assert [r["id"] for r in pyiceberg_rows(lake, "weak", "db.orders")] == [2, 3, 4]


def test_registered_read_point_is_looked_up_at_each_request(lake: Lake) -> None:
    shown: dict[str, Version] = {"orders": lake.version("db.orders")}
    lake.read_points.register("refresh-job", lambda table: shown.get(table.table))
    assert len(pyiceberg_rows(lake, "refresh-job", "db.orders")) == 3
    path = "/v1/refresh-job/namespaces/db/tables/totals"
    assert ask(lake, path)[0] == 404
    shown["totals"] = lake.version("db.totals")
    assert ask(lake, path)[0] == 200
    lake.read_points.unregister("refresh-job")
    assert "INSTANT_NOT_FOUND" in ask(lake, path)[1]["message"]
    with pytest.raises(ValueError, match="built-in read point"):
        lake.read_points.register("checkpoint-3", lambda _table: None)


def test_older_checkpoint_survives_create_or_replace(lake: Lake) -> None:
    lake.spark.sql("CREATE OR REPLACE TABLE lake.db.totals USING iceberg AS SELECT 'x' AS a, 'y' AS n")
    third = lake.cut()
    assert spark_rows(lake, f"checkpoint-{lake.numbers[0]}", "SELECT * FROM lake.db.totals") == [(2,)]
    assert spark_rows(lake, f"checkpoint-{third}", "SELECT * FROM lake.db.totals") == [("x", "y")]
    assert pyiceberg_rows(lake, f"checkpoint-{lake.numbers[1]}", "db.totals") == [{"n": 3}]


def test_version_that_reached_main_by_fast_forward(lake: Lake) -> None:
    table = "lake.db.totals"
    lake.spark.sql(f"ALTER TABLE {table} CREATE BRANCH work")
    lake.spark.sql(f"INSERT INTO {table}.branch_work VALUES (4)")
    inner = lake.spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'work'").collect()[0][0]
    lake.spark.sql(f"INSERT INTO {table}.branch_work VALUES (5)")
    lake.spark.sql("CALL lake.system.fast_forward('db.totals', 'main', 'work')")
    newest = lake.cut()
    assert spark_rows(lake, f"checkpoint-{newest}", f"SELECT * FROM {table}") == [(3,), (4,), (5,)]
    lake.read_points.register("inner", lambda _table: Version(str(inner)))
    assert spark_rows(lake, "inner", f"SELECT * FROM {table}") == [(3,), (4,)]
    # Other branches than main are not shown.
    assert spark_rows(lake, "inner", f"SELECT name FROM {table}.refs") == [("main",)]


def test_strong_without_a_published_checkpoint_is_404(tmp_path: Path, lake: Lake) -> None:
    with (
        MetaStore.open(f"sqlite:///{tmp_path}/other.db") as store,
        EmbeddedServer(ReadPoints(store), lake.source) as server,
    ):
        lake.uri = server.uri
        status, error = ask(lake, "/v1/config?warehouse=strong")
        assert status == 404
        assert "no published checkpoint" in error["message"]


def test_server_starts_fast_and_writes_no_output(lake: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    durations_s = []
    for _ in range(3):
        started = time.monotonic()
        server = EmbeddedServer(lake.read_points, lake.source)
        durations_s.append(time.monotonic() - started)
        lake.uri = server.uri
        assert ask(lake, "/v1/config")[0] == 200
        server.close()
        server.close()
    assert capfd.readouterr() == ("", "")
    assert min(durations_s) < 0.5
