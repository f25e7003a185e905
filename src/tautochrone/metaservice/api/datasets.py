"""Datasets: where each stands, its history, what it is made from, how far it is behind."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tautochrone.errors import QueryError
from tautochrone.meta import DatasetStatus, Store
from tautochrone.metaservice.http.request_names import parsed_name
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.names import TableName
from tautochrone.model.reason import reason_fields
from tautochrone.model.refresh import RefreshMode

__all__ = [
    "DatasetDetail",
    "DatasetSummary",
    "Lineage",
    "Refreshed",
    "add",
    "dataset_summaries",
    "lineage_of",
]

_MOST = 1_000


class DatasetSummary(BaseModel):
    """Where one dataset stands. `checkpoint` is how far its own job is with it, `lag_ms` how much older that
    cut is than its job's newest cut; null when it was never built. `readable` is the checkpoint at which
    strong readers see it, `readable_lag_ms` how much older that one is."""

    name: str
    job: str
    kind: str
    version: str | None
    checkpoint: int | None
    mode: RefreshMode | None
    reason: str | None
    reason_code: str | None
    reason_params: dict[str, Any] | None
    error: str | None
    error_code: str | None
    error_params: dict[str, Any] | None
    lag_ms: int | None
    readable: int | None
    readable_lag_ms: int | None
    refreshed_at_ms: int | None = Field(description="epoch milliseconds")


class DatasetDetail(DatasetSummary):
    """The same with its place in the topology; `definition` is the fingerprint of its definition."""

    definition: str
    inputs: list[str]
    outputs: list[str]


class NodeRefreshed(BaseModel):
    """What one node of the view's plan did."""

    node: str
    mode: RefreshMode
    reason: str
    reason_code: str
    reason_params: dict[str, Any]


class Refreshed(BaseModel):
    """One refresh; `error` instead of a version when it failed. Times in milliseconds, `cpu_ms` of its Spark
    tasks on all executors."""

    dataset: str
    checkpoint: int
    version: str | None
    mode: RefreshMode | None
    reason: str | None
    reason_code: str | None
    reason_params: dict[str, Any] | None
    rows_inserted: int
    rows_deleted: int
    delta_rows: int
    duration_ms: int
    estimate_ms: int | None
    nodes: list[NodeRefreshed]
    cpu_ms: int | None
    error: str | None
    error_code: str | None
    error_params: dict[str, Any] | None
    started_at_ms: int
    finished_at_ms: int


class Edge(BaseModel):
    """`dataset` is made from `input`."""

    input: str
    dataset: str


class Lineage(BaseModel):
    """What a table is made from and what is made from it, directly and over others; `edges` join all of
    these tables."""

    table: str
    inputs: list[str]
    outputs: list[str]
    upstream: list[str]
    downstream: list[str]
    edges: list[Edge]


def add(router: APIRouter, store: Store) -> None:
    @router.get("/datasets", tags=["datasets"])
    def datasets() -> list[DatasetSummary]:
        """Every dataset, by name."""
        return dataset_summaries(store)

    @router.get("/datasets/{name}", tags=["datasets"])
    def dataset(name: str) -> DatasetDetail:
        """One dataset."""
        table = parsed_name(name)
        status = next((status for status in store.datasets.statuses() if status.dataset == table), None)
        entry = next((entry for entry in store.datasets.entries() if entry.name == table), None)
        if status is None or entry is None:
            raise _unknown(table)
        found = store.datasets.lineage(table)
        return DatasetDetail(
            **_fields(status),
            definition=entry.definition,
            inputs=_names(found.inputs),
            outputs=_names(found.outputs),
        )

    @router.get("/datasets/{name}/refreshes", tags=["datasets"])
    def refreshes(name: str, limit: Annotated[int, Query(ge=1, le=_MOST)] = 50) -> list[Refreshed]:
        """Refreshes and failures, newest first; those that found nothing to do are left out."""
        return [refreshed(record) for record in store.history.refreshes(parsed_name(name), limit)]

    @router.get("/lineage/{name}", tags=["datasets"])
    def lineage(name: str) -> Lineage:
        """Up and down from any table that a job here reads or writes."""
        return lineage_of(store, parsed_name(name))


def dataset_summaries(store: Store) -> list[DatasetSummary]:
    """All datasets as the interface shows them."""
    return [DatasetSummary(**_fields(status)) for status in store.datasets.statuses()]


def lineage_of(store: Store, table: TableName) -> Lineage:
    """The table's surroundings.

    Raises:
        QueryError: `DATASET_NOT_FOUND`.
    """
    found, entries = store.datasets.lineage(table), store.datasets.entries()
    if not found.inputs and not found.outputs and all(entry.name != table for entry in entries):
        raise _unknown(table)
    around = {table} | found.upstream | found.downstream
    return Lineage(
        table=str(table),
        inputs=_names(found.inputs),
        outputs=_names(found.outputs),
        upstream=_names(found.upstream),
        downstream=_names(found.downstream),
        edges=[
            Edge(input=str(source), dataset=str(entry.name))
            for entry in entries
            if entry.name in around
            for source in sorted(entry.inputs & around)
        ],
    )


def refreshed(record: RefreshRecord) -> Refreshed:
    """A record as the interface shows it."""
    refresh = record.refresh
    return Refreshed(
        dataset=str(record.dataset),
        checkpoint=record.checkpoint,
        version=record.version,
        mode=refresh.mode if refresh else None,
        **reason_fields("reason", refresh.reason if refresh else None),
        rows_inserted=refresh.rows_inserted if refresh else 0,
        rows_deleted=refresh.rows_deleted if refresh else 0,
        delta_rows=refresh.delta_rows if refresh else 0,
        duration_ms=refresh.duration_ms if refresh else 0,
        estimate_ms=refresh.estimate_ms if refresh else None,
        nodes=[
            NodeRefreshed(node=node.node, mode=node.mode, **reason_fields("reason", node.reason))
            for node in (refresh.nodes if refresh else ())
        ],
        cpu_ms=refresh.cpu_ms if refresh else None,
        **reason_fields("error", record.failure),
        started_at_ms=record.finished_at_ms - (refresh.duration_ms if refresh else 0),
        finished_at_ms=record.finished_at_ms,
    )


def _fields(status: DatasetStatus) -> dict[str, Any]:
    return {
        "name": str(status.dataset),
        "job": status.job,
        "kind": status.kind,
        "version": status.version,
        "checkpoint": status.checkpoint,
        "mode": status.mode,
        **reason_fields("reason", status.reason),
        **reason_fields("error", status.failure),
        "error": status.error,
        "lag_ms": status.lag_ms,
        "readable": status.readable,
        "readable_lag_ms": status.readable_lag_ms,
        "refreshed_at_ms": status.refreshed_at_ms,
    }


def _names(tables: frozenset[TableName]) -> list[str]:
    return sorted(map(str, tables))


def _unknown(table: TableName) -> QueryError:
    return QueryError(
        "DATASET_NOT_FOUND",
        f"No job here reads or writes {table}",
        hint="/api/v1/datasets lists what there is.",
    )
