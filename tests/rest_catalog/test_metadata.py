"""What is served of a table's metadata, without a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tautochrone.model.names import Version
from tautochrone.rest_catalog.metadata import at_version, with_columns

ID = {"id": 1, "name": "id", "required": False, "type": "long"}
NOTE = {"id": 5, "name": "note", "required": False, "type": "string"}
LATER = {"id": 7, "name": "later", "required": False, "type": "string"}


def schema(number: int, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_version_with_columns_that_it_lacks(format_version: int) -> None:
    metadata = {
        "format-version": format_version,
        "schemas": [schema(0, ID), schema(1, ID, NOTE)],
        "current-schema-id": 1,
        "last-column-id": 5,
        "snapshots": [{"snapshot-id": 3, "schema-id": 0, "timestamp-ms": 1}],
        "partition-specs": [],
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
    }
    if format_version == 1:
        metadata["schema"] = schema(1, ID, NOTE)
    served = with_columns(at_version(metadata, Version("3")), json.dumps(schema(0, ID, NOTE, LATER)))
    (current,) = (each for each in served["schemas"] if each["schema-id"] == served["current-schema-id"])
    assert [field["name"] for field in current["fields"]] == ["id", "note", "later"]
    assert (served["last-column-id"], served["current-snapshot-id"]) == (7, 3)
    assert served.get("schema", current) == current
    assert metadata["current-schema-id"] == 1, "the cached metadata stays"
