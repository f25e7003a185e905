"""Which of a flow's table and its checkpoint folder is ahead, and what to do about it. Pure, no I/O.

The table always wins. A batch is run again only when the folder planned it and the table does not
have it; it is skipped only when the table's positions prove that it is the same batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.ingest.checkpoint_folder import FolderState
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import SparkPosition

__all__ = ["FolderAction", "FolderDecision", "compare_folder", "same_offsets", "source_offsets"]


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
