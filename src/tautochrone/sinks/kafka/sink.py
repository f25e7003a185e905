"""The port of sinks over Kafka: one Kafka transaction for each delivered checkpoint.

1. `write` computes the records of a table into a file of this process. Kafka does not know of them yet.
2. `prepare` sends them in a Kafka transaction, waits until the brokers have all of them, and compares by
   content.
3. `commit` adds the pointer to the same transaction and commits it. Readers with
   `isolation.level=read_committed` see rows and pointer, or nothing.
4. A new owner opens a producer with the same transactional id. Kafka ends the transaction of the older one
   and refuses whatever its producer still sends. Then it reads the control topic: a commit of which the
   answer was lost arrived if the pointer is there.

An owner commits only with a producer that it opened before it read in the control topic that no newer owner
is there. A newer one must open a producer before it writes its fence, which ends that producer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    Capabilities,
    Chunk,
    Digest,
    Intent,
    Operation,
    Published,
    Recovered,
    TransactionId,
    TransactionState,
)
from tautochrone.model.sink_abilities import (
    RowDifference,
)
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    differing_rows,
    require_fence,
    require_visible,
    same_content,
)
from tautochrone.sinks.json_rows import comparable, row_number, to_text
from tautochrone.sinks.kafka.client import Client, LoginRefusals, Session, SessionLostError, new_producer
from tautochrone.sinks.kafka.control import FENCE, Claim, ControlTopic, Pointer
from tautochrone.sinks.kafka.messages import (
    Message,
    changelog_delta,
    changelog_replacement,
    upsert_delta,
    upsert_replacement,
)
from tautochrone.sinks.kafka.options import KafkaOptions, Mode
from tautochrone.sinks.kafka.parts import part_digests
from tautochrone.sinks.kafka.spool import RunningDigest, Spool
from tautochrone.sinks.kafka.topics import PUBLICATION_HEADER, SINK_HEADER, Topics

__all__ = ["KafkaSink"]

_S = TransactionState


@dataclass(slots=True)
class _Staged:
    """An unfinished transaction of this process."""

    intent: Intent
    spools: dict[TableName, Spool] = field(default_factory=dict)

    def close(self) -> None:
        for spool in self.spools.values():
            spool.close()
        self.spools.clear()


class KafkaSink(TransactionSteps):
    """See the module docstring."""

    def __init__(
        self,
        name: str,
        options: KafkaOptions,
        make_producer: Callable[[KafkaOptions, LoginRefusals], Any] = new_producer,
    ) -> None:
        self.name = name
        self._options = options
        self._make_producer = make_producer
        self._refusals = LoginRefusals()
        self._client = Client(name, options, self._refusals)
        self._control = ControlTopic(name, self._client, options)
        self._topics = Topics(name, self._client, options, self._control)
        self._session: Session | None = None
        self._session_fence = Fence(0)
        self._sent: TransactionId | None = None
        """Whose records the open Kafka transaction has."""
        self._states: dict[TransactionId, TransactionState] = {}
        self._staged: dict[TransactionId, _Staged] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(keyed=self._options.needs_key, resumable=False)

    def published(self) -> Published | None:
        self._control.refresh()
        return None if self._control.pointer is None else self._control.pointer.published()

    def claim(self, lake: str) -> None:
        """Limit: nothing is written, so two sinks that share a control topic are not refused."""

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:  # noqa: ARG002
        """Limit: none is looked at. `require_no_other_writer` compares the topics when a process recovers."""
        return {}

    def highest_fence(self) -> Fence:
        self._control.refresh()
        return self._control.fence

    # -- owners -----------------------------------------------------------------------------------

    def fence(self, fence: Fence) -> None:
        self._require(fence)
        if self._session is not None and self._session_fence == fence:
            return
        self._drop_session()
        self._control.create()
        with self._session_errors(fence):
            producer = self._make_producer(self._options, self._refusals)
            self._session = Session(self.name, producer, self._refusals)
            # A newer owner may have come between the first look and the producer.
            self._require(fence)
            self._session_fence = fence
            if self._control.fence < fence:
                self._commit_records(self._session, [(FENCE, {"fence": int(fence)})])

    def _require(self, fence: Fence) -> None:
        self._control.refresh()
        try:
            require_fence(self.name, fence, self._control.fence)
        except SinkFencedError:
            self._drop_session()
            raise

    def _session_for(self, fence: Fence) -> Session:
        self.fence(fence)
        assert self._session is not None
        return self._session

    def _drop_session(self) -> None:
        session, self._session, self._sent = self._session, None, None
        if session is not None:
            session.close()

    @contextmanager
    def _session_errors(self, fence: Fence) -> Iterator[None]:
        """After any failure the next operation opens a new producer, which ends what this one began."""
        try:
            yield
        except SessionLostError as error:
            self._drop_session()
            self._require(fence)
            raise SinkError(
                "SINK_SESSION_LOST",
                f"Sink {self.name}: Kafka ended the transaction or its producer ({error})",
                hint="A transaction may take kafka.transaction.timeout.ms; brokers allow at most their "
                "transaction.max.timeout.ms. The next try sends it again.",
                retryable=True,
                parameters={"sink": self.name},
            ) from error
        except BaseException:
            self._drop_session()
            raise

    def _commit_records(self, session: Session, records: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Commit records of the control topic in a Kafka transaction of their own."""
        session.abort()
        self._sent = None
        session.begin()
        self._send_records(session, records)
        session.commit()
        self._client.await_decided(session.ends)
        self._control.refresh()

    def _send_records(self, session: Session, records: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for key, value in records:
            session.send(self._options.control_topic, key.encode(), to_text(value).encode())

    # -- tables -----------------------------------------------------------------------------------

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> None:
        session = self._session_for(fence)
        claim = self._topics.claim(table, schema, key)
        if claim != self._control.claims.get(table):
            with self._session_errors(fence):
                self._commit_records(session, [claim.record(table)])

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._next(Operation.BEGIN, transaction, transaction.fence)
        ended = (_S.COMMITTED, _S.ABORTED)
        self._states = {key: old for key, old in self._states.items() if old not in ended}
        self._states[transaction] = state
        self._staged.setdefault(transaction, _Staged(intent))
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[Chunk]:
        self._next(Operation.WRITE, transaction, transaction.fence)
        encoder = self._topics.encoder(table)
        removed, added = (
            iter(())
            if frame is None
            else encoder.rows(frame, self._options.chunk_rows, None if change.carried else change.rows)
            for frame in (change.removed, change.added)
        )
        if self._claim(table).mode == Mode.UPSERT:
            return self._stage(transaction, table, upsert_delta(self.name, table, encoder, removed, added))
        return self._stage(transaction, table, changelog_delta(table, encoder, transaction, removed, added))

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[Chunk]:
        self._next(Operation.WRITE, transaction, transaction.fence)
        encoder = self._topics.encoder(table)
        new_rows = encoder.rows(rows, self._options.chunk_rows)
        publication = self._publication()
        if self._claim(table).mode == Mode.UPSERT:
            present = self._topics.keys(table, publication) if publication else {}
            numbers = {key: number for key, (number, _) in present.items()}
            messages = upsert_replacement(self.name, table, encoder, new_rows, numbers)
        else:
            self._require_all_records(table)
            none: tuple[Counter[str], dict[str, Mapping[str, Any]]] = (Counter(), {})
            copies, stored = self._topics.rows(table, publication) if publication else none
            messages = changelog_replacement(table, encoder, transaction, new_rows, copies, stored)
        return self._stage(transaction, table, messages)

    def prepare(self, transaction: TransactionId, chunks: Sequence[Chunk]) -> None:
        state = self._next(Operation.PREPARE, transaction, transaction.fence)
        arrived = self._send(transaction, transaction.fence)
        try:
            same_content(self.name, chunks, arrived)
        except SinkContentError:
            self._abort_open()
            raise
        self._states[transaction] = state

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        self._next(Operation.COMMIT, transaction, fence)
        state = self._state(transaction)
        if state is _S.COMMITTING:
            # The answer was lost. A new producer ends the transaction, then the pointer says how.
            self._drop_session()
            self._session_for(fence)
            state = _S.COMMITTED if self._is_pointer(transaction) else state
        if state is not _S.COMMITTED:
            if self._session is None or self._session_fence != fence or self._sent != transaction:
                self._send(transaction, fence)
            self._states[transaction] = _S.COMMITTING
            self._commit(self._staged[transaction].intent, fence)
        self._states[transaction] = _S.COMMITTED
        self._unstage(transaction)

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._next(Operation.ABORT, transaction, fence)
        if self._sent == transaction:
            self._abort_open()
        self._states[transaction] = _S.ABORTED
        self._unstage(transaction)

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._session_for(fence)
        for transaction in list(self._staged):
            if self._states[transaction] is _S.COMMITTING:
                self.commit(transaction, fence)
            else:
                self.abort(transaction, fence)
        self._topics.require_no_other_writer()
        return self._recovered(intents)

    # -- audit ------------------------------------------------------------------------------------

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        self._control.refresh()
        encoder, part = self._topics.encoder(table), self._topics.part_of(table)
        encoded = encoder.rows(rows, self._options.chunk_rows)
        return part_digests(
            (part(encoder.key_of(row), -1), row_number(comparable(row)), 1) for row in encoded
        )

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        pointer = self._pointer_of(checkpoint)
        if table not in self._control.claims:
            return {}
        part = self._topics.part_of(table)
        if self._claim(table).mode == Mode.UPSERT:
            keys = self._topics.keys(table, pointer.publication)
            return part_digests(
                (part(key, partition), number, 1) for key, (number, partition) in keys.items()
            )
        self._require_all_records(table, pointer)
        changes = self._topics.changes(table, pointer.publication)
        return part_digests(
            (part(None, partition), row_number(comparable(row)), sign) for row, sign, partition in changes
        )

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        unknown = self.unknown_parts(table, checkpoint)
        encoder, part = self._topics.encoder(table), self._topics.part_of(table)
        in_sink, stored_row = self._topics.rows(table, self._pointer_of(checkpoint).publication)
        in_lake: Counter[str] = Counter()
        for row in encoder.rows(rows, self._options.chunk_rows):
            if part(encoder.key_of(row), -1) not in unknown:
                in_lake[comparable(row)] += 1
        known = {
            text: copies
            for text, copies in in_sink.items()
            if part(encoder.key_of(stored_row[text]), -1) not in unknown
        }
        return differing_rows(Counter(known), in_lake, limit)

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        self._control.refresh()
        pointer = self._control.at(checkpoint)
        return None if pointer is None else pointer.published()

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:
        """Compaction removes records that older checkpoints had. Of the newest one it removes none."""
        pointer = self._pointer_of(checkpoint)
        if table not in self._control.claims or self._claim(table).mode != Mode.UPSERT:
            return {}
        if pointer == self._control.pointer:
            return {}
        part = self._topics.part_of(table)
        lost = sorted(self._topics.lost_records(table, pointer))
        parts = {part(None, partition) for partition in lost}
        reason = Reason.of(
            ReasonCode.SINK_RECORDS_REMOVED,
            topic=self._claim(table).topic,
            partitions=lost,
            checkpoint=int(checkpoint),
        )
        return dict.fromkeys(sorted(parts), reason)

    def close(self) -> None:
        self._drop_session()
        for staged in self._staged.values():
            staged.close()
        self._staged.clear()
        self._topics.close()
        self._client.close()

    # -- inside -----------------------------------------------------------------------------------

    def _state(self, transaction: TransactionId) -> TransactionState:
        state = self._states.get(transaction)
        if state is None:
            return _S.COMMITTED if self._is_pointer(transaction) else _S.UNKNOWN
        return state

    def _is_pointer(self, transaction: TransactionId) -> bool:
        pointer = self._control.pointer
        return pointer is not None and pointer.transaction == transaction

    def _publication(self) -> int:
        return 0 if self._control.pointer is None else self._control.pointer.publication

    def _pointer_of(self, checkpoint: CheckpointNumber) -> Pointer:
        self._control.refresh()
        pointer = self._control.at(checkpoint)
        if pointer is None:
            newest = self._control.pointer
            require_visible(self.name, None if newest is None else newest.transaction.checkpoint, checkpoint)
        assert pointer is not None
        return pointer

    def _require_all_records(self, table: TableName, pointer: Pointer | None = None) -> None:
        """A change log says what the rows are only as a whole.

        Raises:
            SinkError: `SINK_TOPIC_RETENTION`.
        """
        pointer = pointer or self._control.pointer
        lost = {} if pointer is None else self._topics.lost_records(table, pointer)
        for partition, records in lost.items():
            if records > 0:
                topic = self._claim(table).topic
                raise SinkError(
                    "SINK_TOPIC_RETENTION",
                    f"Sink {self.name}: partition {partition} of {topic} lacks {records} of its records, so "
                    f"the rows of {table} cannot be told from it",
                    hint="Set cleanup.policy=delete and retention.ms=-1 on the topic. To get all rows again, "
                    f"delete all topics of the sink and run `taut sinks --forget {self.name}`.",
                    parameters={"sink": self.name, "table": str(table)},
                    sqlstate="55000",
                )

    def _claim(self, table: TableName) -> Claim:
        return self._control.claims[table]

    def _stage(
        self, transaction: TransactionId, table: TableName, messages: Iterator[Message]
    ) -> list[Chunk]:
        staged = self._staged[transaction]
        if table in staged.spools:
            staged.spools.pop(table).close()
        encode = self._topics.values(table).encode
        encoded = ((key, None if value is None else encode(value)) for key, value in messages)
        spool = staged.spools[table] = Spool(encoded, self._options.chunk_rows)
        return [
            Chunk(table=table, number=number, digest=digest) for number, digest in enumerate(spool.digests)
        ]

    def _unstage(self, transaction: TransactionId) -> None:
        staged = self._staged.pop(transaction, None)
        if staged is not None:
            staged.close()

    def _send(self, transaction: TransactionId, fence: Fence) -> dict[tuple[TableName, int], Digest]:
        """Send all records in a new Kafka transaction; the digests of what the brokers say that they have."""
        session = self._session_for(fence)
        headers = [
            (SINK_HEADER, self._options.transactional_id.encode()),
            (PUBLICATION_HEADER, b"%d" % (self._publication() + 1)),
        ]
        arrived: dict[tuple[TableName, int], RunningDigest] = {}
        with self._session_errors(fence):
            session.abort()
            session.begin()
            self._sent = transaction
            for table, spool in self._staged[transaction].spools.items():
                topic = self._claim(table).topic
                for chunk, (key, value) in spool.messages():
                    digest = arrived.setdefault((table, chunk), RunningDigest())
                    session.send(topic, key, value, headers, digest.add)
            session.flush()
        return {key: digest.digest() for key, digest in arrived.items()}

    def _commit(self, intent: Intent, fence: Fence) -> None:
        session = self._session
        assert session is not None
        before = {} if self._control.pointer is None else self._control.pointer.ends
        counted = {} if self._control.pointer is None else self._control.pointer.totals
        ends = {
            topic: {**before.get(topic, {}), **session.ends.get(topic, {})}
            for topic in (*before, *session.ends)
        }
        totals = {
            topic: Counter(counted.get(topic, {})) + session.counts.get(topic, Counter())
            for topic in (*before, *session.counts)
            # What an older release wrote was not counted.
            if topic in counted or topic not in before
        }
        pointer = Pointer(
            transaction=intent.transaction,
            versions={str(table): str(version) for table, version in intent.versions.items()},
            publication=self._publication() + 1,
            ends=ends,
            totals=totals,
        )
        with self._session_errors(fence):
            self._send_records(session, pointer.records())
            session.commit()
            self._sent = None
            self._client.await_decided(session.ends)
        self._control.refresh()

    def _abort_open(self) -> None:
        """Drop what the open Kafka transaction has, by force if its producer does not answer."""
        session, self._sent = self._session, None
        if session is not None:
            try:
                session.abort()
            except (SinkError, SessionLostError):
                self._drop_session()
