"""Names that are paths reach nothing outside of the warehouse, and no table by another spelling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tautochrone.model.catalog import NEWEST
from tautochrone.model.names import TableName, Version
from tautochrone.rest_catalog.metadata import HadoopSource
from tautochrone.rest_catalog.routes import catalog_app


class OneCheckpoint:
    """Read points at which `default.orders` has its version 1, and all others are as they are."""

    def resolve(self, prefix: str) -> str:
        return prefix

    def versions(self, _prefix: str) -> Callable[[TableName], Version]:
        return lambda table: Version("1") if table.without_catalog == "default.orders" else NEWEST

    def missing_reason(self, _prefix: str, _table: TableName) -> str:
        return ""


def add_table(folder: Path) -> None:
    snapshots = [{"snapshot-id": number, "timestamp-ms": number, "summary": {}} for number in (1, 2)]
    metadata = {
        "format-version": 2,
        "table-uuid": "u",
        "location": str(folder),
        "current-snapshot-id": 2,
        "snapshots": snapshots,
        "schemas": [{"schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [],
        "sort-orders": [],
    }
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata))


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    add_table(tmp_path / "lake" / "default" / "orders")
    add_table(tmp_path / "hr" / "salaries")
    read_points: Any = OneCheckpoint()
    return TestClient(catalog_app(read_points, HadoopSource("lake", {"warehouse": str(tmp_path / "lake")})))


def paths_to(namespace: str, table: str, folder: Path) -> list[tuple[str, str]]:
    """Names that the file system would take for a table in a folder beside or in the warehouse."""
    spellings = [f"{way}{table}" for way in ("./", "../" + namespace + "/", "x/../", "/")]
    levels = [namespace + "/", "./" + namespace, "x\x1f..\x1f" + namespace, ".\x1f" + namespace]
    return [
        *((namespace, spelling) for spelling in spellings),
        *((level, table) for level in levels),
        (namespace, str(folder)),
        ("default", "../../hr/salaries"),
        ("..\x1fhr", "salaries"),
        ("../hr", "salaries"),
        (namespace, table + "\\"),
        (namespace, ""),
        ("", table),
    ]


def test_names_that_are_paths_name_nothing(client: TestClient, tmp_path: Path) -> None:
    tables = "/checkpoint-1/namespaces/{}/tables/{}"
    answer = client.get(tables.format("default", "orders"))
    assert answer.json()["metadata"]["current-snapshot-id"] == 1
    for namespace, table in paths_to("default", "orders", tmp_path / "hr" / "salaries"):
        url = tables.format(quote(namespace, safe=""), quote(table, safe=""))
        answer = client.get(url)
        # Without a table's name it is the list of the namespace.
        is_list = not table and answer.status_code == 200 and "metadata" not in answer.json()
        assert answer.status_code in (404, 405) or is_list, url
        assert "salaries" not in answer.text or answer.status_code != 200, url
    assert client.get("/checkpoint-1/namespaces/..%1Fhr/tables").status_code == 404
