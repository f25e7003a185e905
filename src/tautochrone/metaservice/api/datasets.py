"""Datasets: status, lag, refresh history, lineage, delays from the cut to each dataset and over each edge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tautochrone.errors import QueryError
from tautochrone.meta import DatasetState, DatasetStatus, Store
from tautochrone.metaservice.flow_sources import flow_sources
from tautochrone.metaservice.http.validation import parse_table_name
from tautochrone.model.checkpoint import RefreshMode, RefreshRecord
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.names import TableName
from tautochrone.model.reason import reason_fields
from tautochrone.model.run_report import SourceKind

__all__ = [
    "DatasetDelay",
    "DatasetDetail",
    "DatasetSummary",
    "Lineage",
    "RefreshEntry",
    "SourceEntry",
    "add",
    "dataset_summaries",
    "lineage_of",
]

_MAX_LIMIT = 1_000


class ExpectationCounted(BaseModel):
    """An expectation and the rows that violate it: of a view's query at its checkpoint, or all that the flows
    of a streaming table took in. `change` is what the last refresh or batch added."""

    name: str
    action: ViolationAction
    violations: int
    change: int


class DatasetSummary(BaseModel):
    """The status of a dataset. `checkpoint` is the newest that its job refreshed it to. `lag_ms` is 0 at the
    job's newest cut, null when it was never built, else the time since the cut of `checkpoint`; when its job
    stopped it is the time since the job's last sign of life, at least. `readable` is the checkpoint at which
    strong readers see it, `readable_lag_ms` likewise."""

    name: str
    job: str
    kind: str
    state: DatasetState
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
    expectations: list[ExpectationCounted]


class DatasetDetail(DatasetSummary):
    """The status with direct inputs and outputs; `definition` is the fingerprint of its definition."""

    definition: str
    inputs: list[str]
    outputs: list[str]


class NodeRefresh(BaseModel):
    """How one node of the view's plan was refreshed."""

    node: str
    mode: RefreshMode
    reason: str
    reason_code: str
    reason_params: dict[str, Any]


class RefreshEntry(BaseModel):
    """A refresh; one that failed has an `error` instead of a version. Times are milliseconds, `cpu_ms` is the
    CPU time of its Spark tasks on all executors."""

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
    nodes: list[NodeRefresh]
    expectations: list[ExpectationCounted]
    cpu_ms: int | None
    error: str | None
    error_code: str | None
    error_params: dict[str, Any] | None
    started_at_ms: int
    finished_at_ms: int


class Cost(BaseModel):
    """What the refreshes of a dataset took together, of those that the history still has. `refreshes` counts
    those with news by mode. `is_cut`: there were earlier ones in the time asked for. `since_ms` is epoch
    milliseconds, the others are milliseconds."""

    dataset: str
    refreshes: dict[RefreshMode, int]
    failed: int
    duration_ms: int
    cpu_ms: int | None
    rows_inserted: int
    rows_deleted: int
    since_ms: int
    is_cut: bool


class Edge(BaseModel):
    """`dataset` reads `input`."""

    input: str
    dataset: str


class Lineage(BaseModel):
    """What a table reads and what reads it: directly (`inputs`, `outputs`) and through other tables
    (`upstream`, `downstream`). `edges` connect all of these tables."""

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
        """One dataset by its name."""
        table = parse_table_name(name)
        status = next((status for status in store.datasets.statuses() if status.dataset == table), None)
        entry = next((entry for entry in store.datasets.registered() if entry.name == table), None)
        if status is None or entry is None:
            raise _unknown_table_error(table)
        direct = store.datasets.lineage(table)
        return DatasetDetail(
            **_fields(status),
            definition=entry.definition,
            inputs=_names(direct.inputs),
            outputs=_names(direct.outputs),
        )

    @router.get("/datasets/{name}/refreshes", tags=["datasets"])
    def refreshes(name: str, limit: Annotated[int, Query(ge=1, le=_MAX_LIMIT)] = 50) -> list[RefreshEntry]:
        """Refreshes and failures, newest first, without those of the mode `no_data`."""
        return [refresh_entry(record) for record in store.history.refreshes(parse_table_name(name), limit)]

    @router.get("/costs", tags=["datasets"])
    def costs(hours: Annotated[int, Query(ge=1, le=24 * 366)] = 24) -> list[Cost]:
        """What refreshes took in the last hours, by dataset that had any."""
        totals = store.history.totals(store.now_ms() - hours * 3_600_000)
        return [Cost(**asdict(entry) | {"dataset": str(entry.dataset)}) for entry in totals]

    @router.get("/sources", tags=["datasets"])
    def sources() -> list[SourceEntry]:
        """What flows read outside of the lake, as the newest runs say it, and what databases keep for it."""
        entries = (entry for job in store.jobs.states() for entry in flow_sources(job))
        return [SourceEntry.model_validate(entry) for entry in entries]

    @router.get("/lineage/{name}", tags=["datasets"])
    def lineage(name: str) -> Lineage:
        """Upstream and downstream of any table that a job of this store reads or writes."""
        return lineage_of(store, parse_table_name(name))

    _add_delays(router, store)


