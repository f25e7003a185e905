"""A definition is what it evaluates to: what changes its rows changes its identity, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest
from tests.project.conftest import ProjectMaker
from tests.project.definition_changes import CHANGES, INPUTS, SAME, Case, files_of, set_environment

from tautochrone.project.graph import Graph
from tautochrone.project.identity import changed_parts

pytestmark = pytest.mark.spark


def graph_of(project: ProjectMaker, monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> Graph:
    """Each `step`th case, all in one project."""
    shutil.rmtree(project.folder / "defs", ignore_errors=True)
    set_environment(monkeypatch, after=after)
    changes = files_of(some({**CHANGES, **INPUTS}, step), after=after)
    return project.graph(changes | files_of(some(SAME, step), after=after, prefix="same_"))


def some(cases: Mapping[str, Case], step: int) -> dict[str, Case]:
    return dict([*cases.items()][::step])


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_identity_follows_what_a_definition_gives(
    project: ProjectMaker, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before, after = (graph_of(project, monkeypatch, step, after=after).flows for after in (False, True))

    def is_same(name: str) -> bool:
        return before[name].fingerprint == after[name].fingerprint

    assert [name for name in some(CHANGES, step) if is_same(name)] == []
    assert [name for name in some(SAME, step) if not is_same(f"same_{name}")] == []
    inputs = some({**CHANGES, **INPUTS}, step).keys() & INPUTS.keys()
    assert [name for name in inputs if before[name].inputs == after[name].inputs] == []


def test_parts_that_changed() -> None:
    before = "1.2.3.4.5.6.7"
    assert changed_parts(before, "1.0.3.4.5.6.7") == ["functions"]
    assert changed_parts(before, "0.2.0.0.0.6.7") == ["query", "settings"]
    assert changed_parts(before, "1.2.3.0.0.0.7") == ["inputs"]
    assert changed_parts(before, "0.2.3.0.5.0.7") == ["query", "inputs"]
    assert changed_parts(before, "1.2.3.0.5.6.7") == ["query"]
    assert changed_parts(before, "1.2.0.4.0.6.7") == ["query", "settings"]
    assert changed_parts(before, "1.2.3.4.5.6.0") == ["project_folder"]
    assert changed_parts(before, "0.2.3.0.5.6.0") == ["query"]
    assert changed_parts("1.2.3+4.5.6", "1.2.3") == []


def test_what_a_function_reads_is_compared(project: ProjectMaker) -> None:
    graph = project.python(
        """
        import os
        from pathlib import Path
        from pyspark.sql import functions as sf

        def f(x):
            return x + int(os.environ["N"])

        def g(x):
            return x + len(Path("/etc/hostname").read_text())

        def h(x):
            with open("/etc/hostname") as file:
                return x + len(file.read())

        def i(x):
            return x + len(os.path.join("a", "b"))

        for name, function in {"f": f, "g": g, "h": h, "i": i}.items():
            @dp.materialized_view(name=name)
            def view():
                return spark.range(3).select(sf.udf(function, "long")("id").alias("x"))
        """
    )
    unread = {name: graph.flows[name].inputs.unversioned for name in "fghi"}
    assert unread == {
        "f": ("environ in a function", "os.environ in a function"),
        "g": ("read_text in a function",),
        "h": ("open in a function",),
        "i": (),
    }
