"""A catalog that loses an answer, and then fails in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, FencedError, LakeError
from tautochrone.iceberg.commits import compare_and_set as commits
from tautochrone.iceberg.java.api import MetadataMovedError
from tautochrone.iceberg.maintenance import table_maintenance
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName, Version

NAME = TableName("lake", ("sales",), "orders")
MOVED = MetadataMovedError("METADATA_MOVED", "another commit was first")
UNKNOWN = CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", "no answer")
REFUSED = LakeError("LAKE_OPERATION_FAILED", "NotAuthorizedException")
NOT_THERE = LakeError("LAKE_OPERATION_FAILED", "RuntimeMetaException")
CONFLICT = ConflictError("TABLE_MOVED", "main moved")
FENCED = FencedError("JOB_FENCED", "a newer owner")

Answer = LakeError | None


class Catalog:
    """Gives these answers, one by one; the last of each again and again."""

    def __init__(self, loads: Sequence[Answer], builds: Sequence[Answer], sends: Sequence[Answer]) -> None:
        self._answers = {"load": [*loads], "build": [*builds], "send": [*sends]}

    def answer(self, call: str) -> Any:
        answers = self._answers[call]
        error = answers.pop(0) if len(answers) > 1 else answers[0]
        if error is not None:
            raise error
        return SimpleNamespace(last_updated_ms=0)

    def perform(self, _step: Step, _subject: str, _action: Callable[[], Any]) -> None:
        self.answer("send")

    def commit(self, monkeypatch: pytest.MonkeyPatch, attempted: list[Version] | None = None) -> Any:
        monkeypatch.setattr(commits, "load", lambda _iceberg, _name: self.answer("load"))
        attempted = [] if attempted is None else attempted

        def build(_loaded: Any) -> None:
            self.answer("build")
            attempted.append(Version("1"))

        none: Any = None
        return commits.compare_and_set(
            none, NAME, self, Step.LAKE_COMPACT, build=build, done=lambda _loaded: False
        )


@pytest.mark.parametrize(
    ("loads", "builds", "sends"),
    [
        ([None, NOT_THERE], [None], [UNKNOWN]),
        ([None], [None, NOT_THERE], [UNKNOWN]),
        ([None], [None], [UNKNOWN, REFUSED]),
        ([None, None, NOT_THERE], [None], [UNKNOWN, MOVED]),
        ([None], [None], [UNKNOWN]),
    ],
)
def test_later_errors_leave_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch, loads: list[Answer], builds: list[Answer], sends: list[Answer]
) -> None:
    with pytest.raises(CommitOutcomeUnknownError):
        Catalog(loads, builds, sends).commit(monkeypatch)


@pytest.mark.parametrize("error", [CONFLICT, FENCED])
def test_other_metadata_is_an_answer(monkeypatch: pytest.MonkeyPatch, error: ConflictError) -> None:
    with pytest.raises(type(error)):
        Catalog([None], [None, error], [UNKNOWN]).commit(monkeypatch)


class _Compaction(table_maintenance.IcebergMaintenance):
    """Rewrites a file and commits it to a catalog."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._name, self._catalog, self._monkeypatch = NAME, catalog, monkeypatch
        self.removed: list[str] = []
        monkeypatch.setattr(table_maintenance, "staged_at_ms", lambda _table: 0)

    def _rewritten(self, *_arguments: Any) -> Any:
        return ["group"]

    def _written(self, *_arguments: Any) -> Any:
        return ["compacted.parquet"]

    def _swap(self, *arguments: Any) -> Any:
        return self._catalog.commit(self._monkeypatch, arguments[-1])

    def _remove(self, _loaded: Any, paths: Sequence[str], _step: Step) -> None:
        self.removed.extend(paths)


@pytest.mark.parametrize(
    ("loads", "builds", "sends", "is_removed"),
    [
        ([None, NOT_THERE], [None], [UNKNOWN], False),
        ([None], [None], [REFUSED], False),
        ([None], [None, CONFLICT], [MOVED], True),
        ([None], [CONFLICT], [None], True),
        ([NOT_THERE], [None], [None], True),
        ([None], [REFUSED], [None], True),
    ],
)
def test_compaction_removes_only_files_that_main_cannot_name(
    monkeypatch: pytest.MonkeyPatch,
    loads: list[Answer],
    builds: list[Answer],
    sends: list[Answer],
    is_removed: bool,
) -> None:
    compaction = _Compaction(Catalog(loads, builds, sends), monkeypatch)
    fork: Any = SimpleNamespace(handle=SimpleNamespace(table=None))
    metadata: Any = None
    with pytest.raises(LakeError):
        compaction.compact(fork, metadata, min_files=1, max_files=2, exclusive=nullcontext())
    assert compaction.removed == ["compacted.parquet"] * is_removed
