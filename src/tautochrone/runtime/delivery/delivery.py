"""Delivering checkpoints to one sink, in a thread of its own.

    0. claim it: a fence above all earlier ones    1. check that it mirrors this store
    2. recover: resolve what is under way          3. resolve the newest published checkpoint, and pin it
    4. read the pointer; which tables changed      5. deltas from what the sink shows
    6. write the intent into the store             7. begin, write, prepare
    8. write into the store that it is prepared    9. commit
                                                  10. write into the store that it is delivered

After a failure anywhere the next try begins at 2: whether a commit arrived is asked of the sink, never
guessed. The sink's pointer says from where the next delta starts, the store only remembers it.

Each delivery reads the pointer again, because somebody may have restored the sink meanwhile, and asks the
sink which tables do not hold what the pointer stands for: those are sent whole. The first delivery of a
process does so without news too. How many rows are compared for that, `_FIRST_ROWS` and `COMPARED_ROWS` say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql.types import DataType, StructType

from tautochrone.errors import (
    CheckpointUnavailableError,
    SettingsError,
    SinkContentError,
    SinkError,
    SinkFencedError,
    TautochroneError,
)
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.model import events
from tautochrone.model.checkpoint import CheckpointState, Consistency, Resolution
from tautochrone.model.lake import NO_VERSION, ChangeKind, LakeTable, RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    DeliveryPolicy,
    Intent,
    Published,
    ReportsComparison,
    ReportsWaits,
    SentChunk,
    Sink,
    SinkDeclaration,
    SinkMaintenance,
    TakesFiles,
    TransactionId,
    TransactionState,
)
from tautochrone.runtime.delivery.check_sinks import only_inserts_error, require_keys, require_own
from tautochrone.runtime.delivery.deltas import TableDelta, delta_of, with_columns
from tautochrone.runtime.delivery.sinks_at_rest import COMPARED_ROWS
from tautochrone.runtime.delivery.worker import SinkWorker
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import DeliveryJournal
from tautochrone.runtime.job.pinned import renewed
from tautochrone.sinks import columns_of_key, open_sink, uses_keys

__all__ = ["Delivery", "DeliveryWorker", "needs_attention"]

_PIN_MS = 3_600_000
"""For so long a checkpoint stays readable after the process that delivers it died. While it lives, it renews
its pin: to send all rows may take longer."""
_READABLE = frozenset({CheckpointState.PUBLISHED, CheckpointState.PARTIAL})
_FIRST_ROWS = 10_000_000
"""Tables with so many rows at most are compared by the first delivery of a process, and by its later ones
those with `COMPARED_ROWS`. Of larger tables the sink compares what it can tell without reading rows."""
_OBJECTS_MISSING = "SINK_OBJECT_MISSING"
"""Only opening the sink again creates its own tables, its schema or its database."""
_KEY_NOT_UNIQUE = "SINK_KEY_NOT_UNIQUE"
_UNEXPECTED_ROWS = frozenset({"SINK_ROW_MISSING", _KEY_NOT_UNIQUE})
"""The sink has other rows than a delta expects, or the project is wrong: comparing all rows tells."""

_FIRST_PAUSE_S = 0.2
_POLL_S = 5.0
"""How often a sink looks for checkpoints that other jobs completed."""
_LAST_TRIES = 3
"""Failed tries in a row after which the end of a run waits no longer for a sink."""

_SINK_CLASSES = ("SINK_", "PUBLICATION_")
"""The prefixes of the classes of errors that our sinks raise."""
_LOGIN_REFUSED = "SINK_LOGIN_REFUSED"
"""It does change when the file of a password does, as when passwords are rotated."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Rows that the sink did not take although all of its rows were compared: so it is the rows of the
    checkpoint, and neither trying nor comparing them again helps.

    Attributes:
        pointer: what the sink showed.
        checkpoint: that was to be delivered.
    """

    error: SinkError
    pointer: Published | None
    checkpoint: CheckpointNumber | None

    def lasts(self, pointer: Published | None, checkpoint: CheckpointNumber | None) -> bool:
        return (pointer, checkpoint) == (self.pointer, self.checkpoint)


@dataclass(slots=True)
class Delivery:
    """See the module docstring. Used by one thread."""

    job: Job
    declaration: SinkDeclaration
    _journal: DeliveryJournal = field(init=False)
    _sink: Sink | None = None
    _published: Published | None = None
    _is_recovered: bool = False
    _is_compared: bool = False
    _is_expected: bool = True
    _compares_all: bool = False
    _attempt: int = 0
    _tried: CheckpointNumber | None = None
    _refusal: _Refusal | None = None
    _ensured: dict[TableName, object] = field(default_factory=dict)
    _rebuilds: dict[TableName, Reason] = field(default_factory=dict)
    """Tables of the sink that the next commit replaces by new ones, and why."""

    def __post_init__(self) -> None:
        self._journal = DeliveryJournal(self.job.journal, self.declaration.name)

    @property
    def journal(self) -> DeliveryJournal:
        return self._journal

    def deliver(self) -> bool:
        """Bring the sink to the newest published checkpoint; whether there was anything to do.

        Raises:
            SinkError: what is against it; `SinkFencedError` when a newer owner delivers.
            FencedError: a newer owner runs the job.
        """
        try:
            return self._deliver_newest(self.claimed_sink())
        except SinkError as error:
            if error.error_class == _OBJECTS_MISSING:
                self.close()
            is_known = self._refusal is not None and error is self._refusal.error
            if error.error_class not in _UNEXPECTED_ROWS or is_known:
                raise
        self.reset_after_failure()
        self._compares_all = True
        try:
            return self._deliver_newest(self.claimed_sink())
        except SinkError as error:
            if error.error_class == _KEY_NOT_UNIQUE:
                self._refusal = _Refusal(error, self._published, self._tried)
            raise
        finally:
            self._compares_all = False

    def _deliver_newest(self, sink: Sink) -> bool:
        if not self._is_recovered:
            self._recover(sink)
        if self._is_compared and self._has_newest_number():
            return False
        resolution = self._resolve()
        if resolution is None:
            return False
        if isinstance(sink, TakesFiles):
            resolution = self._next_of(resolution)
        try:
            if self._is_older(resolution):
                return False
            self._tried = resolution.checkpoint
            refusal = self._refusal
            if refusal is not None and refusal.lasts(self._published, self._tried):
                raise refusal.error.with_traceback(None)
            pin = resolution.pin
            with renewed(self.job.store, lambda: (pin, _PIN_MS), owner=self._pin_owner):
                changed = self._changed_tables(sink)
                if not changed and not self._is_news(resolution):
                    return False
                self._deliver(sink, resolution, changed)
            return True
        finally:
            self.job.store.pins.release(resolution.pin)

    @property
    def _pin_owner(self) -> str:
        return f"sink {self.declaration.name}"

    def close(self) -> None:
        """Give the sink's connections back. Repeatable."""
        self.reset_after_failure()
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def reset_after_failure(self) -> None:
        """The next try begins with the recovery, and creates what somebody dropped in the sink meanwhile."""
        self._is_recovered = self._is_compared = False
        self._ensured.clear()
        self._rebuilds.clear()

    # -- becoming the owner -----------------------------------------------------------------------

    def claimed_sink(self) -> Sink:
        """The sink, open, with this delivery as its newest owner.

        Raises:
            SinkError: as of `deliver`.
        """
        if self._sink is not None:
            return self._sink
        declaration = self.declaration
        # Claimed first, so that the store can record what is wrong with the sink.
        self._journal.claim(declaration, Fence(0))
        sink = open_sink(declaration.name, declaration.format, declaration.options)
        try:
            self._require_fit(sink)
            sink.claim(self.job.lake_id or "")
            self._require_own(sink.published())
            if sink.highest_fence() >= self._journal.fence:
                self._journal.claim(declaration, sink.highest_fence())
            self._journal.raise_fence(sink)
        except BaseException:
            sink.close()
            raise
        if isinstance(sink, ReportsWaits):
            sink.on_wait(self._report_wait)
        self._sink = sink
        return sink

    def _require_own(self, published: Published | None) -> None:
        declaration, status = self.declaration, self._journal.status()
        tables = {name: self._table(name) for name in declaration.tables if self._exists(name)}
        require_own(declaration.name, published, status, self.job.incarnation, tables)

    def _report_wait(self, reason: Reason) -> None:
        self.job.emit(events.SinkWaiting(sink=self.declaration.name, reason=reason))

    def _require_fit(self, sink: Sink) -> None:
        declaration, capabilities = self.declaration, sink.capabilities
        if len(declaration.tables) > 1 and not capabilities.several_tables:
            raise SinkError(
                "SINK_TAKES_ONE_TABLE",
                f"Sink {declaration.name} ({declaration.format}) takes one table, "
                f"and {len(declaration.tables)} go to it",
                hint="Declare a sink for each table.",
                location=declaration.location or None,
            )
        if capabilities.keyed:
            require_keys(declaration)

    def _recover(self, sink: Sink) -> None:
        status = self._journal.status()
        intent = None if status is None else status.intent
        outcomes = self._journal.recover(sink, [] if intent is None else [intent])
        published = sink.published()
        self._require_own(published)
        delivered = None if status is None else status.delivered
        is_recorded = (
            published is not None
            and delivered is not None
            and (delivered.incarnation, delivered.checkpoint)
            == (published.transaction.incarnation, published.checkpoint)
        )
        if published is not None and not is_recorded:
            self._journal.record(Deliveries.record_delivered, published)
        elif intent is not None:
            self._journal.record(Deliveries.end_intent)
        for outcome in outcomes:
            self.job.emit(
                events.SinkRecovered(
                    sink=self.declaration.name,
                    checkpoint=outcome.transaction.checkpoint,
                    state=str(outcome.state),
                    reason=Reason.of(ReasonCode.TRANSACTION_UNFINISHED),
                )
            )
        is_committed = any(outcome.state is TransactionState.COMMITTED for outcome in outcomes)
        self._is_expected = is_recorded or is_committed or (published is None and delivered is None)
        self._published = published
        self._is_recovered = True

    # -- one checkpoint ---------------------------------------------------------------------------

    def _has_newest_number(self) -> bool:
        """Whether the store gave no number since the delivered checkpoint. This only reads, while a pin
        is a write, and a sink asks every few seconds."""
        published = self._published
        return (
            published is not None
            and published.transaction.incarnation == self.job.incarnation
            and self.job.store.checkpoints.highest_used_number() <= published.checkpoint
        )

    def _resolve(self, number: CheckpointNumber | None = None) -> Resolution | None:
        """The checkpoint that a strong read of the tables would see now, or that of a number, pinned; None:
        it cannot be read."""
        try:
            resolution = self.job.store.reads.resolve(
                Consistency.STRONG,
                self.declaration.tables,
                number,
                lease_ms=_PIN_MS,
                owner=self._pin_owner,
            )
        except CheckpointUnavailableError:
            return None
        if resolution.checkpoint is None or not set(self.declaration.tables) <= resolution.versions.keys():
            self.job.store.pins.release(resolution.pin)
            return None
        return resolution

    def _next_of(self, newest: Resolution) -> Resolution:
        """The oldest checkpoint that a publication lacks, pinned, and `newest` is not; or `newest`."""
        assert newest.checkpoint is not None
        if self._published is None or not self._is_of_this_store():
            return newest
        store = self.job.store
        for number, state in store.checkpoints.states(self._published.checkpoint):
            if number >= newest.checkpoint:
                break
            resolution = self._resolve(number) if state in _READABLE else None
            if resolution is not None:
                store.pins.release(newest.pin)
                return resolution
        return newest

    def _is_of_this_store(self) -> bool:
        published = self._published
        return published is not None and published.transaction.incarnation == self.job.incarnation

    def _is_news(self, resolution: Resolution) -> bool:
        assert resolution.checkpoint is not None
        published = self._published
        return (
            published is None or not self._is_of_this_store() or resolution.checkpoint > published.checkpoint
        )

    def _is_older(self, resolution: Resolution) -> bool:
        """After a revision readers see an older checkpoint for a while; the sink waits for the next one."""
        assert resolution.checkpoint is not None
        published = self._published
        return (
            published is not None
            and self._is_of_this_store()
            and resolution.checkpoint < published.checkpoint
        )

    def _changed_tables(self, sink: Sink) -> Mapping[TableName, Reason]:
        """Which tables do not hold what the pointer stands for. The pointer is read again before."""
        if sink.published() != self._published:
            self._recover(sink)
            # Who restores a sink has the tables that it had: they may lack columns.
            self._ensured.clear()
            self._journal.raise_fence(sink)
        max_rows = COMPARED_ROWS if self._is_compared else _FIRST_ROWS
        shown = () if self._published is None else self._published.versions
        tables = [name for name in self.declaration.tables if name in shown]
        is_trusted = self._is_expected and not self._compares_all
        changed = sink.changed_tables(tables, max_rows if is_trusted else None)
        for table in changed:
            self._ensured.pop(table, None)
        self._is_compared = True
        return changed

    def _deliver(self, sink: Sink, resolution: Resolution, changed: Mapping[TableName, Reason]) -> None:
        started = time.monotonic()
        assert resolution.checkpoint is not None
        self._attempt += 1
        # A table that is built anew gets all rows, so the sink is asked before changes are read.
        reasons = {
            name: self._ensure(sink, name, resolution.versions[name]) or changed.get(name)
            for name in self.declaration.tables
        }
        deltas = [self._delta(sink, name, resolution, reason) for name, reason in reasons.items()]
        intent = Intent(
            transaction=TransactionId(
                incarnation=self.job.incarnation,
                sink=self.declaration.name,
                checkpoint=resolution.checkpoint,
                fence=self._journal.fence,
                attempt=self._attempt,
            ),
            versions={name: resolution.versions[name] for name in self.declaration.tables},
            base=None if self._published is None else self._published.transaction,
            replaced=tuple(delta.table for delta in deltas if delta.rows is not None),
        )
        self.job.journal.record(Deliveries.record_intent, intent)
        chunks = self._prepared_chunks(sink, intent, deltas)
        self.job.journal.record(Deliveries.record_intent, replace(intent, chunks=tuple(chunks)))
        self._journal.commit(sink, intent.transaction)
        published = Published(transaction=intent.transaction, versions=intent.versions)
        self._journal.record(Deliveries.record_delivered, published)
        before, self._published = self._published, published
        self._is_expected = True
        self._rebuilds.clear()
        self._report_delivered(sink, before, published, deltas, chunks, started)
        if isinstance(sink, SinkMaintenance):
            self._maintain(sink)

    def _report_delivered(
        self,
        sink: Sink,
        before: Published | None,
        published: Published,
        deltas: Sequence[TableDelta],
        chunks: Sequence[SentChunk],
        started: float,
    ) -> None:
        replaced = _reasons({d.table: d.reason for d in deltas if d.change is None})
        self.job.emit(
            events.SinkDelivered(
                sink=self.declaration.name,
                checkpoint=published.checkpoint,
                since=None if before is None else before.checkpoint,
                rows=sum(chunk.digest.rows for chunk in chunks),
                replaced={entry.dataset: str(entry.reason) for entry in replaced},
                replaced_reasons=replaced,
                left_to_spark=_reasons({d.table: d.left_to_spark for d in deltas}),
                compared=_reasons(sink.comparison_reasons() if isinstance(sink, ReportsComparison) else {}),
                duration_ms=round((time.monotonic() - started) * 1000),
            )
        )

    def _maintain(self, sink: SinkMaintenance) -> None:
        """Fold history. The checkpoint is delivered, so what the sink refuses now only gets reported."""
        try:
            folded = self._journal.maintain(sink)
        except SinkFencedError:
            raise
        except SinkError as error:
            self._is_recovered = False
            self.job.emit(
                events.SinkMaintenanceFailed(
                    sink=self.declaration.name,
                    error=str(error),
                    error_class=error.error_class,
                    hint=error.hint,
                )
            )
            return
        for table in folded:
            self.job.emit(
                events.SinkHistoryFolded(
                    sink=self.declaration.name,
                    dataset=str(table.table),
                    rows_before=table.rows_before,
                    rows_after=table.rows_after,
                    oldest=table.oldest,
                    reason=Reason.of(ReasonCode.SINK_HISTORY_OLD, oldest=table.oldest),
                )
            )

    def _prepared_chunks(self, sink: Sink, intent: Intent, deltas: Sequence[TableDelta]) -> list[SentChunk]:
        """Step 7: all of it, or the transaction is aborted."""
        journal, transaction = self._journal, intent.transaction
        journal.begin(sink, intent)
        chunks: list[SentChunk] = []
        try:
            for delta in deltas:
                chunks += self._write(sink, transaction, delta)
            journal.prepare(sink, transaction, chunks)
        except SinkFencedError:
            raise
        except SinkContentError:
            # The outcome is known: the sink has other rows. Recovery must not meet the transaction.
            journal.abort(sink, transaction)
            journal.record(Deliveries.end_intent)
            raise
        return chunks

    def _write(self, sink: Sink, transaction: TransactionId, delta: TableDelta) -> Sequence[SentChunk]:
        if delta.files is not None:
            assert isinstance(sink, TakesFiles)
            write = partial(sink.write_files, transaction, delta.files, moves_rows=delta.moves_rows)
            return self._journal.write(write)
        if delta.change is None:
            rows: Rows = delta.rows
            return self._journal.write(partial(sink.replace, transaction, delta.table, rows))
        if delta.change.added is None and delta.change.removed is None:
            return []
        return self._journal.write(partial(sink.write, transaction, delta.table, delta.change))

    def _delta(
        self, sink: Sink, name: TableName, resolution: Resolution, changed: Reason | None
    ) -> TableDelta:
        """What goes to the sink of one table: the delta, or all rows if what the sink has was `changed`."""
        delivered = None if self._published is None else self._published.versions.get(name)
        table, version = self._table(name), resolution.versions[name]
        if isinstance(sink, TakesFiles):
            moves_rows = _moves_rows(table, delivered, version)
            return TableDelta(
                table=name, files=table.files_at(version), moves_rows=moves_rows, reason=changed
            )
        only_inserts = not sink.capabilities.retractions or name in self.declaration.insert_only
        if changed is not None and sink.capabilities.replaces and not only_inserts:
            return TableDelta(table=name, rows=table.read(self.job.base, version), reason=changed)
        delta = delta_of(table, self.job.base, delivered, version)
        if delta.change is not None:
            names = self._schema(name, version).fieldNames()
            delta = replace(delta, change=with_columns(delta.change, names))
        if only_inserts and delivered is not None and not delta.is_insert_only:
            reason = "rows of it were updated or deleted" if delta.reason is None else str(delta.reason)
            raise only_inserts_error(self.declaration, name, reason)
        if changed is None:
            return self._as_inserts(sink, delta)
        if not sink.capabilities.replaces:
            raise SinkError(
                "SINK_CONTENT_CHANGED",
                f"Sink {self.declaration.name} takes only new rows, and has not those of {name} that were "
                f"delivered: {changed}",
                hint="Empty the sink (drop what the adapter created in it) and run `taut sinks --forget "
                f"{self.declaration.name}`: the next run delivers all rows.",
                location=self.declaration.location or None,
                parameters={"sink": self.declaration.name, "table": str(name)},
                sqlstate="55000",
            )
        return TableDelta(table=name, rows=table.read(self.job.base, version), reason=changed)

    def _as_inserts(self, sink: Sink, delta: TableDelta) -> TableDelta:
        """All rows of a table, for a sink that cannot replace: as new ones, if it has none yet."""
        if delta.rows is None or sink.capabilities.replaces:
            return delta
        return TableDelta(table=delta.table, change=RowChange(added=delta.rows), reason=delta.reason)

    def _ensure(self, sink: Sink, name: TableName, version: Version) -> Reason | None:
        """The sink has what stands for a table; why it takes all rows, if it is built anew."""
        schema = self._schema(name, version)
        if self._ensured.get(name) != schema:
            self._rebuilds.pop(name, None)
            key = self.declaration.key_of(name)
            if uses_keys(self.declaration.format):
                columns_of_key(self.declaration.name, name, schema.fieldNames(), key)
            reason = self._journal.ensure(sink, name, schema, key)
            if reason is not None:
                self._rebuilds[name] = reason
            self._ensured[name] = schema
        return self._rebuilds.get(name)

    def _schema(self, name: TableName, version: Version) -> Any:
        """The columns of the version that is delivered: the definitions may be ahead of it, and spell a
        column in another way than the lake, which keeps the name that it got first."""
        stored = self._table(name).schema_at(version)
        defined = self.job.graph.schemas.get(name)
        return stored if defined is None else _with_defined_types(stored, defined)

    def _table(self, name: TableName) -> LakeTable:
        return self.job.lake_table(name)

    def _exists(self, name: TableName) -> bool:
        return name in self.job.tables or self.job.lake.exists(name)


