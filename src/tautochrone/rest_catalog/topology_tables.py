"""FLIP-276's tables about the topology, as SQL sees them: `__META_ETL_SOURCE`, `__META_ETL_SINK` and
`__META_TABLE_VERSION`.

They are temporary views of the reader's session, created when a query names one. `version` is a string where
the FLIP has an INT, because a snapshot id does not fit into an INT.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from tautochrone.meta import Store
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import is_clock

__all__ = ["META_TABLES", "show_meta_tables"]

Rows = list[tuple[str, ...]]

META_TABLES = {
    "__META_ETL_SOURCE": ("job_id", "table_name"),
    "__META_ETL_SINK": ("job_id", "table_name"),
    "__META_TABLE_VERSION": ("table_name", "version", "table_type"),
}
"""Names and columns as in the FLIP."""


def show_meta_tables(
    session: SparkSession,
    store: Store,
    names: Iterable[str],
    consistency: Consistency,
    checkpoint: int | None,
) -> None:
    """Create temporary views in `session` for those of `names` that are meta tables.

    They show the store as it is now. The versions are those that a query over all tables would read.

    Raises:
        CheckpointUnavailableError: `checkpoint` cannot be read.
    """
    for name in {name.upper() for name in names} & META_TABLES.keys():
        if name == "__META_TABLE_VERSION":
            rows = _versions(store, consistency, checkpoint)
        else:
            rows = _relations(store, sinks=name == "__META_ETL_SINK")
        fields = [StructField(column, StringType(), nullable=False) for column in META_TABLES[name]]
        session.createDataFrame(rows, StructType(fields)).createOrReplaceTempView(name)


def _relations(store: Store, *, sinks: bool) -> Rows:
    return [
        (job.name, str(table))
        for job in store.jobs.registered()
        for table in sorted(job.sinks if sinks else job.sources)
        if not is_clock(table)
    ]


def _versions(store: Store, consistency: Consistency, checkpoint: int | None) -> Rows:
    if (
        consistency is Consistency.STRONG
        and checkpoint is None
        and store.checkpoints.latest_published() is None
    ):
        return []
    resolution = store.reads.resolve(consistency, None, checkpoint, lease_ms=0)
    derived = {
        entry.name
        for entry in store.datasets.registered()
        if any(not is_clock(table) for table in entry.inputs)
    }
    return [
        (str(name), version, "Intermediate" if name in derived else "Root")
        for name, version in sorted(resolution.versions.items())
    ]
