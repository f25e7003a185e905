"""Datasets that are dropped or renamed: who still needs one, and all rows of the store that name one.

It must never know what a table of the lake is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table, UniqueConstraint, delete, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import parse
from tautochrone.meta.protocols.jobs import TableRole
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.topology import EXTERNAL
from tautochrone.model.dataset_change import DatasetChange
from tautochrone.model.revision import RevisionPlan, RevisionState
from tautochrone.model.sink import DeliveryState

__all__ = [
    "forget_dataset",
    "hide_dataset",
    "pending_changes",
    "readers_of",
    "rename_dataset",
    "require_free_name",
    "require_no_pending_change",
    "require_unused",
]

_D = t.datasets.c
_NAMES: tuple[Column[Any], ...] = (
    t.datasets.c.name,
    t.dataset_details.c.dataset,
    t.dataset_inputs.c.dataset,
    t.dataset_inputs.c.input,
    t.failures.c.dataset,
    t.refreshes.c.dataset,
    t.registrations.c.table_name,
    t.reports.c.table_name,
    t.versions.c.table_name,
    t.alarms.c.subject,
)
"""Columns that hold the name of a dataset."""
_JSON_NAMES: tuple[Column[Any], ...] = (
    t.checkpoints.c.observations,
    t.dataset_details.c.column_lineage,
    t.deliveries.c.intent,
    t.deliveries.c.tables,
    t.deliveries.c.versions,
    t.invariants.c.tables,
    t.jobs.c.observations,
    t.jobs.c.report,
    t.pins.c.versions,
    t.revisions.c.plan,
)
"""Columns whose JSON names datasets, as keys or as texts."""
_FORGOTTEN_JSON = (
    t.checkpoints.c.observations,
    t.deliveries.c.tables,
    t.deliveries.c.versions,
    t.jobs.c.observations,
    t.jobs.c.report,
)
"""Those that forget a dropped dataset. The others say what was decided, or are of its readers, of which there
are none."""


def pending_changes(connection: Connection) -> list[DatasetChange]:
    """What is decided and not complete, by name."""
    query = select(_D.name, _D.job, _D.pending_change).where(_D.pending_change.is_not(None)).order_by(_D.name)
    return [
        DatasetChange.from_json(parse(row.name), row.job, row.pending_change)
        for row in connection.execute(query)
    ]


def require_no_pending_change(
    connection: Connection, job: str, names: Collection[str], inputs: Collection[str]
) -> None:
    """Refuse datasets of which an older table of the same name is not gone yet, and all of a job of which one
    is being renamed, or that reads one by either name.

    Args:
        inputs: all tables that the job reads.

    Raises:
        MetaError: `DATASET_CHANGE_UNFINISHED`.
    """
    for change in pending_changes(connection):
        is_rename = change.renamed_to is not None
        both = {str(change.dataset), str(change.renamed_to)} if is_rename else {str(change.dataset)}
        concerned = {*names, *inputs} if is_rename else {*names}
        if both & concerned or (is_rename and change.job == job):
            what = f"renamed to {change.renamed_to}" if is_rename else "dropped"
            raise MetaError(
                "DATASET_CHANGE_UNFINISHED",
                f"{change.dataset} is being {what}, and that is not finished",
                hint=f"`{change.command}` goes on with it",
                sqlstate="55000",
                parameters={"dataset": str(change.dataset)},
            )


def readers_of(
    connection: Connection,
    table: str,
    *,
    except_job: str | None = None,
    except_datasets: Collection[str] = (),
) -> list[str]:
    """Who reads a table, as messages name them: datasets, invariants, registered jobs and sinks.

    Args:
        except_job: leave out what belongs to this job.
        except_datasets: leave out these.
    """
    i, r, s = t.dataset_inputs.c, t.registrations.c, t.deliveries.c
    datasets = (
        select(_D.name, _D.job)
        .join(t.dataset_inputs, i.dataset == _D.name)
        .where(i.input == table, _D.name.not_in([table, *except_datasets]), _D.retired.is_(False))
    )
    readers = [(row.job, f"{row.name} of job {row.job}") for row in connection.execute(datasets)]
    readers += [
        (row.job, f"invariant {row.name} of job {row.job}")
        for row in connection.execute(select(t.invariants.c.job, t.invariants.c.name, t.invariants.c.tables))
        if table in row.tables
    ]
    sources = select(r.job).where(r.table_name == table, r.role == TableRole.SOURCE.value)
    readers += [(row.job, f"job {row.job}") for row in connection.execute(sources)]
    owner = connection.execute(select(_D.job).where(_D.name == table)).scalar()
    # The sinks of its own job learn what they mirror at their next delivery.
    mirrors = select(s.sink, s.job, s.tables).where(
        s.state != DeliveryState.RETIRED.value, s.job != (owner or "")
    )
    readers += [
        (row.job, f"sink {row.sink} of job {row.job}")
        for row in connection.execute(mirrors)
        if table in row.tables
    ]
    return sorted({text for job, text in readers if job != except_job})


def require_unused(
    connection: Connection, tables: Collection[str], now_ms: int, except_job: str | None
) -> None:
    """Refuse to drop tables that somebody needs. That they read each other does not count.

    Args:
        except_job: whose readers do not count, because the caller knows its definitions.

    Raises:
        MetaError: `DATASET_STILL_READ`, `DATASET_PINNED`, `DATASET_IN_REVISION`.
    """
    for table in tables:
        readers = readers_of(connection, table, except_job=except_job, except_datasets=tables)
        if readers:
            raise MetaError(
                "DATASET_STILL_READ",
                f"{table} is read by {', '.join(readers)}",
                hint="take it out of what reads it and let those jobs run, then drop it",
                sqlstate="2BP01",
                parameters={"dataset": table},
            )
        _require_unpinned(connection, table, now_ms)
        _require_not_revised(connection, table)


def require_free_name(connection: Connection, old: str, new: str) -> None:
    """Refuse a new name that the store knows already.

    Raises:
        MetaError: `RENAME_TARGET_EXISTS`.
    """
    row = connection.execute(select(_D.job).where(_D.name == new)).first()
    versions = connection.execute(select(t.versions.c.id).where(t.versions.c.table_name == new).limit(1))
    if row is not None or versions.first() is not None:
        owner = "" if row is None else f" of job {row.job}"
        raise MetaError(
            "RENAME_TARGET_EXISTS",
            f"There is a table {new}{owner} already, so {old} cannot get its name",
            hint=f"where a run built {new} anew: keep it and `taut drop` {old}; or take {new} out of the "
            "project, `taut drop` it, define it again, and rename before the next run",
            sqlstate="42P07",
            parameters={"dataset": old, "renamed_to": new},
        )


def _require_unpinned(connection: Connection, table: str, now_ms: int) -> None:
    p = t.pins.c
    pins = connection.execute(select(p.owner, p.expires_at_ms, p.versions).where(p.expires_at_ms > now_ms))
    owners = {row.owner: row.expires_at_ms for row in pins if table in row.versions}
    if owners:
        left_s = max(1, (max(owners.values()) - now_ms) // 1000)
        raise MetaError(
            "DATASET_PINNED",
            f"{', '.join(sorted(owners))} still reads {table}",
            hint=f"`taut pins` lists the leases; the last one ends in {left_s} s unless it is renewed",
            retryable=True,
            sqlstate="55006",
            parameters={"dataset": table},
        )


def _require_not_revised(connection: Connection, table: str) -> None:
    r = t.revisions.c
    unconfirmed = [RevisionState.DECIDED.value, RevisionState.DONE.value]
    for row in connection.execute(select(r.id, r.plan).where(r.state.in_(unconfirmed)).order_by(r.id)):
        if any(str(each.table) == table for each in RevisionPlan.from_json(row.plan).changed):
            raise MetaError(
                "DATASET_IN_REVISION",
                f"Revision {row.id} took {table} back and keeps its old rows",
                hint=f"`taut revise --confirm {row.id}` ends it, when its old rows are not needed any more",
                sqlstate="55006",
                parameters={"dataset": table},
            )


def hide_dataset(connection: Connection, name: str) -> None:
    """From here on no checkpoint shows the dataset, and nothing of it counts: only its row stays."""
    for column in _NAMES:
        if column is not _D.name:
            connection.execute(delete(column.table).where(column == name))
    for column in _FORGOTTEN_JSON:
        _change_json(connection, column, lambda value: _without(value, name))


def forget_dataset(connection: Connection, name: str) -> None:
    """Delete the last row of a dropped dataset."""
    connection.execute(delete(t.datasets).where(_D.name == name))


def rename_dataset(connection: Connection, old: str, new: str, flows: Mapping[str, str]) -> None:
    """Everything that was recorded of `old` is recorded of `new`. What others recorded of `new` meanwhile, as
    of a table of nobody, gives way.

    Args:
        flows: the new names of flows that are called after their table.
    """
    intervals.end_external(connection, new)
    for column in _NAMES:
        if column is not _D.name:
            _delete_duplicates(connection, column, old, new)
        connection.execute(update(column.table).where(column == old).values({column: new}))
    r = t.reports.c
    connection.execute(delete(t.reports).where(r.table_name == new, r.job == EXTERNAL))
    for column in _JSON_NAMES:
        _change_json(connection, column, lambda value: _renamed(value, old, new))
    skipped = connection.execute(select(_D.skipped_files).where(_D.name == new)).scalar()
    if skipped:
        renamed = {flows.get(flow, flow): files for flow, files in skipped.items()}
        connection.execute(update(t.datasets).where(_D.name == new).values(skipped_files=renamed))


def _delete_duplicates(connection: Connection, column: Column[Any], old: str, new: str) -> None:
    """Delete the rows of `new` whose keys the rows of `old` are about to get."""
    table: Table = column.table
    unique = (each for each in table.constraints if isinstance(each, UniqueConstraint))
    for key in (table.primary_key, *unique):
        if column not in key.columns.values():
            continue
        others = [each for each in key.columns if each is not column]
        for row in connection.execute(select(column, *others).where(column == old)).all():
            is_same = [each == value for each, value in zip(others, row[1:], strict=True)]
            connection.execute(delete(table).where(column == new, *is_same))


def _change_json(connection: Connection, column: Column[Any], change: Callable[[Any], Any]) -> None:
    """Rewrite the values of a column that `change` changes."""
    table: Table = column.table
    keys = tuple(table.primary_key.columns)
    for row in connection.execute(select(*keys, column.label("value")).where(column.is_not(None))).all():
        after = change(row.value)
        if after != row.value:
            is_row = [key == value for key, value in zip(keys, row, strict=False)]
            connection.execute(update(table).where(*is_row).values({column: after}))


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    if isinstance(value, list):
        return [_without(item, name) for item in value if item != name]
    return value


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {(new if key == old else key): _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, old, new) for item in value]
    return new if value == old else value
