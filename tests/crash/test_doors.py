"""Nothing durable happens outside the door: read from the source itself."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tautochrone
from tautochrone.meta.protocols.marks import MethodEffect
from tautochrone.meta.wire import remote_calls
from tautochrone.model.effects import Step

pytestmark = pytest.mark.crash

SRC = Path(tautochrone.__file__).parent
ADAPTERS = ("iceberg", "meta", "ingest", "sinks", "testing")
"""Where durable things are done; everywhere else they are only asked for."""

WRITERS = {
    "writeTo", "save", "saveAsTable", "insertInto", "toTable",
    "write_text", "write_bytes", "unlink", "rmtree", "rename", "mkdir", "makedirs",
}  # fmt: skip

ALLOWED = {
    ("project/spec.py", "write_text"): "`taut init` writes a sample before anything runs",
    ("project/spec.py", "mkdir"): "the same",
    ("cli/diff.py", "mkdir"): "where `taut diff` writes its answer",
    ("cli/unit_tests.py", "mkdir"): "where `taut test` writes its answer",
    ("spark/session/java.py", "mkdir"): "set-up: the folder of the archive of classes",
    (
        "spark/session/launch_command.py",
        "mkdir",
    ): "set-up: the command of Spark's JVM; without it Spark's script runs",
    ("spark/session/launch_command.py", "write_text"): "the same",
    ("app/warm_up.py", "write_text"): "set-up: the project that the archive is from",
    ("app/open.py", "mkdir"): "the storage folder; making it twice is making it once",
    ("app/target_roots.py", "write_text"): "a hint: without it the other target is asked again",
    ("app/serving.py", "mkdir"): "the address of a service: a file that counts only while it answers",
    ("app/serving.py", "write_text"): "the same",
    ("app/serving.py", "rename"): "the same",
    ("app/serving.py", "unlink"): "the same",
    ("app/unchanged.py", "mkdir"): "what the last run depended on: it counts only while all of it holds",
    ("app/unchanged.py", "write_text"): "the same",
    ("app/storage.py", "rename"): "the storage's identity, as a step of whoever calls it",
    ("app/storage.py", "unlink"): "the same",
    ("runtime/dataset_changes/rename.py", "rename"): "the lake's, which is a step; of folders, within one",
    ("traces.py", "mkdir"): "tracebacks for people: nothing reads them to go on",
    ("traces.py", "write_bytes"): "the same",
    ("traces.py", "rename"): "the same",
    ("traces.py", "unlink"): "the same",
}

STORE_WRITERS = {
    "jobs.start_run", "jobs.take_over", "jobs.become_copy", "jobs.move_lake", "jobs.rename_pipeline",
    "roots.report", "checkpoints.open", "checkpoints.record_version", "checkpoints.record_failure",
    "checkpoints.publish", "checkpoints.abort", "checkpoints.revoke",
    "recovery.rebuild", "recovery.reconcile",
    "builds.begin", "builds.finish", "builds.remove",
    "datasets.record_table_ids", "datasets.record_skipped_files",
    "datasets.record_expectations",
}  # fmt: skip


@cache
def _parsed() -> dict[str, ast.Module]:
    return {f.relative_to(SRC).as_posix(): ast.parse(f.read_text()) for f in sorted(SRC.rglob("*.py"))}


def _modules(*, adapters: bool) -> Iterator[tuple[str, ast.Module]]:
    for name, tree in _parsed().items():
        if adapters or name.split("/")[0] not in ADAPTERS:
            yield name, tree


@cache
def _uses() -> Counter[str]:
    """How often each step is named in the package, by the name of its member."""
    return Counter(
        node.attr
        for name, tree in _modules(adapters=True)
        if not name.startswith(("model/", "testing/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Step"
    )


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func


def test_nothing_writes_outside_the_adapters() -> None:
    callers = {
        (name, function.attr)
        for name, tree in _modules(adapters=False)
        for _, function in _calls(tree)
        if function.attr in WRITERS and not name.startswith("spark/session/jars")
    }
    assert callers <= ALLOWED.keys()


def test_the_store_is_written_through_the_door() -> None:
    writing = {f"{c.part}.{c.method}" for c in remote_calls().values() if c.effect is MethodEffect.WRITES}
    assert writing >= STORE_WRITERS
    methods = {name.partition(".")[2] for name in STORE_WRITERS}
    for name, tree in _modules(adapters=False):
        # Only few calls can be such ones; the text of each would take long.
        writes = [(call, function) for call, function in _calls(tree) if function.attr in methods]
        writes = [(call, function) for call, function in writes if _store_method(function) in STORE_WRITERS]
        if not writes:
            continue
        behind = {
            id(inner)
            for call, function in _calls(tree)
            if function.attr == "perform"
            for inner in ast.walk(call)
        }
        for call, _ in writes:
            assert id(call) in behind, f"{name}:{call.lineno} writes the store without a step"


def test_catalog_commits_happen_in_one_place() -> None:
    """`operations.commit(base, new)` is the compare-and-set; Iceberg's own `commit()` would retry."""
    callers = {
        name
        for name, tree in _modules(adapters=True)
        for _, function in _calls(tree)
        if function.attr == "commit" and ast.unparse(function.value).endswith("operations")
    }
    assert callers == {"iceberg/commits/compare_and_set.py"}


@pytest.mark.parametrize("step", Step)
def test_every_step_is_taken(step: Step) -> None:
    assert _uses()[step.name]


def test_steps_say_what_they_do_by_their_own_names() -> None:
    assert all(step.value == step.name.lower().replace("_", ".", 1) for step in Step)
    assert inspect.getdoc(Step)


def _store_method(function: ast.Attribute) -> str | None:
    """The part and the method, when it is one of a store."""
    *_, store, part, method = ["", "", *ast.unparse(function).split(".")]
    return f"{part}.{method}" if store in ("store", "_store") else None
