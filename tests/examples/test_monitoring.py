"""The rules and the dashboard name metrics and labels that a service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.run_report import CaptureReport, DiskSpace, FlowFailure, Quarantine, RunReport
from tautochrone.model.sink import SinkDeclaration
from tautochrone.model.source import KeptLog

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
ORDERS, TOTALS = (TableName("lake", ("db",), table) for table in ("orders", "totals"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """By metric of a service over a store that has all there is: its labels."""
    with MetaStore.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/meta.db") as store:
        client = TestClient(create_app(access=Access(anonymous=Role.OPERATE), store=store))
        _fill(store)
        families = text_string_to_metric_families(client.get("/metrics").text)
        labels: dict[str, set[str]] = {}
        for family in families:
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        yield labels


def _fill(store: MetaStore) -> None:
    entries = [
        DatasetEntry(ORDERS, "streaming table", "a", is_root=True),
        DatasetEntry(TOTALS, "materialized view", "b", frozenset({ORDERS})),
    ]
    store.jobs.start_run("shop", "shop", entries)
    fence = store.jobs.take_over("shop")
    number = store.checkpoints.open("shop", fence, NewCheckpoint({ORDERS: Version("1")}, 1)).number
    refresh = Refresh(mode=RefreshMode.FULL, reason=unclassified("first"), rows_inserted=1, duration_ms=5)
    store.checkpoints.record_version("shop", fence, number, TOTALS, Version("1"), refresh)
    store.checkpoints.publish("shop", fence, number, 2)
    counts = [ExpectationCount("known", ViolationAction.DROP, 3, 1)]
    store.datasets.record_expectations("shop", fence, TOTALS, counts)
    mirror = SinkDeclaration(name="mirror", format="toy", tables=(TOTALS,))
    sink_fence = store.deliveries.claim("shop", fence, mirror, Fence(0))
    store.deliveries.record_failure("shop", fence, "mirror", sink_fence, "away", attention=True)
    kept = KeptLog(
        name="slot", is_own=True, distance_bytes=5, kept_bytes=7, is_lost=False, last_read=None, drop=""
    )
    reason = unclassified("no number")
    report = RunReport(
        flows={"orders": FlowFailure(dataset=str(ORDERS), error="away", since_ms=1)},
        captures={
            "log": CaptureReport(source="erp", dataset="log", phase="streaming", lag_ms=5, kept=(kept,))
        },
        quarantines={str(ORDERS): Quarantine(table="lake.db.q", records=3, reason=reason, last_ms=1)},
        disk=DiskSpace(path="/d", free_bytes=1, total_bytes=9),
    )
    store.jobs.heartbeat("shop", fence, report=report)
    (alarm, *_) = store.alarms.evaluate()
    store.alarms.record_notified(alarm.id or 0, "ops", "fired", "HTTP 500", attempts=1)


def expressions() -> list[str]:
    rules = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())
    dashboard: Any = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return [
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
        *(
            variable["query"]["query"]
            for variable in dashboard["templating"]["list"]
            if variable["type"] == "query"
        ),
    ]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_and_labels_that_there_are(
    labels: dict[str, set[str]], expression: str
) -> None:
    metrics = re.findall(r"\btautochrone_\w+", expression)
    assert metrics
    assert not {*metrics} - labels.keys()
    known = set().union(*(labels[metric] for metric in metrics))
    grouped = [word for names in re.findall(r"by \(([^)]*)\)", expression) for word in names.split(", ")]
    selected = re.findall(r"[{,]\s*(\w+)\s*=", expression)
    assert not {*grouped, *selected} - known


def test_templates_of_alerts_use_labels_of_their_expressions() -> None:
    rules = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            used = re.findall(r"\$labels\.(\w+)", json.dumps(rule))
            kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
            assert {*used} <= {word for names in kept for word in names.split(", ")}