def _with_defined_types(stored: StructType, defined: StructType) -> StructType:
    """The columns of a version; those that the definitions have too with the types that are given there:
    Iceberg has fewer types than Spark."""
    fields = {field.name: field for field in defined.fields}
    columns = [
        fields[field.name]
        if field.name in fields and _lake_type(fields[field.name].dataType) == _lake_type(field.dataType)
        else field
        for field in stored.fields
    ]
    has_all = len(columns) == len(fields) and all(fields.get(field.name) is field for field in columns)
    return defined if has_all else StructType(columns)


def _lake_type(kind: DataType) -> str:
    """As what Iceberg stores a type, whatever may be NULL in it."""
    integers = re.sub(r"\b(tinyint|smallint)\b", "int", kind.simpleString())
    return re.sub(r"\b(var)?char\(\d+\)", "string", integers)


def _moves_rows(table: LakeTable, delivered: Version | None, published: Version) -> bool:
    before = NO_VERSION if delivered is None else delivered
    return table.change_between(before, published).kind is not ChangeKind.NONE


def _reasons(by_table: Mapping[TableName, Reason | None]) -> list[events.DatasetReason]:
    return [
        events.DatasetReason(dataset=str(table), reason=reason)
        for table, reason in by_table.items()
        if reason is not None
    ]


