"""How many records the quarantine tables have, from metadata alone: no Spark."""

from __future__ import annotations

from collections.abc import Iterable

from tautochrone.errors import EnvironmentProblemError, TableMissingError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.meta import DatasetStatus
from tautochrone.model.names import TableName
from tautochrone.model.source import quarantine_of
from tautochrone.rest_catalog.metadata import metadata_source

__all__ = ["quarantined_rows"]


def quarantined_rows(
    statuses: Iterable[DatasetStatus], settings: CatalogSettings
) -> dict[TableName, int | None]:
    """For each table with a quarantine: how many bad records its newest checkpoint has.

    None where it is unknown: the catalog is not readable from Python, or the version is expired.
    """
    versions = {status.dataset: status.version for status in statuses}
    quarantines = {name: quarantine_of(name) for name in versions if quarantine_of(name) in versions}
    return {name: _rows(settings, table, versions[table]) for name, table in quarantines.items()}


def _rows(settings: CatalogSettings, table: TableName, version: str | None) -> int | None:
    try:
        _, metadata = metadata_source(settings).load(table)
    except (EnvironmentProblemError, TableMissingError):
        return None
    for snapshot in metadata.get("snapshots", ()):
        if str(snapshot["snapshot-id"]) == version:
            return int(snapshot["summary"].get("total-records", 0))
    return None
