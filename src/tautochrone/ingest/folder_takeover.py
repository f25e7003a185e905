"""What the folder of a new owner takes over from folders of older owners, before its query starts first.

An older owner may still live, with open files, or wake up later. So nothing of its folder stays in use under
its old name: small files are written anew or copied, a state gets its new name in one step, and a state that
cannot is copied, which is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import FolderAction, FolderDecision, compare_folder
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import SparkPosition

__all__ = ["FolderTakeover", "take_over_folder"]


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
