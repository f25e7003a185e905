"""Refreshes are told as OpenLineage events, by a receiver's own rules, and a run never waits for one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.errors import SettingsError
from tautochrone.metaservice.openlineage import OpenLineage, transport_to
from tautochrone.model import events
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.names import TableName
from tautochrone.model.reason import unclassified

ROOT, VIEW = TableName("lake", ("db",), "orders"), TableName("lake", ("db",), "totals")
REFRESH = events.Refresh(
    dataset=str(VIEW),
    checkpoint=4,
    mode=RefreshMode.FULL,
    reason=unclassified("it was chosen"),
    nodes=(),
    rows_inserted=7,
    rows_deleted=0,
    duration_ms=1500,
    cpu_ms=None,
    estimate_ms=None,
    delta_rows=0,
    expectations=(),
)
FAILURE = events.RefreshFailed(dataset=str(VIEW), checkpoint=5, error=unclassified("[X] it broke"), hint=None)


def listener(target: str, folder: Path, log: list[events.Event]) -> OpenLineage:
    return OpenLineage(
        transport_to(target, folder),
        log.append,
        pipeline="shop",
        lake="file:/warehouse",
        inputs={VIEW: {ROOT}},
    )


def seconds(event: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(event["eventTime"]).timestamp()


def test_lineage_events_of_refreshes(tmp_path: Path) -> None:
    log: list[events.Event] = []
    lineage = listener("lineage.jsonl", tmp_path, log)
    lineage(REFRESH)
    lineage(replace(REFRESH, mode=RefreshMode.NO_DATA))
    lineage(events.NoNews(checkpoint=4, duration_ms=1))
    lineage(FAILURE)
    lineage.close()
    assert log == []
    start, complete, again, fail = map(json.loads, (tmp_path / "lineage.jsonl").read_text().splitlines())
    assert [e["eventType"] for e in (start, complete, again, fail)] == ["START", "COMPLETE", "START", "FAIL"]
    assert start["run"]["runId"] == complete["run"]["runId"] != again["run"]["runId"] == fail["run"]["runId"]
    assert seconds(complete) - seconds(start) == pytest.approx(1.5)
    for event in (start, complete, again, fail):
        assert event["job"]["name"] == "shop.db.totals"
        assert [(d["namespace"], d["name"]) for d in event["inputs"]] == [("file:/warehouse", "db.orders")]
        assert [(d["namespace"], d["name"]) for d in event["outputs"]] == [("file:/warehouse", "db.totals")]
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert fail["run"]["facets"]["errorMessage"]["message"] == "[X] it broke"


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/api/v1/lineage"
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def test_receiver_gets_all_events(tmp_path: Path, receiver: tuple[str, list[dict[str, Any]]]) -> None:
    log: list[events.Event] = []
    lineage = listener(receiver[0], tmp_path, log)
    for _ in range(20):
        lineage(REFRESH)
    lineage.close()
    assert log == []
    assert [event["eventType"] for event in receiver[1]] == ["START", "COMPLETE"] * 20


def test_unreachable_receiver_is_reported_without_delay(
    tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openlineage.client.transport import http

    # The library tries again for ten seconds.
    monkeypatch.setitem(http.DEFAULT_RETRY_CONFIG, "total", 0)
    log: list[events.Event] = []
    lineage = listener(f"http://127.0.0.1:{unused_port}", tmp_path, log)
    started = time.monotonic()
    lineage(REFRESH)
    assert time.monotonic() - started < 1
    lineage.close()
    dropped = [event.dropped for event in log if isinstance(event, events.OpenlineageFailed)]
    assert len(dropped) == len(log)
    assert sum(dropped) >= 1


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openlineage.client.transport.file", None)
    with pytest.raises(SettingsError, match="OPENLINEAGE_MISSING") as caught:
        transport_to("x", tmp_path)
    assert "tautochrone[openlineage]" in str(caught.value.hint)


@pytest.mark.spark
def test_a_run_tells_its_refreshes(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(tmp_path, spark, settings='[events]\nopenlineage = "lineage.jsonl"\n')
    pipeline.write("definitions/a.sql", "CREATE MATERIALIZED VIEW a AS SELECT id FROM range(3);")
    pipeline.write("definitions/b.sql", "CREATE MATERIALIZED VIEW b AS SELECT count(*) AS n FROM a;")
    assert pipeline.run().state == "COMPLETED"
    pipeline.close()
    lineage_events = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    done = {e["job"]["name"]: e for e in lineage_events if e["eventType"] == "COMPLETE"}
    assert done.keys() == {"test.default.a", "test.default.b"}
    (read,) = done["test.default.b"]["inputs"]
    (written,) = done["test.default.a"]["outputs"]
    assert (read["namespace"], read["name"]) == (written["namespace"], written["name"])
    assert str(tmp_path) in read["namespace"]
