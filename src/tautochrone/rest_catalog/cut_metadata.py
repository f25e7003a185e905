"""Table metadata as it would be had the table stopped at a version. Pure; knows no catalog.

Engines take "the table" from four places in the metadata: the current snapshot, the branch `main`,
the current schema and the last entry of the snapshot log. All four must say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tautochrone.model.names import Version
from tautochrone.model.read_points import FullSnapshotRead

__all__ = ["SnapshotGoneError", "as_streamed", "at_version"]

_NO_SNAPSHOT = -1
"""Iceberg's own spelling of a table without rows and history."""
_OF_SNAPSHOTS = ("current-snapshot-id", "statistics", "partition-statistics")


class SnapshotGoneError(Exception):
    """The version is not in the metadata (any more): expired, or the table was replaced."""


def at_version(metadata: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """A copy of `metadata` whose current state is `version`, without anything later.

    Only the version's ancestors stay: nobody reads past the cut by accident, and other branches
    (batches prepared beside main) are invisible. Tags stay when they point into what is left.

    Raises:
        SnapshotGoneError: see there.
    """
    current = int(version)
    if current == _NO_SNAPSHOT:
        return _empty(metadata)
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    if current not in snapshots:
        raise SnapshotGoneError(version)
    kept: set[int] = set()
    step: int | None = current
    while step is not None and step in snapshots and step not in kept:
        kept.add(step)
        step = snapshots[step].get("parent-snapshot-id")
    refs = {
        name: ref
        for name, ref in (metadata.get("refs") or {}).items()
        if ref.get("type") == "tag" and ref["snapshot-id"] in kept
    }
    changed: dict[str, Any] = {
        "current-snapshot-id": current,
        "snapshots": [s for s in metadata["snapshots"] if s["snapshot-id"] in kept],
        "refs": refs | {"main": {"snapshot-id": current, "type": "branch"}},
        "snapshot-log": _log(metadata.get("snapshot-log") or (), snapshots[current], kept),
    }
    for part in ("statistics", "partition-statistics"):
        if part in metadata:
            changed[part] = [s for s in metadata[part] if s["snapshot-id"] in kept]
    result = dict(metadata) | changed
    schema_id = snapshots[current].get("schema-id")
    if schema_id is not None:
        _use_schema(result, metadata, schema_id)
    return result


def as_streamed(
    metadata: Mapping[str, Any], whole: Iterable[FullSnapshotRead], folder: str
) -> dict[str, Any]:
    """A copy of `metadata` for one stream; see `model.read_points.Streamed`."""
    taken = {int(one.version): one for one in whole}
    snapshots = [
        _append_of_all(snapshot, taken[snapshot["snapshot-id"]])
        if snapshot["snapshot-id"] in taken
        else snapshot
        for snapshot in metadata.get("snapshots") or ()
    ]
    properties = {**(metadata.get("properties") or {}), "write.metadata.path": folder}
    return {**metadata, "snapshots": snapshots, "properties": properties}


def _append_of_all(snapshot: Mapping[str, Any], taken: FullSnapshotRead) -> dict[str, Any]:
    summary = {"operation": "append", "added-data-files": str(taken.files)}
    shown = {**snapshot, "summary": {**(snapshot.get("summary") or {}), **summary}}
    return shown if taken.manifests is None else shown | {"manifest-list": taken.manifests}


def _empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The table before its first snapshot: as an external writer created it."""
    result = {key: value for key, value in metadata.items() if key not in _OF_SNAPSHOTS}
    return result | {"snapshots": [], "refs": {}, "snapshot-log": []}


def _log(
    log: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any], kept: set[int]
) -> list[Mapping[str, Any]]:
    """The log up to the snapshot. A snapshot that came to main within a fast-forward isn't in it."""
    number = snapshot["snapshot-id"]
    places = [place for place, entry in enumerate(log) if entry["snapshot-id"] == number]
    if places:
        return [entry for entry in log[: places[-1] + 1] if entry["snapshot-id"] in kept]
    at = snapshot["timestamp-ms"]
    before = [e for e in log if e["snapshot-id"] in kept and e["timestamp-ms"] <= at]
    return [*before, {"snapshot-id": number, "timestamp-ms": at}]


def _use_schema(result: dict[str, Any], metadata: Mapping[str, Any], schema_id: int) -> None:
    """Go back to an older schema, and drop what was laid over columns that it doesn't have yet.

    Iceberg binds every partition spec and the default sort order to the current schema when it
    parses metadata: one over a column that was added after the cut would make the table unreadable.
    """
    result["current-schema-id"] = schema_id
    schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    if schema_id not in schemas:
        return
    if "schema" in result:  # format version 1 repeats the current schema
        result["schema"] = schemas[schema_id]
    later = _ids(schemas[metadata["current-schema-id"]]) - _ids(schemas[schema_id])
    if not later:
        return
    specs = [spec for spec in metadata["partition-specs"] if not _sources(spec) & later]
    if specs and len(specs) < len(metadata["partition-specs"]):
        result["partition-specs"] = specs
        known = {spec["spec-id"] for spec in specs}
        if result["default-spec-id"] not in known:
            result["default-spec-id"] = max(known)
        if "partition-spec" in result:
            result["partition-spec"] = next(
                spec["fields"] for spec in specs if spec["spec-id"] == result["default-spec-id"]
            )
    orders = [order for order in metadata["sort-orders"] if not _sources(order) & later]
    result["sort-orders"] = orders
    if result["default-sort-order-id"] not in {order["order-id"] for order in orders}:
        if not any(order["order-id"] == 0 for order in orders):
            orders.append({"order-id": 0, "fields": []})
        result["default-sort-order-id"] = 0


def _sources(fields: Mapping[str, Any]) -> set[int]:
    """The column ids that a partition spec or a sort order is made of (v3: several a field)."""
    found: set[int] = set()
    for field in fields["fields"]:
        found.update(field.get("source-ids") or [field["source-id"]])
    return found


def _ids(part: Any) -> set[int]:
    """All field ids in a schema, at any depth."""
    if isinstance(part, list):
        return set().union(*map(_ids, part)) if part else set()
    if not isinstance(part, Mapping):
        return set()
    found = {part[key] for key in ("id", "element-id", "key-id", "value-id") if key in part}
    return found.union(*(_ids(value) for value in part.values()))
