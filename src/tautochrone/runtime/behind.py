"""A lake that is older than the store: somebody restored a catalog and not what belongs to it."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import LakeError
from tautochrone.model.lake import ChangeKind, LakeTable
from tautochrone.model.names import TableName
from tautochrone.runtime.job import Job

__all__ = ["require_reported_versions"]


def require_reported_versions(job: Job, existing: Mapping[TableName, LakeTable]) -> None:
    """Refuse tables that lack a version which the store was told of, and whose newest one is older than that
    word. A version that expired, or that somebody rolled back, has newer ones above it.

    Raises:
        LakeError: `LAKE_BEHIND_STORE`.
    """
    reported = job.store.reported(job.name)
    told_ms = {report.table: report.at_ms for report in job.store.reports() if report.job == job.name}
    for name, version in reported.items():
        if name not in existing or name not in told_ms:
            continue
        table = existing[name]
        if table.change_between(version, table.current_version()).kind is not ChangeKind.UNKNOWN:
            continue
        history = table.versions()
        if any(known == version for known, _, _ in history):
            continue
        if history and history[-1][2] < told_ms[name]:
            raise LakeError(
                "LAKE_BEHIND_STORE",
                f"{name} has no version {version}, which the store knows: its newest one is older",
                hint="the catalog was restored alone: restore the store of the same time too; or remove the "
                "store, and the next run fills a new one from the tables",
                location=str(job.definitions.datasets[name].location),
                sqlstate="55000",
            )
