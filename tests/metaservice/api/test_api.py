"""`/api/v1`, `/metrics`, the log: what they say about a store that is known."""

from __future__ import annotations

import json
import logging
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.metaservice.conftest import Shop, name
from tests.metaservice.pages.doubles import Rows
from tests.metaservice.pages.world import PLAN, built

from tautochrone.meta.sql.datasets import SqlDatasets
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.http.logs import FIELDS, _Json, _Text
from tautochrone.metaservice.pages import Forms
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.run_report import CaptureReport, FlowSource, RunReport, SourceKind
from tautochrone.redaction import keep_secret


def test_datasets_and_one_of_them(client: TestClient, shop: Shop) -> None:
    shop.checkpoint(2, cut_at_ms=5_000, fail=True)
    datasets = {d["name"]: d for d in client.get("/api/v1/datasets").json()}
    assert datasets["lake.db.totals"]["lag_ms"] == 0
    assert datasets["lake.db.top"]["lag_ms"] == pytest.approx(time.time() * 1_000 - 1_000, abs=60_000)
    assert datasets["lake.db.top"]["error"] == "division by zero"
    totals = client.get("/api/v1/datasets/lake.db.totals").json()
    assert (totals["inputs"], totals["outputs"], totals["definition"]) == (
        ["lake.db.orders"],
        ["lake.db.top"],
        "b",
    )
    assert client.get("/api/v1/datasets/lake.db.nope").json()["error_class"] == "DATASET_NOT_FOUND"
    newest, first = client.get("/api/v1/datasets/lake.db.top/refreshes").json()
    assert (newest["error"], first["version"], first["nodes"][0]["node"]) == (
        "division by zero",
        "10",
        "Aggregate",
    )
    up = client.get("/api/v1/lineage/lake.db.top").json()
    assert up["upstream"] == ["lake.db.orders", "lake.db.totals"]


def test_versions_of_publications(shop: Shop) -> None:
    versions = {"delta": {"lake.db.totals": "6"}, "hudi": {"lake.db.totals": "20261130101112345"}}
    app = create_app(
        access=Access.on_loopback(Role.READ),
        store=shop.store,
        published_as=lambda number: versions if number == 1 else {},
    )
    client = TestClient(app, base_url="http://localhost")
    assert client.get("/api/v1/checkpoints/1").json()["published"] == versions
    assert client.get(f"/api/v1/checkpoints/{shop.checkpoint(2)}").json()["published"] == {}


def test_checkpoints(client: TestClient, shop: Shop) -> None:
    n = shop.checkpoint(2, fail=True)
    assert [c["number"] for c in client.get("/api/v1/checkpoints?limit=1").json()] == [n]
    checkpoint = client.get(f"/api/v1/checkpoints/{n}").json()
    assert {v["table"]: v["version"] for v in checkpoint["versions"]} == {
        "lake.db.orders": "2",
        "lake.db.totals": "20",
    }
    assert checkpoint["failures"] == [
        {
            "dataset": "lake.db.top",
            "error": "division by zero",
            "error_code": "UNKNOWN",
            "error_params": {"text": "division by zero"},
        }
    ]
    assert checkpoint["published"] == {}
    assert client.get("/api/v1/checkpoints/99").status_code == 404
    assert client.get("/api/v1/checkpoints/99999999999999999999").status_code == 422


def test_pipelines(client: TestClient) -> None:
    (pipeline,) = client.get("/api/v1/pipelines").json()
    assert (pipeline["name"], pipeline["jobs"], len(pipeline["datasets"])) == ("shop", ["shop"], 3)


def test_delays_count_from_the_cut_and_over_edges(client: TestClient, shop: Shop) -> None:
    shop.checkpoint(2, cut_at_ms=50_000)
    delays = {d["dataset"]: d for d in client.get("/api/v1/delays").json()}
    assert "lake.db.orders" not in delays, "a root is there at the cut"
    # Cut at 0, totals ready after 400 ms, top after 1000 ms.
    totals, top = delays["lake.db.totals"], delays["lake.db.top"]
    assert (totals["end_to_end_ms"], totals["refresh_ms"]) == (400, 300)
    assert totals["edges"] == [{"input": "lake.db.orders", "delay_ms": 400}]
    assert top["end_to_end_ms"] == 1_000
    assert top["edges"] == [{"input": "lake.db.totals", "delay_ms": 600}]


