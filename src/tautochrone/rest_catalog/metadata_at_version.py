"""A table's metadata with one of its versions as the current one. Pure functions that know no catalog.

Engines read the current state from four fields of the metadata: the current snapshot, the branch `main`,
the current schema and the last entry of the snapshot log. All four must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tautochrone.model.catalog import FullSnapshotRead
from tautochrone.model.names import Version

__all__ = ["SnapshotGoneError", "at_version", "for_stream"]

_NO_SNAPSHOT = -1
"""How Iceberg writes that a table has no snapshot."""
_SNAPSHOT_FIELDS = ("current-snapshot-id", "statistics", "partition-statistics")


class SnapshotGoneError(Exception):
    """The metadata does not list the version: it was expired, or the table was replaced."""


def at_version(metadata: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """A copy of `metadata` whose current state is `version`, without anything later.

    Only the version's ancestors stay, so no engine reads later rows or batches that are prepared on other
    branches. Tags stay when they point to one of these ancestors.

    Raises:
        SnapshotGoneError: the metadata does not list the version.
    """
    current = int(version)
    if current == _NO_SNAPSHOT:
        return _empty(metadata)
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    if current not in snapshots:
        raise SnapshotGoneError(version)
    ancestors: set[int] = set()
    ancestor: int | None = current
    while ancestor is not None and ancestor in snapshots and ancestor not in ancestors:
        ancestors.add(ancestor)
        ancestor = snapshots[ancestor].get("parent-snapshot-id")
    refs = {
        name: ref
        for name, ref in (metadata.get("refs") or {}).items()
        if ref.get("type") == "tag" and ref["snapshot-id"] in ancestors
    }
    changed: dict[str, Any] = {
        "current-snapshot-id": current,
        "snapshots": [s for s in metadata["snapshots"] if s["snapshot-id"] in ancestors],
        "refs": refs | {"main": {"snapshot-id": current, "type": "branch"}},
        "snapshot-log": _snapshot_log(metadata.get("snapshot-log") or (), snapshots[current], ancestors),
    }
    for entry in ("statistics", "partition-statistics"):
        if entry in metadata:
            changed[entry] = [s for s in metadata[entry] if s["snapshot-id"] in ancestors]
    result = dict(metadata) | changed
    schema_id = snapshots[current].get("schema-id")
    if schema_id is not None:
        _use_schema(result, metadata, schema_id)
    return result


def for_stream(
    metadata: Mapping[str, Any], full_reads: Iterable[FullSnapshotRead], folder: str
) -> dict[str, Any]:
    """A copy of `metadata` for one stream: the snapshots of `full_reads` are appends of all their files.

    See `model.catalog.Streamed`.
    """
    by_snapshot = {int(read.version): read for read in full_reads}
    snapshots = [
        _append_of_all_files(snapshot, by_snapshot[snapshot["snapshot-id"]])
        if snapshot["snapshot-id"] in by_snapshot
        else snapshot
        for snapshot in metadata.get("snapshots") or ()
    ]
    properties = {**(metadata.get("properties") or {}), "write.metadata.path": folder}
    return {**metadata, "snapshots": snapshots, "properties": properties}


def _append_of_all_files(snapshot: Mapping[str, Any], full_read: FullSnapshotRead) -> dict[str, Any]:
    summary = {"operation": "append", "added-data-files": str(full_read.files)}
    append = {**snapshot, "summary": {**(snapshot.get("summary") or {}), **summary}}
    return append if full_read.manifests is None else append | {"manifest-list": full_read.manifests}


def _empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of the table before its first snapshot."""
    result = {key: value for key, value in metadata.items() if key not in _SNAPSHOT_FIELDS}
    return result | {"snapshots": [], "refs": {}, "snapshot-log": []}


def _snapshot_log(
    log: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any], ancestors: set[int]
) -> list[Mapping[str, Any]]:
    """The log up to the snapshot.

    The log has no entry for a snapshot that reached main within a fast-forward: one is added for it.
    """
    snapshot_id = snapshot["snapshot-id"]
    indexes = [index for index, entry in enumerate(log) if entry["snapshot-id"] == snapshot_id]
    if indexes:
        return [entry for entry in log[: indexes[-1] + 1] if entry["snapshot-id"] in ancestors]
    committed_ms = snapshot["timestamp-ms"]
    before = [e for e in log if e["snapshot-id"] in ancestors and e["timestamp-ms"] <= committed_ms]
    return [*before, {"snapshot-id": snapshot_id, "timestamp-ms": committed_ms}]


def _use_schema(result: dict[str, Any], metadata: Mapping[str, Any], schema_id: int) -> None:
    """Make an older schema the current one, without partition specs and sort orders over later columns.

    Iceberg binds every partition spec and the default sort order to the current schema when it parses
    metadata: a spec over a column that was added later would make the table unreadable.
    """
    result["current-schema-id"] = schema_id
    schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    if schema_id not in schemas:
        return
    if "schema" in result:  # format version 1 repeats the current schema
        result["schema"] = schemas[schema_id]
    later_columns = _field_ids(schemas[metadata["current-schema-id"]]) - _field_ids(schemas[schema_id])
    if not later_columns:
        return
    specs = [spec for spec in metadata["partition-specs"] if not _source_ids(spec) & later_columns]
    if specs and len(specs) < len(metadata["partition-specs"]):
        result["partition-specs"] = specs
        spec_ids = {spec["spec-id"] for spec in specs}
        if result["default-spec-id"] not in spec_ids:
            result["default-spec-id"] = max(spec_ids)
        if "partition-spec" in result:
            result["partition-spec"] = next(
                spec["fields"] for spec in specs if spec["spec-id"] == result["default-spec-id"]
            )
    orders = [order for order in metadata["sort-orders"] if not _source_ids(order) & later_columns]
    result["sort-orders"] = orders
    if result["default-sort-order-id"] not in {order["order-id"] for order in orders}:
        if not any(order["order-id"] == 0 for order in orders):
            orders.append({"order-id": 0, "fields": []})
        result["default-sort-order-id"] = 0


def _source_ids(spec_or_order: Mapping[str, Any]) -> set[int]:
    """The ids of the columns that a partition spec or a sort order uses (v3: several a field)."""
    ids: set[int] = set()
    for field in spec_or_order["fields"]:
        ids.update(field.get("source-ids") or [field["source-id"]])
    return ids


def _field_ids(schema: Any) -> set[int]:
    """All field ids in a schema or in a piece of one, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(_field_ids, schema)) if schema else set()
    if not isinstance(schema, Mapping):
        return set()
    ids = {schema[key] for key in ("id", "element-id", "key-id", "value-id") if key in schema}
    return ids.union(*(_field_ids(value) for value in schema.values()))
