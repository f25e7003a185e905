"""`store.roots` in SQL."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import insert, select, update

from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository, parse
from tautochrone.meta.protocols.roots import ReportTime
from tautochrone.meta.queries.alignment import aligned_cut
from tautochrone.meta.queries.topology import EXTERNAL, read_topology, reported_roots
from tautochrone.model.checkpoint import Alignment, SourceTime
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["SqlRoots"]

_R = t.reports.c


class SqlRoots(Repository):
    """`protocols.roots.Roots` in SQL."""

    def report(self, job: str, fence: Fence, versions: Mapping[TableName, Version]) -> None:
        with self._fenced(job, fence) as connection:
            now = self._clock()
            for table, version in versions.items():
                key = (t.reports.c.job == job) & (t.reports.c.table_name == str(table))
                values = {"version": version, "at_ms": now}
                if not connection.execute(update(t.reports).where(key).values(values)).rowcount:
                    values |= {"job": job, "table_name": str(table)}
                    connection.execute(insert(t.reports).values(values))

    def reported(self, job: str) -> dict[TableName, Version]:
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == job))
            return {parse(row.table_name): Version(row.version) for row in rows}

    def report_times(self) -> tuple[ReportTime, ...]:
        query = select(t.reports).order_by(t.reports.c.table_name)
        with self._read() as connection:
            return tuple(
                ReportTime(table=parse(row.table_name), job=row.job, at_ms=row.at_ms)
                for row in connection.execute(query)
            )

    def observe_external_table(
        self, job: str, fence: Fence, table: TableName, before: Version | None, now: Version
    ) -> Version:
        with self._fenced(job, fence) as connection:
            r = t.reports.c
            key = (r.job == EXTERNAL) & (r.table_name == str(table))
            known = connection.execute(select(r.version).where(key).with_for_update()).scalar()
            if known is None:
                values = {"job": EXTERNAL, "table_name": str(table), "version": now, "at_ms": self._clock()}
                connection.execute(insert(t.reports).values(values))
            elif known == before:
                connection.execute(update(t.reports).where(key).values(version=now, at_ms=self._clock()))
            else:
                return Version(known)
            return now

    def external_versions(self) -> dict[TableName, Version]:
        with self._read() as connection:
            rows = connection.execute(select(t.reports).where(t.reports.c.job == EXTERNAL))
            return {TableName.parse(row.table_name): Version(row.version) for row in rows}

    def tables_of_other_jobs(self, job: str) -> dict[TableName, str]:
        with self._read() as connection:
            owner = read_topology(connection).owner
            return {TableName.parse(name): owner_job for name, owner_job in owner.items() if owner_job != job}

    def shared_clocks(self, job: str) -> frozenset[TableName]:
        with self._read() as connection:
            topology = read_topology(connection)
            return frozenset(map(TableName.parse, topology.clocks(topology.jobs_sharing_with(job))))

    def report_source_times(
        self, job: str, fence: Fence, times: Mapping[TableName, tuple[SourceTime, ...]]
    ) -> None:
        with self._fenced(job, fence, durable=False) as connection:
            times_by_table = {
                str(table): [_stored(source_time) for source_time in source_times]
                for table, source_times in times.items()
            }
            for row in connection.execute(select(_R.table_name, _R.times).where(_R.job == job)).all():
                if row.times != times_by_table.get(row.table_name):
                    is_report = (_R.job == job) & (_R.table_name == row.table_name)
                    values = {"times": times_by_table.get(row.table_name)}
                    connection.execute(update(t.reports).where(is_report).values(values))

    def aligned_cut(self, job: str, roots: Mapping[TableName, Version], max_skew_ms: int) -> Alignment:
        with self._read() as connection:
            topology = read_topology(connection)
            own = {str(table): version for table, version in roots.items()}
            cut = reported_roots(connection, job, topology) | own
            return aligned_cut(connection, topology.jobs_sharing_with(job), cut, max_skew_ms)


def _stored(source_time: SourceTime) -> list[str | int]:
    values: list[str | int] = [source_time.version, source_time.at_ms]
    return values if source_time.complete_until_ms is None else [*values, source_time.complete_until_ms]
