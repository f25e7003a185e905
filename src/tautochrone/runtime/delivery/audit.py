"""Compares what a sink shows with the lake at the same checkpoint, by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import CheckpointUnavailableError, SinkError
from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    CheckpointHistory,
    Digest,
    Published,
    RowAudit,
    RowDifference,
    Sink,
    SinkDeclaration,
    TakesFiles,
)
from tautochrone.sinks import can_observe, observe_sink, open_sink

__all__ = ["SinkVerdict", "verify_sink"]

_SHOWN_ROWS = 10
_OBJECTS_MISSING, _NOT_OBSERVED = "SINK_OBJECT_MISSING", "SINK_NOT_OBSERVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkVerdict:
    """One table of a sink.

    Attributes:
        rows: of the lake and of the sink.
        parts: of the sink's partitions or hash ranges those that differ.
        differences: rows that differ, some of them, if the sink can name them.
        unknown_parts: those that the sink cannot tell for this checkpoint, for the reason given.
        reason: why they are unknown, or why another checkpoint is compared than the one that was asked for.
    """

    sink: str
    dataset: TableName
    checkpoint: CheckpointNumber
    lake_rows: int
    sink_rows: int
    parts: tuple[str, ...] = ()
    differences: tuple[RowDifference, ...] = field(default=())
    unknown_parts: tuple[str, ...] = ()
    reason: Reason | None = None

    @property
    def equal(self) -> bool | None:
        """None: nothing differs in what could be compared, and something could not."""
        if self.parts:
            return False
        return None if self.unknown_parts else True


def verify_sink(
    session: Any,
    store: Store,
    lake: LakeCatalog,
    declaration: SinkDeclaration,
    tables: Sequence[TableName],
    number: int | None,
) -> Iterator[SinkVerdict]:
    """Compare tables of a sink at a checkpoint, or at the one that its readers see. Nothing is written to a
    sink of a format of `can_observe`.

    A sink that does not show the checkpoint is compared at the one that its readers see, with a reason.

    Raises:
        SinkError: `SINK_SHOWS_NOTHING`, nothing was delivered yet; `SINK_CANNOT_AUDIT`.
        CheckpointUnavailableError: `CHECKPOINT_NOT_FOUND`, `CHECKPOINT_NOT_PUBLISHED`.
    """
    with _missing_objects(store, declaration.name):
        sink = _opened(declaration)
    try:
        if not sink.capabilities.audits:
            raise SinkError(
                "SINK_CANNOT_AUDIT",
                f"Sink {declaration.name} ({declaration.format}) cannot tell what it holds",
                sqlstate="0A000",
            )
        with _missing_objects(store, declaration.name):
            published = sink.published()
        if published is None:
            raise _shows_nothing_error(declaration.name)
        auditor = _Auditor(session, lake, sink, declaration.name, published)
        if number is not None and number != published.checkpoint:
            _require_published(store, number)
            auditor.go_back(CheckpointNumber(number), store.checkpoints.versions_at(number))
        for name in tables or declaration.tables:
            verdict = auditor.verdict(name)
            if verdict is not None:
                yield verdict
    finally:
        sink.close()


def _opened(declaration: SinkDeclaration) -> Sink:
    """The sink, only to look at it where that can be."""
    name, options = declaration.name, declaration.options
    if can_observe(declaration.format):
        try:
            return observe_sink(name, declaration.format, options)
        except SinkError as error:
            if error.error_class != _NOT_OBSERVED:
                raise
    return open_sink(name, declaration.format, options)


@contextmanager
def _missing_objects(store: Store, name: str) -> Iterator[None]:
    """What a sink lacks before the first delivery is not an error of its system; afterwards it is."""
    try:
        yield
    except SinkError as error:
        delivered = any(sink.delivered for sink in store.deliveries.sinks() if sink.name == name)
        if error.error_class != _OBJECTS_MISSING or delivered:
            raise
        raise _shows_nothing_error(name) from error


def _shows_nothing_error(name: str) -> SinkError:
    return SinkError(
        "SINK_SHOWS_NOTHING",
        f"Sink {name} shows no checkpoint yet",
        hint="`taut run` delivers to it, and `taut sinks` says what keeps it from that.",
        parameters={"sink": name},
        sqlstate="55000",
    )


def _require_published(store: Store, number: int) -> None:
    state = store.checkpoints.get(CheckpointNumber(number)).state
    if state not in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL):
        raise CheckpointUnavailableError(
            "CHECKPOINT_NOT_PUBLISHED",
            f"Checkpoint {number} is {state}: only published ones are compared",
            hint="`taut checkpoints` lists those that can be read.",
        )


class _Auditor:
    """Compares the tables of a sink, at the checkpoint that its readers see unless `go_back` says another."""

    def __init__(
        self, session: Any, lake: LakeCatalog, sink: Sink, sink_name: str, published: Published
    ) -> None:
        self._session = session
        self._lake = lake
        self._sink = sink
        self._sink_name = sink_name
        self._shown = published
        self._checkpoint, self._versions = published.checkpoint, published.versions
        self._reason: Reason | None = None

    def go_back(self, checkpoint: CheckpointNumber, versions: Mapping[TableName, Version]) -> None:
        """Compare at another checkpoint of the store, if the sink can tell it."""
        self._checkpoint, self._versions = checkpoint, versions
        if not isinstance(self._sink, CheckpointHistory):
            return
        older = self._sink.published_at(checkpoint)
        if older is None:
            self._compare_newest(ReasonCode.SINK_CHECKPOINT_NOT_SHOWN)
        elif any(versions.get(name) != version for name, version in older.versions.items()):
            # A store that was restored gives numbers again.
            self._compare_newest(ReasonCode.SINK_CHECKPOINT_OF_ANOTHER_STORE)
        else:
            self._versions = older.versions

    def verdict(self, name: TableName) -> SinkVerdict | None:
        """None for a table that the checkpoint does not have."""
        shown: Mapping[str, Digest] = {}
        if name in self._versions:
            try:
                shown = self._sink.audit(name, self._checkpoint)
            except SinkError as error:
                if error.error_class != "SINK_CHECKPOINT_GONE" or self._checkpoint == self._shown.checkpoint:
                    raise
                self._compare_newest(ReasonCode.SINK_CHECKPOINT_NOT_SHOWN)
                return self.verdict(name)
        if name not in self._versions:
            return None
        sink, checkpoint = self._sink, self._checkpoint
        table, version = self._lake.load(name), self._versions[name]
        if isinstance(sink, TakesFiles):
            expected, rows = sink.digest_files(table.files_at(version)), None
        else:
            rows = table.read(self._session, version)
            expected = sink.digest(name, rows)
        unknown = sink.unknown_parts(name, checkpoint) if isinstance(sink, CheckpointHistory) else {}
        nothing = Digest(0, "")
        parts = [
            part
            for part in sorted((expected.keys() | shown.keys()) - unknown.keys())
            if expected.get(part, nothing) != shown.get(part, nothing)
        ]
        differences: Sequence[RowDifference] = ()
        if parts and isinstance(sink, RowAudit):
            differences = sink.differences(name, checkpoint, rows, _SHOWN_ROWS)
        return SinkVerdict(
            sink=self._sink_name,
            dataset=name,
            checkpoint=checkpoint,
            lake_rows=sum(digest.rows for digest in expected.values()),
            sink_rows=sum(digest.rows for digest in shown.values()),
            parts=tuple(parts),
            differences=tuple(differences),
            unknown_parts=tuple(sorted(unknown)),
            reason=next(iter(unknown.values()), self._reason),
        )

    def _compare_newest(self, code: ReasonCode) -> None:
        requested, shown = int(self._checkpoint), int(self._shown.checkpoint)
        self._reason = Reason.of(code, checkpoint=requested, shown=shown)
        self._checkpoint, self._versions = self._shown.checkpoint, self._shown.versions
