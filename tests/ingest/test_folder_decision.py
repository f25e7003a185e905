"""Table against folder: every decision, and what counts as the same positions."""

from __future__ import annotations

import pytest

from tautochrone.ingest.checkpoint_folder import FolderState
from tautochrone.ingest.folder_decision import FolderAction, compare_folder, same_offsets
from tautochrone.model.source_position import SparkPosition


def offsets(*sources: str, clock: int = 1) -> str:
    settings = f'{{"batchWatermarkMs":0,"batchTimestampMs":{clock},"conf":{{}}}}'
    return "\n".join(("v1", settings, *sources))


AT_5 = SparkPosition(query_id="q", batch_id=5, offsets=offsets('{"t":{"0":7}}'), commit="v1\n{}")


def folder(
    planned: int | None, finished: int | None, query: str | None = "q", *, has_leftovers: bool = False
) -> FolderState:
    return FolderState(query_id=query, planned=planned, finished=finished, has_leftovers=has_leftovers)


@pytest.mark.parametrize(
    ("position", "state", "planned", "plan", "reason"),
    [
        # The table knows nothing of the flow.
        (None, folder(None, None, None), None, FolderAction.KEEP, ""),
        (None, folder(0, None), None, FolderAction.KEEP, ""),
        (None, folder(None, None, has_leftovers=True), None, FolderAction.SWEEP, "being planned"),
        (None, folder(None, 2, has_leftovers=True), None, FolderAction.WIPE, "no positions of this flow"),
        (None, folder(0, 0), None, FolderAction.WIPE, "no positions of this flow"),
        (None, folder(1, None), None, FolderAction.WIPE, "holds batch 1"),
        (None, folder(3, 3), None, FolderAction.WIPE, "holds batch 3"),
        # The folder agrees with the table.
        (AT_5, folder(5, 5), AT_5.offsets, FolderAction.KEEP, ""),
        (AT_5, folder(6, 5), AT_5.offsets, FolderAction.KEEP, ""),
        (AT_5, folder(5, 4), AT_5.offsets, FolderAction.KEEP, "batch 5 is in the table"),
        # The folder is wrong.
        (AT_5, folder(None, None, None), None, FolderAction.REWRITE, "gone or empty"),
        (AT_5, folder(None, None), None, FolderAction.REWRITE, "gone or empty"),
        (AT_5, folder(None, None, has_leftovers=True), None, FolderAction.REWRITE, "gone or empty"),
        (AT_5, folder(5, 5, "other"), AT_5.offsets, FolderAction.REWRITE, "another query"),
        (AT_5, folder(5, 5, None), AT_5.offsets, FolderAction.REWRITE, "another query"),
        (AT_5, folder(4, 4), None, FolderAction.REWRITE, "behind"),
        (AT_5, folder(4, 3), None, FolderAction.REWRITE, "behind"),
        (AT_5, folder(5, 4), offsets('{"t":{"0":8}}'), FolderAction.REWRITE, "other offsets"),
        (AT_5, folder(6, 6), None, FolderAction.REWRITE, "other offsets"),
        (AT_5, folder(6, 6), AT_5.offsets, FolderAction.REWRITE, "ahead"),
        (AT_5, folder(7, 5), AT_5.offsets, FolderAction.REWRITE, "ahead"),
        (AT_5, folder(5, 3), AT_5.offsets, FolderAction.REWRITE, "misses the commit"),
        (AT_5, folder(5, None), AT_5.offsets, FolderAction.REWRITE, "misses the commit"),
        (AT_5, folder(6, 4), AT_5.offsets, FolderAction.REWRITE, "misses the commit"),
    ],
)
def test_folder_decisions(
    position: SparkPosition | None, state: FolderState, planned: str | None, plan: FolderAction, reason: str
) -> None:
    decision = compare_folder(position, state, planned)
    assert decision.action is plan
    assert reason in str(decision.reason)
    assert bool(reason) == (decision.reason is not None)


def test_first_batch_is_kept_when_the_table_has_no_position() -> None:
    first = SparkPosition(query_id="q", batch_id=0, offsets=offsets("1"), commit="v1\n{}")
    decision = compare_folder(first, folder(0, None), first.offsets)
    assert decision.action is FolderAction.KEEP
    assert "batch 0 is in the table" in str(decision.reason)
    assert compare_folder(first, folder(0, 0), first.offsets).reason is None


def test_same_offsets_ignores_clock_and_layout() -> None:
    assert same_offsets(offsets('{"a":1,"b":2}', clock=1), offsets('{"b": 2, "a": 1}', clock=2))
    assert same_offsets(offsets("17") + "\n", offsets("17"))
    assert same_offsets(offsets("not json"), offsets(" not json "))


def test_same_offsets_is_false_for_other_positions() -> None:
    assert not same_offsets(offsets('{"t":{"0":7}}'), offsets('{"t":{"0":8}}'))
    assert not same_offsets(offsets("1"), offsets("1", "2"))
    assert not same_offsets(offsets("1", "2"), offsets("2", "1"))
    # A source that has no offset yet is not one that stands at zero.
    assert not same_offsets(offsets("-"), offsets("0"))
    assert not same_offsets(None, offsets("1"))
    assert not same_offsets(None, None)
