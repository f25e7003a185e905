"""Registering and retiring datasets: which job writes each, and from which inputs.

Of checkpoints it needs the newest number only, because retiring a dataset ends its last interval.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.datasets import DatasetEntry
from tautochrone.meta.queries import version_intervals as intervals
from tautochrone.meta.queries.topology import EXTERNAL
from tautochrone.model.jobs import Part

__all__ = ["end_external_interval", "register_dataset", "retire"]


def register_dataset(connection: Connection, job: str, name: str, entry: DatasetEntry) -> None:
    row = connection.execute(select(t.datasets).where(t.datasets.c.name == name)).first()
    values = {
        "job": job,
        "kind": entry.kind,
        "definition": entry.definition,
        "is_root": entry.is_root,
        "retired": False,
    }
    if row is None:
        connection.execute(insert(t.datasets).values(name=name, **values))
        end_external_interval(connection, name)
    elif row.job != job and not row.retired:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {name} is written by job {row.job}; job {job} must not write it too",
        )
    else:
        if row.job != job:
            _transfer(connection, name, row.job, job)
        connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(**values))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    for table in sorted(map(str, entry.inputs)):
        connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))


def end_external_interval(connection: Connection, name: str) -> None:
    """End the interval of a table that was external until now: from here on its job records its versions."""
    v = t.versions.c
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    external = (v.job == EXTERNAL) & (v.table_name == name) & v.to_checkpoint.is_(None)
    connection.execute(update(t.versions).where(external).values(to_checkpoint=last))


def _transfer(connection: Connection, name: str, before: str, job: str) -> None:
    """Move the recorded versions of a table to its new job, and up to which checkpoint they are complete."""
    p = t.checkpoint_jobs.c
    intervals.transfer(connection, name, job)
    connection.execute(update(t.reports).where(t.reports.c.table_name == name).values(job=job))
    done = select(func.max(p.checkpoint)).where(p.job == before, p.state == Part.DONE.value)
    newest = connection.execute(done).scalar()
    parts_of_job = select(p.checkpoint).where(p.job == job)
    if newest is not None and connection.execute(parts_of_job).first() is None:
        connection.execute(
            insert(t.checkpoint_jobs).values(checkpoint=newest, job=job, state=Part.DONE.value)
        )


def retire(connection: Connection, job: str, name: str) -> None:
    """No job writes the dataset any more: its interval ends. An open checkpoint that has no version of it yet
    will not contain it."""
    v = t.versions.c
    connection.execute(update(t.datasets).where(t.datasets.c.name == name).values(retired=True))
    connection.execute(delete(t.dataset_inputs).where(t.dataset_inputs.c.dataset == name))
    p = t.checkpoint_jobs.c
    pending = select(func.min(p.checkpoint)).where(p.job == job, p.state == Part.PENDING.value)
    target = connection.execute(pending).scalar()
    last = connection.execute(select(t.stores.c.last_number)).scalar_one()
    current = (v.job == job) & (v.table_name == name) & v.to_checkpoint.is_(None)
    if target is not None:
        connection.execute(
            update(t.versions).where(current, v.confirmed < target).values(to_checkpoint=target - 1)
        )
    connection.execute(update(t.versions).where(current).values(to_checkpoint=last))
