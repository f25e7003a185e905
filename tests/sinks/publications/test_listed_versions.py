"""The lists of checkpoints never name versions of a table that is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.sinks.publications.toy_lake import LINES, ToyLake, listed_versions


@pytest.mark.parametrize("by_hand", [False])
def test_lists_forget_a_table_that_begins_anew(tmp_path: Path, by_hand: bool) -> None:
    lake = ToyLake(tmp_path, format="delta")
    lake.add()
    lake.deliver()
    if by_hand:
        shutil.rmtree(lake.table_folder(LINES))
    else:
        lake.open().drop_mirror(LINES)
    lake.add()
    lake.deliver()
    listed = listed_versions(lake.published_folder)
    assert LINES not in listed[1]