class KeptLogEntry(BaseModel):
    """What a database keeps for a reader of its log; see `taut sources`."""

    name: str
    is_lost: bool
    kept_bytes: int | None
    distance_bytes: int | None


class SourceEntry(BaseModel):
    """A source of a flow. Of a database: how far its log table is, and when it was asked, in epoch
    milliseconds; null for other sources."""

    job: str
    flow: str
    dataset: str
    kind: SourceKind
    name: str
    phase: str | None
    lag_ms: int | None
    kept: list[KeptLogEntry]
    problem: str | None
    asked_at_ms: int | None


def dataset_summaries(store: Store) -> list[DatasetSummary]:
    """All datasets as the API shows them, by name."""
    return [DatasetSummary(**_fields(status)) for status in store.datasets.statuses()]


def lineage_of(store: Store, table: TableName) -> Lineage:
    """What the table reads and what reads it.

    Raises:
        QueryError: `DATASET_NOT_FOUND`.
    """
    stored, entries = store.datasets.lineage(table), store.datasets.registered()
    if not stored.inputs and not stored.outputs and all(entry.name != table for entry in entries):
        raise _unknown_table_error(table)
    connected = {table} | stored.upstream | stored.downstream
    return Lineage(
        table=str(table),
        inputs=_names(stored.inputs),
        outputs=_names(stored.outputs),
        upstream=_names(stored.upstream),
        downstream=_names(stored.downstream),
        edges=[
            Edge(input=str(source), dataset=str(entry.name))
            for entry in entries
            if entry.name in connected
            for source in sorted(entry.inputs & connected)
        ],
    )


def refresh_entry(record: RefreshRecord) -> RefreshEntry:
    """A refresh record as the API shows it."""
    refresh = record.refresh
    return RefreshEntry(
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
            NodeRefresh(node=node.node, mode=node.mode, **reason_fields("reason", node.reason))
            for node in (refresh.nodes if refresh else ())
        ],
        expectations=_expectations(refresh.expectations if refresh else ()),
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
        "state": status.state,
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
        "expectations": _expectations(status.expectations),
    }


def _expectations(counts: Iterable[ExpectationCount]) -> list[ExpectationCounted]:
    return [ExpectationCounted(**asdict(count)) for count in counts]


def _names(tables: frozenset[TableName]) -> list[str]:
    return sorted(map(str, tables))


def _unknown_table_error(table: TableName) -> QueryError:
    return QueryError(
        "DATASET_NOT_FOUND",
        f"No job here reads or writes {table}",
        hint="/api/v1/datasets lists what there is.",
    )


class EdgeDelay(BaseModel):
    """The time from when the input had its version for the checkpoint until the dataset had its own."""

    input: str
    delay_ms: int


class DatasetDelay(BaseModel):
    """The delay of a dataset's newest refresh that changed something."""

    dataset: str
    checkpoint: int
    end_to_end_ms: int = Field(description="from the cut until the dataset had its version for it")
    refresh_ms: int = Field(description="the part of it in which the dataset was refreshed")
    edges: list[EdgeDelay]


def _add_delays(router: APIRouter, store: Store) -> None:
    @router.get("/delays", tags=["datasets"])
    def delays() -> list[DatasetDelay]:
        """Delays of all datasets that were ever refreshed. They do not include the time before the cut."""
        return [
            DatasetDelay(
                dataset=str(delay.dataset),
                checkpoint=delay.checkpoint,
                end_to_end_ms=delay.end_to_end_ms,
                refresh_ms=delay.refresh_ms,
                edges=[EdgeDelay(input=str(edge.input), delay_ms=edge.delay_ms) for edge in delay.edges],
            )
            for delay in store.history.delays()
        ]
