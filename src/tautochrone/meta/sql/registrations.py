"""`store.registrations` in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, Transactions, check_fence, parse, unknown_job
from tautochrone.meta.protocols.datasets import DatasetEntry
from tautochrone.meta.protocols.registrations import REGISTERED, TableRole
from tautochrone.meta.queries.coordinator import pending, skip
from tautochrone.meta.queries.cycles import require_acyclic
from tautochrone.meta.queries.dataset_registration import retire
from tautochrone.meta.queries.invariant_checks import replace_invariants
from tautochrone.meta.queries.topology import direct_inputs
from tautochrone.meta.sql.jobs import SqlJobs
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.jobs import Claim, JobState
from tautochrone.model.names import Fence, TableName

__all__ = ["SqlRegistrations"]


_R, _D = t.registrations.c, t.datasets.c


class SqlRegistrations(Repository):
    """`protocols.registrations.Registrations` in SQL."""

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(transactions)
        self._jobs = SqlJobs(transactions)

    def register(self, job: str, table: TableName, role: TableRole) -> None:
        key = {"job": job, "table_name": str(table), "role": role.value}
        with self._write() as connection:
            pipeline = connection.execute(select(t.jobs.c.pipeline).where(t.jobs.c.name == job)).scalar()
            if pipeline not in (None, REGISTERED):
                raise MetaError(
                    "JOB_NAME_TAKEN",
                    f"Job {job} belongs to pipeline {pipeline}, which registers its tables itself",
                    hint="Give the job another name.",
                )
            if role is TableRole.SINK:
                _require_free(connection, job, str(table))
            announced_tables = _announced_tables(connection, job)
            announced_tables[role].add(str(table))
            edges = direct_inputs(connection)
            for sink in announced_tables[TableRole.SINK]:
                edges[sink] = edges.get(sink, frozenset()) | announced_tables[TableRole.SOURCE]
            require_acyclic(edges, announced_tables[TableRole.SINK])
            if connection.execute(select(_R.job).filter_by(**key)).first() is None:
                connection.execute(insert(t.registrations).values(**key, registered_at_ms=self._clock()))

    def start(self, job: str, claim: Claim | None = None) -> Fence:
        with self._read() as connection:
            announced_tables = _announced_tables(connection, job)
        if not announced_tables[TableRole.SINK]:
            raise MetaError(
                "JOB_NOT_FOUND",
                f"Job {job} has registered no sink",
                hint="Register its sources and sinks first.",
            )
        inputs = frozenset(map(parse, announced_tables[TableRole.SOURCE]))
        kind = DatasetKind.STREAMING_TABLE.value
        # A job without sources reads from outside the lake, so a cut takes the versions that it reports.
        entries = [
            DatasetEntry(parse(sink), kind, "", inputs, is_root=not inputs)
            for sink in sorted(announced_tables[TableRole.SINK])
        ]
        self._jobs.start_run(REGISTERED, job, entries, claim=claim)
        return self._jobs.take_over(job, claim=claim)

    def unregister(self, job: str, fence: Fence | None = None) -> None:
        with self._write() as connection:
            if fence is not None:
                check_fence(connection, job, fence)
            row = connection.execute(select(t.jobs).where(t.jobs.c.name == job).with_for_update()).first()
            announced = connection.execute(delete(t.registrations).where(_R.job == job)).rowcount
            if row is None and not announced:
                raise unknown_job(job)
            if row is None:
                return
            for number in reversed(pending(connection, job)):
                skip(connection, job, number)
            announced_tables = select(_D.name).where(_D.job == job, _D.retired.is_(False))
            for name in connection.execute(announced_tables).scalars().all():
                retire(connection, job, name)
            replace_invariants(connection, job, ())
            # The higher fence refuses later writes of a process of the ended run.
            ended = {"state": JobState.ENDED.value, "lease_until_ms": None, "fence": row.fence + 1}
            connection.execute(update(t.jobs).where(t.jobs.c.name == job).values(ended))


def _announced_tables(connection: Connection, job: str) -> dict[TableRole, set[str]]:
    tables_by_role: dict[TableRole, set[str]] = {role: set() for role in TableRole}
    for row in connection.execute(select(t.registrations).where(_R.job == job)):
        tables_by_role[TableRole(row.role)].add(row.table_name)
    return tables_by_role


def _require_free(connection: Connection, job: str, table: str) -> None:
    owner = connection.execute(select(_D.job).where(_D.name == table, _D.retired.is_(False))).scalar()
    if owner is not None and owner != job:
        raise MetaError(
            "DATASET_OWNED_BY_ANOTHER_JOB",
            f"Dataset {table} is written by job {owner}; job {job} must not write it too",
            hint=f"Let job {owner} write it by another flow, or unregister that job.",
        )
