"""Checks that a sink mirrors this store, before anything is written to it.

A checkpoint is a number of one store's incarnation, so numbers alone prove nothing. A sink goes on from where
it is when the store remembers exactly what it shows, or when the lake has the versions that the sink says it
shows. So the sinks of a store that was lost, restored or replaced can be used further.
"""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.lake import LakeTable
from tautochrone.model.names import TableName
from tautochrone.model.sink import Published, SinkStatus

__all__ = ["require_own"]

_HINT = (
    "To make it a mirror of this store, empty it and run `taut sinks --forget {name}`, or use another sink."
)


def require_own(
    name: str,
    published: Published | None,
    status: SinkStatus | None,
    incarnation: str,
    tables: Mapping[TableName, LakeTable],
) -> None:
    """Refuse a sink that shows something else than checkpoints of this store.

    Args:
        tables: the lake's tables that the sink mirrors.
        incarnation: of the store.

    Raises:
        SinkError: `SINK_OF_ANOTHER_STORE`; `SINK_AHEAD_OF_STORE`, it shows a checkpoint of this store that
            neither the store nor the lake knows.
    """
    if published is None:
        return
    transaction = published.transaction
    delivered = None if status is None else status.delivered
    if transaction.sink == name:
        # A lower number of the same store is an older copy of the sink: deltas start from what it shows.
        if (
            delivered is not None
            and delivered.incarnation == transaction.incarnation
            and delivered.checkpoint >= transaction.checkpoint
        ):
            return
        if status is not None and status.intent is not None and status.intent.transaction == transaction:
            return
        if _is_of_lake(published, tables):
            return
    origins = {incarnation} | ({delivered.incarnation} if delivered is not None else set())
    hint = _HINT.format(name=name)
    parameters = {
        "sink": name,
        "incarnation": transaction.incarnation,
        "checkpoint": str(transaction.checkpoint),
    }
    if transaction.sink == name and transaction.incarnation in origins:
        raise SinkError(
            "SINK_AHEAD_OF_STORE",
            f"Sink {name} shows checkpoint {transaction.checkpoint}, which neither this store nor the lake "
            "knows: both may be older copies",
            hint=hint,
            parameters=parameters,
            sqlstate="55000",
        )
    raise SinkError(
        "SINK_OF_ANOTHER_STORE",
        f"Sink {name} shows checkpoint {transaction.checkpoint} of store {transaction.incarnation}, "
        f"delivered as sink {transaction.sink}; this is store {incarnation}",
        hint=hint,
        parameters=parameters,
        sqlstate="55000",
    )


def _is_of_lake(published: Published, tables: Mapping[TableName, LakeTable]) -> bool:
    """Whether the lake has every version that the sink shows of the tables that it mirrors."""
    versions = {name: version for name, version in published.versions.items() if name in tables}
    return bool(versions) and all(tables[name].goes_back_to(version) for name, version in versions.items())