def test_a_pin_is_made_renewed_seen_and_released(client: TestClient) -> None:
    request = {"owner": "a notebook", "tables": ["lake.db.totals"], "lease_ms": 60_000}
    created = client.post("/api/v1/pins", json=request)
    assert created.status_code == 201
    pin = created.json()["id"]
    (seen,) = client.get("/api/v1/pins").json()
    assert (seen["id"], seen["owner"], seen["checkpoint"]) == (pin, "a notebook", 1)
    assert client.post(f"/api/v1/pins/{pin}/renew", json={"lease_ms": 120_000}).status_code == 204
    assert client.get("/api/v1/pins").json()[0]["expires_at_ms"] > seen["expires_at_ms"]
    assert client.delete(f"/api/v1/pins/{pin}").status_code == 204
    assert client.get("/api/v1/pins").json() == []
    expired = client.post(f"/api/v1/pins/{pin}/renew", json={})
    assert (expired.status_code, expired.json()["error_class"]) == (410, "PIN_EXPIRED")


def test_a_defect_is_a_problem_without_its_text(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: object) -> object:
        raise RuntimeError("the inner words")

    monkeypatch.setattr(SqlDatasets, "statuses", broken)
    answer = client.get("/api/v1/datasets")
    assert (answer.status_code, answer.json()["error_class"]) == (500, "INTERNAL_ERROR")
    assert "inner words" not in answer.text


def test_expectations_of_datasets_are_told_and_measured(client: TestClient, shop: Shop) -> None:
    known = ExpectationCount("known", ViolationAction.DROP, 12, 2)
    shop.store.datasets.record_expectations("shop", shop.fence, name("orders"), [known])
    expectations = {d["name"]: d["expectations"] for d in client.get("/api/v1/datasets").json()}
    assert expectations["lake.db.totals"] == []
    assert expectations["lake.db.orders"] == [
        {"name": "known", "action": "drop", "violations": 12, "change": 2}
    ]
    labels = {"dataset": "lake.db.orders", "job": "shop", "expectation": "known", "action": "drop"}
    assert samples(client)["tautochrone_expectation_violations", frozenset(labels.items())] == 12


