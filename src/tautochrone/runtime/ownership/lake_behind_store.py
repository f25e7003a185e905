"""Refuses a lake that is older than the store, as after a restore of the catalog alone."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import LakeError
from tautochrone.meta import Store
from tautochrone.model.lake import ChangeKind, LakeTable
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions

__all__ = ["require_reported_versions"]


def require_reported_versions(
    store: Store, job: str, definitions: Definitions, existing: Mapping[TableName, LakeTable]
) -> None:
    """Refuse tables whose history lacks their reported version although nobody committed to them since.

    Raises:
        LakeError: `LAKE_BEHIND_STORE`.
    """
    reported = store.roots.reported(job)
    reported_ms = {report.table: report.at_ms for report in store.roots.report_times() if report.job == job}
    for name, version in reported.items():
        if name not in existing or name not in reported_ms:
            continue
        table = existing[name]
        if table.change_between(version, table.current_version()).kind is not ChangeKind.UNKNOWN:
            continue
        # Expiry and revisions also remove versions, but they commit after the report.
        if table.last_commit_ms() < reported_ms[name]:
            raise LakeError(
                "LAKE_BEHIND_STORE",
                f"{name} has no version {version}, which the store knows, and was not changed since",
                hint="the catalog was restored alone: restore the store of the same time too; or remove the "
                "store, and the next run fills a new one from the tables",
                location=str(definitions.datasets[name].location),
                sqlstate="55000",
            )
