"""How far a stream that another engine ran into a table has come. Pure, no I/O.

Two records must agree: the query's checkpoint folder, which says what was planned and finished, and the
table, whose versions name the query and the batch that they hold. One alone proves nothing: a folder may
be older or newer than the table, which then holds rows twice or misses some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tautochrone.ingest.checkpoint_folder import FolderState

__all__ = ["StreamPosition", "stream_position"]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The last batch that is both planned and in the table; None: there is none yet. With a `problem` the
    batch is not known."""

    batch: int | None
    problem: str | None = None


def stream_position(folder: FolderState, committed: Mapping[str, int]) -> StreamPosition:
    """Compare the folder with the table's newest batch of each query (query id → batch).

    >>> folder = FolderState(query_id="q", planned=3, finished=3)
    >>> stream_position(folder, {"q": 3})
    StreamPosition(batch=3, problem=None)
    >>> stream_position(folder, {"q": 2}).problem
    'its folder planned batch 3, the newest in the table is batch 2'
    """
    if folder.query_id is None:
        return StreamPosition(None, "it has no checkpoint folder")
    batch = committed.get(folder.query_id)
    if batch is None:
        if folder.finished is None and folder.planned in (None, 0):
            return StreamPosition(None)
        planned = f"batch {folder.planned}"
        return StreamPosition(
            None, f"its folder planned {planned}, and no version of the table names its query"
        )
    if folder.planned is None:
        return StreamPosition(None, f"its folder holds no batch, the newest in the table is batch {batch}")
    if folder.planned != batch:
        return StreamPosition(
            None, f"its folder planned batch {folder.planned}, the newest in the table is batch {batch}"
        )
    return StreamPosition(batch)
