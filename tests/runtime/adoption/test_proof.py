"""Folder and table as two witnesses: they agree, or nothing is known."""

from __future__ import annotations

import pytest

from tautochrone.ingest.checkpoint_folder import FolderState
from tautochrone.ingest.folder_decision import StreamPosition, stream_position


def folder(planned: int | None, finished: int | None) -> FolderState:
    return FolderState(query_id="q", planned=planned, finished=finished)


@pytest.mark.parametrize(
    ("state", "committed", "batch"),
    [
        (folder(3, 3), {"q": 3, "other": 9}, 3),
        # The process ended after the table's commit, before the folder's: Spark would skip the batch.
        (folder(3, 2), {"q": 3}, 3),
        (folder(0, None), {"q": 0}, 0),
        (folder(None, None), {}, None),
        # Its first batch was planned and is not in the table: it is read again.
        (folder(0, None), {"other": 4}, None),
    ],
)
def test_agreement(state: FolderState, committed: dict[str, int], batch: int | None) -> None:
    assert stream_position(state, committed) == StreamPosition(batch)


@pytest.mark.parametrize(
    ("state", "committed"),
    [
        (FolderState(query_id=None, planned=None, finished=None), {"q": 3}),
        (folder(4, 3), {"q": 3}),
        (folder(2, 2), {"q": 3}),
        (folder(None, None), {"q": 3}),
        (folder(0, 0), {}),
        (folder(5, 5), {"other": 5}),
    ],
)
def test_doubt(state: FolderState, committed: dict[str, int]) -> None:
    assert stream_position(state, committed).problem
