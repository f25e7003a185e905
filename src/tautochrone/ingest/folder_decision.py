"""Which of a table and a checkpoint folder is ahead, and what a new owner takes over from older ones.

The table always wins. A batch is run again only when the folder planned it and the table does not
have it; it is skipped only when the table's positions prove that it is the same batch.

A new owner takes over what older owners' folders have, before its query starts first. An older owner may
still live, with open files, or wake up later. So nothing of its folder stays in use under its old name: small
files are written anew or copied, a state gets its new name in one step, and a state that cannot is copied,
which is reported.

Two records must agree on how far a stream has come that another engine ran into a table: the query's
checkpoint folder, which says what was planned and finished, and the table, whose versions name the query and
the batch that they hold. One alone proves nothing: a folder may be older or newer than the table, which then
holds rows twice or misses some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.ingest.checkpoint_folder import CheckpointFolder, FolderState
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import SparkPosition

__all__ = [
    "FolderAction",
    "FolderDecision",
    "FolderTakeover",
    "StreamPosition",
    "compare_folder",
    "same_offsets",
    "source_offsets",
    "stream_position",
    "take_over_folder",
]


class FolderAction(StrEnum):
    """What to do with the folder before the query starts.

    `TAKE` moves the state of an older owner's folder here, `COPY` copies it. `SWEEP` deletes what a killed
    process left of a first batch, `WIPE` deletes the whole folder.
    """

    COPY = "copy"
    KEEP = "keep"
    REWRITE = "rewrite"
    TAKE = "take"
    SWEEP = "sweep"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True)
class FolderDecision:
    """What to do and why. `KEEP` has no reason when there is nothing to report."""

    action: FolderAction
    reason: Reason | None = None


def same_offsets(left: str | None, right: str | None) -> bool:
    """Whether two offsets files name the same positions.

    The second line (watermark, wall clock, settings) may differ between two plans of one batch; the
    positions of the sources, line three and on, may not.
    """
    if left is None or right is None:
        return False
    return _sources(left) == _sources(right)


def source_offsets(text: str) -> list[str]:
    """The offsets of each source in an offsets file, in the order of the sources' numbers."""
    return text.strip().splitlines()[2:]


def _sources(text: str) -> list[object]:
    offsets: list[object] = []
    for line in source_offsets(text):
        try:
            offsets.append(json.loads(line))
        except json.JSONDecodeError:
            offsets.append(line.strip())
    return offsets


def compare_folder(
    position: SparkPosition | None, folder: FolderState, planned_offsets: str | None
) -> FolderDecision:
    """What to do with a flow's folder.

    Args:
        position: what the table says.
        folder: what the folder says.
        planned_offsets: the folder's offsets file for the batch of `position`.

    >>> compare_folder(None, FolderState(query_id=None, planned=None, finished=None), None).action
    <FolderAction.KEEP: 'keep'>
    """
    if position is None:
        return _without_position(folder)
    batch = position.batch_id
    if folder.torn:
        return FolderDecision(FolderAction.REWRITE, Reason.of(ReasonCode.FOLDER_HALF_WRITTEN))
    if folder.planned is None:
        return FolderDecision(FolderAction.REWRITE, Reason.of(ReasonCode.FOLDER_MISSING))
    if folder.query_id != position.query_id:
        return FolderDecision(FolderAction.REWRITE, Reason.of(ReasonCode.FOLDER_OF_ANOTHER_QUERY))
    if folder.planned < batch:
        return FolderDecision(
            FolderAction.REWRITE,
            Reason.of(ReasonCode.FOLDER_BEHIND, folder_batch=folder.planned, table_batch=batch),
        )
    if not same_offsets(planned_offsets, position.offsets):
        return FolderDecision(FolderAction.REWRITE, Reason.of(ReasonCode.FOLDER_OFFSETS_DIFFER, batch=batch))
    finished = -1 if folder.finished is None else folder.finished
    if finished > batch or folder.planned > batch + 1:
        return FolderDecision(
            FolderAction.REWRITE,
            Reason.of(ReasonCode.FOLDER_AHEAD, folder_batch=folder.planned, table_batch=batch),
        )
    if finished == batch - 1 and folder.planned == batch:
        return FolderDecision(FolderAction.KEEP, Reason.of(ReasonCode.BATCH_ALREADY_IN_TABLE, batch=batch))
    if finished == batch:
        return FolderDecision(FolderAction.KEEP)
    return FolderDecision(FolderAction.REWRITE, Reason.of(ReasonCode.FOLDER_LACKS_COMMIT, batch=batch))


def _without_position(folder: FolderState) -> FolderDecision:
    if folder.has_leftovers and folder.finished is None and not folder.torn:
        return FolderDecision(FolderAction.SWEEP, Reason.of(ReasonCode.FIRST_BATCH_INTERRUPTED))
    if folder.finished is None and folder.planned in (None, 0) and not folder.torn:
        return FolderDecision(FolderAction.KEEP)
    return FolderDecision(
        FolderAction.WIPE, Reason.of(ReasonCode.TABLE_HAS_NO_POSITION, folder_batch=folder.planned)
    )


@dataclass(frozen=True, slots=True)
class FolderTakeover:
    """How the new folder comes about.

    Attributes:
        decision: what is done, for the report.
        make: makes the new folder; None: it stays empty.
        lost: the flow's state is in none of the older folders; the decision's reason is about the newest.
    """

    decision: FolderDecision
    make: Callable[[], None] | None = None
    lost: bool = False


def take_over_folder(
    own: CheckpointFolder,
    older: Sequence[CheckpointFolder],
    position: SparkPosition | None,
    *,
    stateful: bool,
) -> FolderTakeover:
    """Decide; nothing is written yet.

    Args:
        own: the new owner's folder, which is empty.
        older: folders of older owners, the newest first, at least one.
        position: what the table says.
        stateful: the flow's query keeps state.
    """
    newest = next((folder for folder in older if folder.query_id is not None), older[0])
    planned = None if position is None else newest.offsets(position.batch_id)
    decision = compare_folder(position, newest.state(), planned)
    if position is None:
        if decision.action is FolderAction.WIPE:
            return FolderTakeover(decision)
        is_planned = decision.action is FolderAction.KEEP
        return FolderTakeover(decision, lambda: own.copy_start_of(newest, planned=is_planned))
    if not stateful:
        if decision.action is FolderAction.KEEP:
            # It agrees, but it belongs to an older owner. That is nothing to report.
            decision = FolderDecision(FolderAction.REWRITE)
        return FolderTakeover(decision, lambda: own.rewrite(position))
    source = next((folder for folder in older if _has_state(folder, position)), None)
    if source is None:
        return FolderTakeover(decision, lost=True)

    def move() -> None:
        own.move_from(source)
        own.correct_schema_paths()

    if own.can_be_renamed:
        return FolderTakeover(FolderDecision(FolderAction.TAKE), move)
    files, size = source.size()
    reason = Reason.of(ReasonCode.FOLDER_COPIED, files=files, bytes=size, path=source.path)
    return FolderTakeover(FolderDecision(FolderAction.COPY, reason), move)


def _has_state(folder: CheckpointFolder, position: SparkPosition) -> bool:
    """Whether the flow's state can go on from the folder."""
    if folder.holds_state_of(position):
        return True
    state = folder.state()
    decision = compare_folder(position, state, folder.offsets(position.batch_id))
    if decision.action is not FolderAction.KEEP or state.finished == position.batch_id:
        return False
    # The batch is in the table, and the state before it is there: it is run again for its state alone.
    return position.batch_id == 0 or folder.has_state(position.batch_id)


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
