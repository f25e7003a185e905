"""What happened to each dataset, and where it stands now. It must never decide anything.

A refresh that changed nothing leaves no row in the history, only the newest words on its dataset: otherwise a
quiet table would cost a row a checkpoint. Of the others the newest `KEPT_PER_DATASET` stay. Counts of
expectations, and the source files that were skipped, are kept as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Row, Table, bindparam, delete, insert, select, update

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import parse
from tautochrone.meta.queries.checkpoints import stored_failure
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshRecord
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.model.reason import Reason, reason_fields
from tautochrone.model.source import MAX_REPORTED_PATHS, SkippedFiles, SkipReason

__all__ = [
    "KEPT_PER_DATASET",
    "as_record",
    "expectations_json",
    "merged_skipped_files",
    "prune_failures",
    "record_refresh",
    "skipped_files_of",
    "stored_expectations",
]


KEPT_PER_DATASET = 1_000

# Built once, because building statements takes longer than running them.
_CHANGE_DATASET = update(t.datasets).where(t.datasets.c.name == bindparam("of_dataset"))
_ADD_REFRESH = insert(t.refreshes)


def expectations_json(expectations: Iterable[ExpectationCount]) -> list[dict[str, Any]]:
    """What is stored."""
    return [
        {
            "name": count.name,
            "action": str(count.action),
            "violations": count.violations,
            "change": count.change,
        }
        for count in expectations
    ]


def stored_expectations(stored: Sequence[dict[str, Any]] | None) -> tuple[ExpectationCount, ...]:
    """What was stored; None: nothing."""
    return tuple(
        ExpectationCount(
            name=fields["name"],
            action=ViolationAction(fields["action"]),
            violations=fields["violations"],
            change=fields["change"],
        )
        for fields in stored or ()
    )


def skipped_files_of(stored: Mapping[str, Any] | None) -> tuple[SkippedFiles, ...]:
    """What is stored of a dataset."""
    return tuple(
        SkippedFiles(flow, SkipReason(reason), files["count"], tuple(files["paths"]))
        for flow, reasons in sorted((stored or {}).items())
        for reason, files in sorted(reasons.items())
    )


def merged_skipped_files(known: dict[str, Any], reported: dict[str, Any] | None) -> dict[str, Any]:
    if reported is None:
        return known
    new = [path for path in reported["paths"] if path not in known["paths"]]
    unnamed = max(0, reported["count"] - len(reported["paths"])) if new else 0
    return {
        "count": known["count"] + len(new) + unnamed,
        "paths": [*new, *known["paths"]][:MAX_REPORTED_PATHS],
    }


def record_refresh(
    connection: Connection,
    number: int,
    dataset: str,
    version: str | None,
    refresh: Refresh | None,
    failure: Reason | None,
    finished_at_ms: int,
) -> None:
    """Write one refresh down."""
    mode = refresh.mode.value if refresh else None
    expectations = expectations_json(refresh.expectations) if refresh else []
    counted: dict[str, Any] = {"expectations": expectations} if expectations else {}
    reason = reason_fields("reason", refresh.reason if refresh else None)
    last = {f"last_{name}": value for name, value in reason.items()}
    connection.execute(
        _CHANGE_DATASET,
        {"of_dataset": dataset, "last_mode": mode, "last_at_ms": finished_at_ms, **last, **counted},
    )
    if failure is None and mode == RefreshMode.NO_DATA:
        return
    values = {
        "checkpoint": number,
        "dataset": dataset,
        "version": version,
        "mode": mode,
        **reason,
        "rows_inserted": refresh.rows_inserted if refresh else 0,
        "rows_deleted": refresh.rows_deleted if refresh else 0,
        "duration_ms": refresh.duration_ms if refresh else 0,
        "estimate_ms": refresh.estimate_ms if refresh else None,
        "delta_rows": refresh.delta_rows if refresh else 0,
        "nodes": [_node_json(node) for node in refresh.nodes] if refresh else [],
        "cpu_ms": refresh.cpu_ms if refresh else None,
        "expectations": expectations,
        **reason_fields("error", failure),
        "finished_at_ms": finished_at_ms,
    }
    connection.execute(_ADD_REFRESH, values)
    _prune(connection, t.refreshes, t.refreshes.c.id, dataset)


def _node_json(node: NodeRefresh) -> dict[str, Any]:
    return {"node": node.node, "mode": str(node.mode), **reason_fields("reason", node.reason)}


def prune_failures(connection: Connection, dataset: str) -> None:
    """Forget the oldest failures of a dataset that fails for ever; those left can still be repaired.

    Oldest first: a repair reaches up to the next failure, which must not be forgotten before it.
    """
    _prune(connection, t.failures, t.failures.c.checkpoint, dataset)


def _prune(connection: Connection, table: Table, order: Column[Any], dataset: str) -> None:
    of_dataset = table.c.dataset == dataset
    newest = select(order).where(of_dataset).order_by(order.desc())
    last = connection.execute(newest.offset(KEPT_PER_DATASET).limit(1)).scalar()
    if last is not None:
        connection.execute(delete(table).where(of_dataset, order <= last))


def as_record(row: Row[Any]) -> RefreshRecord:
    """A row of the history as a value."""
    refresh = None
    if row.mode is not None:
        refresh = Refresh(
            mode=RefreshMode(row.mode),
            reason=Reason.stored(row.reason, row.reason_code, row.reason_params),
            rows_inserted=row.rows_inserted,
            rows_deleted=row.rows_deleted,
            duration_ms=row.duration_ms,
            estimate_ms=row.estimate_ms,
            delta_rows=row.delta_rows,
            cpu_ms=row.cpu_ms,
            expectations=stored_expectations(row.expectations),
            nodes=tuple(
                NodeRefresh(
                    node=node["node"],
                    mode=RefreshMode(node["mode"]),
                    reason=Reason.stored(node["reason"], node.get("reason_code"), node.get("reason_params")),
                )
                for node in row.nodes
            ),
        )
    return RefreshRecord(
        checkpoint=CheckpointNumber(row.checkpoint),
        dataset=parse(row.dataset),
        version=None if row.version is None else Version(row.version),
        refresh=refresh,
        error=row.error,
        failure=stored_failure(row),
        finished_at_ms=row.finished_at_ms,
    )
