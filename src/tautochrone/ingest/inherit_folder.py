"""What the folder of a new owner takes from those of older ones, before its query starts for the first time.

An older owner may still live, with open files, or wake up later. So nothing of its folder stays in use under
its old name: small files are written anew or copied, a state gets its new name in one step, and a state that
cannot is copied, which is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.positions import Decision, Plan, compare
from tautochrone.model.source_position import SparkPosition

__all__ = ["Inherited", "inherit"]


@dataclass(frozen=True, slots=True)
class Inherited:
    """What is to be done, and what makes the new folder; without `make` it stays empty.

    `lost` says that the flow's state is in none of the older folders; then the reason says of the newest of
    them why it is not.
    """

    decision: Decision
    make: Callable[[], None] | None = None
    lost: bool = False


def inherit(
    own: CheckpointFolder,
    older: Sequence[CheckpointFolder],
    position: SparkPosition | None,
    *,
    stateful: bool,
) -> Inherited:
    """Decide. `older` has the newest first, and at least one; `own` is empty."""
    newest = next((folder for folder in older if folder.query_id is not None), older[0])
    planned = None if position is None else newest.offsets(position.batch_id)
    decision = compare(position, newest.state(), planned)
    if position is None:
        if decision.plan is Plan.WIPE:
            return Inherited(decision)
        kept = decision.plan is Plan.KEEP
        return Inherited(decision, lambda: own.begin_as(newest, planned=kept))
    if not stateful:
        if decision.plan is Plan.KEEP:
            # It agrees, but it is an older owner's: nothing to tell.
            decision = Decision(Plan.REWRITE)
        return Inherited(decision, lambda: own.rewrite(position))
    source = next((folder for folder in older if _holds(folder, position)), None)
    if source is None:
        return Inherited(decision, lost=True)

    def take() -> None:
        own.take(source)
        own.relocate()

    if own.can_be_renamed:
        return Inherited(Decision(Plan.TAKE), take)
    files, size = source.size()
    reason = f"no folder can be renamed here: {files} files of {size} bytes are copied from {source.path}"
    return Inherited(Decision(Plan.COPY, reason), take)


def _holds(folder: CheckpointFolder, position: SparkPosition) -> bool:
    """Whether the flow's state can go on from what is there."""
    if folder.holds_state_of(position):
        return True
    state = folder.state()
    decision = compare(position, state, folder.offsets(position.batch_id))
    if decision.plan is not Plan.KEEP or state.finished == position.batch_id:
        return False
    # The batch is in the table, and the state before it is there: it is run again for its state alone.
    return position.batch_id == 0 or folder.has_state(position.batch_id)
