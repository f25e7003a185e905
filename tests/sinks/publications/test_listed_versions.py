"""The lists of checkpoints never name versions of a table that is gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sinks.publications.toy_lake import LINES, ToyLake, listed_versions

LATER = replace(LINES, table="later")


@pytest.mark.parametrize("event", ["dropped", "removed by hand", "renamed"])
@pytest.mark.parametrize("kind", ["delta", "hudi", "paimon"])
def test_lists_name_no_version_of_another_table(tmp_path: Path, kind: str, event: str) -> None:
    lake = ToyLake(tmp_path, format=kind)
    for _ in range(2):
        lake.add()
    lake.deliver()
    if event == "dropped":
        lake.open().drop_mirror(LINES)
    elif event == "renamed":
        lake.open().rename_mirror(LINES, LATER)
    else:
        shutil.rmtree(lake.table_folder(LINES))
    lake.add()
    lake.deliver()
    for number, versions in listed_versions(lake.published_folder).items():
        for table in versions.keys() & {LINES, LATER}:
            assert lake.shown(table, versions[table]) == lake.rows(LINES, number)
