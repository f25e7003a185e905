"""Definitions are the same in two processes that differ in all that does not belong to a definition."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.project.conftest import ProjectMaker
from tests.project.definition_changes import (
    CHANGES,
    FROM_SETS,
    INPUTS,
    SAME,
    environment,
    files_of,
    set_environment,
)

from tautochrone.project.identity import changed_parts

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SURROUNDINGS = {
    "PYTHONHASHSEED": "2",
    "PYTHONPATH": str(ROOT),
    "TZ": "America/New_York",
    "LC_ALL": "C",
    "USER": "somebody",
    "HOME": "/nowhere",
}
FEW = ("json_schema", "rows_nested", "udf_numpy", "udf_base_class")
FEW_SAME = (
    "file_of_module",
    "folder_literal",
    "now",
    "set_constant",
    "set_isin",
    "set_of_objects",
    "unreadable",
)


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_identities_are_the_same_in_another_process(
    project: ProjectMaker, monkeypatch: pytest.MonkeyPatch, *, is_long: bool
) -> None:
    changes = {**CHANGES, **INPUTS} if is_long else {name: CHANGES[name] for name in FEW}
    names = SAME.keys() - {*FROM_SETS, "temporary_folder"} if is_long else {*FEW_SAME}
    same = {name: SAME[name] for name in sorted(names)}

    def files(*, after: bool) -> dict[str, str]:
        return files_of(changes, after=False) | files_of(same, after=after, prefix="same_")

    clone = ProjectMaker(project.folder / "deeper" / "clone", project.spark)
    clone.folder.mkdir(parents=True)
    clone.write(files(after=True))
    output = project.folder / "identities.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.project.identity_process", str(output)],
        cwd=clone.folder,
        env={**os.environ, **environment(changes_after=False, same_after=True), **SURROUNDINGS},
    )
    try:
        set_environment(monkeypatch, after=False)
        here = {name: flow.fingerprint for name, flow in project.graph(files(after=False)).flows.items()}
    finally:
        code = process.wait()
    assert code == 0
    there = json.loads(output.read_text())
    assert here.keys() == there.keys()
    differ = {name: changed_parts(here[name], there[name]) for name in here if here[name] != there[name]}
    assert {name: parts for name, parts in differ.items() if parts != ["project_folder"]} == {}
    assert [name for name in FEW_SAME if f"same_{name}" in differ] == ["file_of_module", "folder_literal"]


def test_taut_fixes_the_order_of_sets() -> None:
    code = "from tautochrone.cli import main; main.main = lambda: print([*set('abcdefgh')]); main.entry()"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}

    def order(**more: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", code], env=variables | more, stdout=subprocess.PIPE, check=True
        ).stdout

    fixed = order()
    assert fixed == order(PYTHONHASHSEED="0")
    assert fixed != order(PYTHONHASHSEED="3")