def samples(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def test_metrics_follow_the_store(client: TestClient, shop: Shop) -> None:
    def value(metric: str, **labels: str) -> float | None:
        return metrics.get((metric, frozenset(labels.items())))

    metrics = samples(client)
    assert value("tautochrone_refresh_total", dataset="lake.db.totals", mode="full") is None
    shop.checkpoint(2, cut_at_ms=3_000, fail=True)
    client.get("/api/v1/datasets/lake.db.totals")
    for _ in range(2):  # asking twice counts once
        metrics = samples(client)
        assert value("tautochrone_refresh_total", dataset="lake.db.totals", mode="full") == 1
    assert value("tautochrone_refresh_total", dataset="lake.db.top", mode="failed") == 1
    assert value("tautochrone_rows_changed_total", dataset="lake.db.totals", change_type="insert") == 7
    lag_s = value("tautochrone_dataset_lag_seconds", dataset="lake.db.top", job="shop")
    assert lag_s == pytest.approx(time.time() - 1, abs=60)
    assert value("tautochrone_dataset_failing", dataset="lake.db.top", job="shop") == 1
    assert value("tautochrone_checkpoint_published", job="shop") == 2
    route = "/api/v1/datasets/{name}"
    assert value("tautochrone_http_requests_total", method="GET", route=route, status="200") == 1


def test_log_has_a_line_per_request_without_secrets(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    keep_secret("very-secret-token-0815")
    caplog.set_level(logging.INFO)
    client.get("/api/v1/jobs?x=very-secret-token-0815", headers={"Authorization": "Bearer other"})
    client.get("/nowhere/very-secret-token-0815%0Aforged line")
    first, second = (r for r in caplog.records if r.name == "tautochrone.access")
    line = json.loads(_Json().format(first))
    assert (line["message"], line["path"], line["status"], line["role"]) == (
        "request",
        "/api/v1/jobs",
        200,
        "operate",
    )
    for formatter in (_Json(), _Text()):
        text = formatter.format(second)
        assert "very-secret" not in text
        assert "\n" not in text
    assert "other" not in json.dumps(first.__dict__[FIELDS])


def test_without_a_lake_the_catalog_says_so(client: TestClient) -> None:
    answer = client.get("/v1/config")
    assert answer.status_code == 404
    assert "[CATALOG_NOT_SERVED]" in answer.json()["error"]["message"]


def test_changes_of_a_checkpoint(client: TestClient, shop: Shop) -> None:
    number = shop.checkpoint(2)
    changes = client.get(f"/api/v1/checkpoints/{number}/changes").json()
    assert (changes["previous"], changes["following"], changes["compared"]) == (number - 1, None, number - 1)
    tables = {change["table"]: change for change in changes["tables"]}
    assert (tables["lake.db.orders"]["before"], tables["lake.db.orders"]["version"]) == ("1", "2")
    # The service serves no lake, so nobody counted the rows of a root.
    assert tables["lake.db.orders"]["rows_added"] is None
    assert tables["lake.db.top"]["mode"] == "full"
    assert client.get("/api/v1/checkpoints/99/changes").status_code == 404


def test_costs(client: TestClient, shop: Shop) -> None:
    assert client.get("/api/v1/costs").json() == [], "the first checkpoint is of 1970"
    shop.checkpoint(2, cut_at_ms=int(time.time() * 1_000))
    costs = {cost["dataset"]: cost for cost in client.get("/api/v1/costs").json()}
    assert costs["lake.db.top"]["refreshes"] == {"full": 1}
    assert client.get("/api/v1/costs?hours=0").status_code == 422


def test_sources_with_what_databases_keep(client: TestClient, shop: Shop) -> None:
    assert client.get("/api/v1/sources").json() == []
    table, fence = str(name("orders")), shop.store.jobs.newest_fence("shop")
    sources = (FlowSource(flow="orders", dataset=table, kind=SourceKind.DATABASE, name="erp"),)
    captures = {table: CaptureReport(source="erp", dataset=table, phase="copying", lag_ms=5, at_ms=7)}
    report = RunReport(sources=sources, captures=captures)
    shop.store.jobs.heartbeat("shop", fence, report=report)
    (source,) = client.get("/api/v1/sources").json()
    assert source == {
        "job": "shop", "flow": "orders", "dataset": table, "kind": "database", "name": "erp",
        "phase": "copying", "lag_ms": 5, "kept": [], "problem": None, "asked_at_ms": 7,
    }  # fmt: skip


def test_rows_of_plans_are_for_who_may_query(shop: Shop) -> None:
    """A service of a running job answers queries only by its key, and a token `read` of the store none."""
    built(shop.store, "shop", [name("totals")], "n")
    runner = Rows()

    def rows_of(role: Role, key: str | None) -> tuple[bool, bool]:
        app = create_app(
            access=Access(anonymous=role),
            store=shop.store,
            forms=Forms(runner=runner) if key == "" else "none",
            queries=None if not key else (runner, key),
        )
        client = TestClient(app)
        views = client.get(f"/api/v1/plans/{PLAN}").json()["tables"]
        calls = [client.post(f"/rpc/builds.{call}", json={"build": PLAN}) for call in ("get", "look_up")]
        assert [call.status_code for call in calls] == [200, 200]
        return any(view["samples"] for view in views), "2026-01-01" in "".join(call.text for call in calls)

    assert rows_of(Role.READ, "key") == (False, False)
    assert rows_of(Role.READ, None) == (False, False)
    assert rows_of(Role.READ, "") == (True, False)
    assert rows_of(Role.OPERATE, "") == (True, True)