def needs_attention(error: Exception) -> bool:
    """Whether no further try can end a failed delivery: the sink's error says so itself.

    Errors that are not of a sink, such as those of the lake, and those of adapters that other people wrote
    are tried again.
    """
    return (
        isinstance(error, TautochroneError)
        and error.error_class.startswith(_SINK_CLASSES)
        and not error.retryable
    )


class DeliveryWorker(SinkWorker):
    """Delivers the newest published checkpoint to one sink. See `SinkWorker`."""

    def __init__(self, job: Job, declaration: SinkDeclaration) -> None:
        super().__init__(job, declaration.name, poll_s=_POLL_S, first_pause_s=_FIRST_PAUSE_S)
        self.policy = declaration.policy
        self._declaration = declaration
        self._attempts = declaration.attempts
        self._delivery = Delivery(job, declaration)
        self._is_login_refused = False
        self._needs_attention = False

    @property
    def is_skipping(self) -> bool:
        return self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures >= self._attempts

    def _gives_up(self) -> bool:
        return self._needs_attention or self._failures >= _LAST_TRIES

    def _work(self) -> None:
        if self._needs_attention and not (self._is_login_refused and self._has_new_secrets()):
            return
        self._needs_attention = self._is_login_refused = False
        while self._delivery.deliver():
            pass
        self._failures, self.error = 0, None
        self._settle()

    def _on_failure(self, error: Exception) -> None:
        self._delivery.reset_after_failure()
        journal = self._delivery.journal
        error_class = error.error_class if isinstance(error, TautochroneError) else ""
        if isinstance(error, SinkError):
            error.location = error.location or self._declaration.location or None
        self._is_login_refused = error_class == _LOGIN_REFUSED
        has_new_secrets = self._is_login_refused and self._has_new_secrets()
        self._needs_attention = needs_attention(error) and not has_new_secrets
        is_skipped = self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures == self._attempts
        text = self._failure_text(error)
        if journal.fence:
            journal.record_failure(
                text, failures=self._failures, skips=is_skipped, attention=self._needs_attention
            )
        self._report_failure(error, text, is_last=self._needs_attention)
        if is_skipped:
            self._job.emit(
                events.SinkSkipped(
                    sink=self.name,
                    failures=self._failures,
                    reason=Reason.of(ReasonCode.SINK_FAILED_TOO_OFTEN),
                )
            )
        if not self._needs_attention:
            if isinstance(error, SinkError) and error_class == "SINK_NOT_REACHABLE":
                reason = Reason.of(ReasonCode.SINK_SERVER_AWAY, text=error.message)
                self._job.emit(events.SinkWaiting(sink=self.name, reason=reason))
            self._pause()

    def _has_new_secrets(self) -> bool:
        """Read the options again; whether they differ from those that were refused, and are used now."""
        settings = self._job.settings.sinks.get(self.name)
        if settings is None or settings.reread is None:
            return False
        try:
            options = {**self._declaration.options, **settings.reread()}
        except SettingsError:
            # The file may be missing while it is replaced. The refusal, which is reported, still stands.
            return False
        if options == self._declaration.options:
            return False
        self._declaration = replace(self._declaration, options=options)
        self._close()
        self._delivery = Delivery(self._job, self._declaration)
        reason = Reason.of(ReasonCode.SINK_SECRETS_CHANGED)
        self._job.emit(events.SinkLoginAgain(sink=self.name, reason=reason))
        return True

    def _close(self) -> None:
        try:
            self._delivery.close()
        except (SinkError, OSError) as error:
            self._job.emit(events.SinkCloseFailed(sink=self.name, error=str(error), error_class="SINK_CLOSE"))
