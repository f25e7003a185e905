"""The port of sinks over Kafka: one Kafka transaction for each delivered checkpoint.

1. `write` computes the records of a table into a file of this process. Kafka does not know of them yet.
2. `prepare` sends them in a Kafka transaction, waits until the brokers have all of them, and compares by
   content.
3. `commit` adds the pointer to the same transaction and commits it. Readers with
   `isolation.level=read_committed` see rows and pointer, or nothing.
4. A new owner opens a producer with the same transactional id. Kafka ends the transaction of the older one
   and refuses whatever its producer still sends. Then it reads the control topic: a commit of which the
   answer was lost arrived if the pointer is there.

A delta is right on top of what the pointer says, and of topics that hold what it stands for: `begin` and
`commit` compare both (see `comparison`). Whose the topics are, and who delivers, is the subject of `control`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.lake import RowChange, Rows
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import (
    Capabilities,
    Digest,
    Intent,
    Operation,
    Published,
    Recovered,
    RowDifference,
    SentChunk,
    TransactionId,
    TransactionState,
    require_base,
)
from tautochrone.sinks.common.errors import table_missing_error
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    differing_rows,
    require_same_content,
    require_visible,
)
from tautochrone.sinks.json_rows import comparable, row_number
from tautochrone.sinks.kafka.client import Client, LoginRefusals, ProducerSession, new_producer
from tautochrone.sinks.kafka.comparison import Comparison
from tautochrone.sinks.kafka.control import Claim, ControlTopic, Owners, Pointer, TopicRecord
from tautochrone.sinks.kafka.messages import (
    EncodedMessage,
    Message,
    RunningDigest,
    Spool,
    changelog_delta,
    changelog_replacement,
    upsert_delta,
    upsert_replacement,
)
from tautochrone.sinks.kafka.options import KafkaOptions, Mode
from tautochrone.sinks.kafka.records import PUBLICATION_HEADER, Records, part_digests
from tautochrone.sinks.kafka.topics import Topics, row_too_large_error

__all__ = ["KafkaSink"]

_S = TransactionState


@dataclass(slots=True)
class _Staged:
    """An unfinished transaction of this process."""

    intent: Intent
    spools: dict[TableName, Spool] = field(default_factory=dict)

    @property
    def tables(self) -> Sequence[TableName]:
        return list(dict.fromkeys((*self.intent.versions, *self.spools)))

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
        refusals = LoginRefusals()
        self._client = Client(name, options, refusals)
        self._control = ControlTopic(name, self._client, options)
        self._owners = Owners(name, self._client, self._control, options, refusals, make_producer)
        self._topics = Topics(name, self._client, options, self._control)
        self._records = Records(name, self._client, options, self._control, self._topics)
        self._comparison = Comparison(name, self._client, self._control, self._topics, self._records)
        self._states: dict[TransactionId, TransactionState] = {}
        self._staged: dict[TransactionId, _Staged] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(keyed=self._options.needs_key, resumable=False)

    def published(self) -> Published | None:
        self._control.refresh()
        return None if self._control.pointer is None else self._control.pointer.published()

    def claim(self, lake: str) -> None:
        self._owners.claim(lake)

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> Mapping[TableName, Reason]:
        self._control.refresh()
        return self._comparison.changed_tables(tables, max_rows)

    def highest_fence(self) -> Fence:
        self._control.refresh()
        return self._control.fence

    def fence(self, fence: Fence) -> None:
        self._owners.fence(fence)

    def _require_newest_fence(self, fence: Fence) -> None:
        self._owners.require(fence)

    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> None:
        session = self._owners.session_for(fence)
        before = self._control.claims.get(table)
        claim = self._topics.claim(table, schema, key)
        if claim == before:
            return
        if before is not None and before.topic_id != claim.topic_id:
            # What a producer and a consumer know is about the older topic of this name.
            self._client.forget()
            self._owners.close_producer()
            session = self._owners.session_for(fence)
        with self._owners.errors(fence):
            self._owners.commit_records(session, [claim.record(table)])

    # -- one transaction --------------------------------------------------------------------------

    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._next_state(Operation.BEGIN, transaction, transaction.fence)
        require_base(intent, self._cached_published())
        ended = (_S.COMMITTED, _S.ABORTED)
        self._states = {key: old for key, old in self._states.items() if old not in ended}
        self._states[transaction] = state
        self._staged.setdefault(transaction, _Staged(intent))
        return state

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        self._next_state(Operation.WRITE, transaction, transaction.fence)
        mode, encoder = self._claim(table).mode, self._topics.encoder(table)
        removed, added = (
            iter(())
            if frame is None
            else encoder.rows(frame, self._options.chunk_rows, None if change.carried else change.rows)
            for frame in (change.removed, change.added)
        )
        if mode == Mode.UPSERT:
            return self._stage(transaction, table, upsert_delta(self.name, table, encoder, removed, added))
        return self._stage(transaction, table, changelog_delta(table, encoder, transaction, removed, added))

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        self._next_state(Operation.WRITE, transaction, transaction.fence)
        mode, encoder = self._claim(table).mode, self._topics.encoder(table)
        new_rows = encoder.rows(rows, self._options.chunk_rows)
        publication = self._control.publication
        if mode == Mode.UPSERT:
            present = self._records.row_hashes_by_key(table, publication) if publication else {}
            numbers = {key: number for key, (number, _) in present.items()}
            messages = upsert_replacement(self.name, table, encoder, new_rows, numbers)
        else:
            pointer = self._control.pointer
            if pointer is not None and self._is_recorded(table, pointer):
                self._comparison.require_all_records(table, self._claim(table), pointer)
            none: tuple[Counter[str], dict[str, Mapping[str, Any]]] = (Counter(), {})
            copies, stored = self._records.rows(table, publication) if publication else none
            messages = changelog_replacement(table, encoder, transaction, new_rows, copies, stored)
        return self._stage(transaction, table, messages)

    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        state = self._next_state(Operation.PREPARE, transaction, transaction.fence)
        arrived = self._send(transaction, transaction.fence)
        try:
            require_same_content(self.name, chunks, arrived)
        except SinkContentError:
            self._owners.abort_open()
            raise
        self._states[transaction] = state

    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        self._next_state(Operation.COMMIT, transaction, fence)
        if self._state(transaction) is _S.COMMITTING:
            self._settle_lost_commit(transaction, fence)
        if self._state(transaction) is not _S.COMMITTED:
            if not self._owners.has_sent(transaction, fence):
                self._send(transaction, fence)
            self._commit(self._staged[transaction].intent, fence)
        self._states[transaction] = _S.COMMITTED
        self._unstage(transaction)

    def _settle_lost_commit(self, transaction: TransactionId, fence: Fence) -> None:
        """The answer was lost. A new producer ends the transaction, then the pointer says how."""
        self._owners.close_producer()
        self._owners.session_for(fence)
        self._states[transaction] = _S.COMMITTED if self._is_pointer(transaction) else _S.PREPARED

    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._next_state(Operation.ABORT, transaction, fence)
        if self._owners.sent == transaction:
            self._owners.abort_open()
        self._states[transaction] = _S.ABORTED
        self._unstage(transaction)

    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._owners.session_for(fence)
        for transaction in list(self._staged):
            if self._states[transaction] is _S.COMMITTING:
                self._settle_lost_commit(transaction, fence)
                if self._states[transaction] is _S.COMMITTED:
                    self._unstage(transaction)
                    continue
                try:
                    self.commit(transaction, fence)
                    continue
                except SinkError as error:
                    # What it starts from is gone, so it can be committed no more.
                    if error.error_class != "SINK_BASE_CHANGED":
                        raise
            self.abort(transaction, fence)
        return self._recovered(intents)

    # -- audit ------------------------------------------------------------------------------------

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        self._control.refresh()
        encoder, part = self._topics.encoder(table), self._records.part_of(table)
        encoded = encoder.rows(rows, self._options.chunk_rows)
        return part_digests(
            (part(encoder.key_of(row), -1), row_number(comparable(row)), 1) for row in encoded
        )

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        pointer = self._pointer_of(checkpoint)
        if table not in self._control.claims or not self._is_recorded(table, pointer):
            return {}
        part = self._records.part_of(table)
        if self._claim(table).mode == Mode.UPSERT:
            keys = self._records.row_hashes_by_key(table, pointer.publication)
            return part_digests(
                (part(key, partition), number, 1) for key, (number, partition) in keys.items()
            )
        self._comparison.require_all_records(table, self._claim(table), pointer)
        changes = self._records.changes(table, pointer.publication)
        return part_digests(
            (part(None, partition), row_number(comparable(row)), sign) for row, sign, partition in changes
        )

    def differences(
        self, table: TableName, checkpoint: CheckpointNumber, rows: Rows, limit: int
    ) -> Sequence[RowDifference]:
        unknown = self.unknown_parts(table, checkpoint)
        encoder, part = self._topics.encoder(table), self._records.part_of(table)
        in_sink, stored_row = self._records.rows(table, self._pointer_of(checkpoint).publication)
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
        pointer = self._control.pointer_at(checkpoint)
        return None if pointer is None else pointer.published()

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:
        """Compaction removes records that older checkpoints had. Of the newest one it removes none."""
        pointer = self._pointer_of(checkpoint)
        if table not in self._control.claims or pointer == self._control.pointer:
            return {}
        if self._claim(table).mode != Mode.UPSERT and self._is_recorded(table, pointer):
            # Without all of its records no part of it can be told, which is an error of the audit.
            return {}
        part = self._records.part_of(table)
        lost = sorted(self._records.lost_records(table, pointer))
        parts = {part(None, partition) for partition in lost}
        reason = Reason.of(
            ReasonCode.SINK_RECORDS_REMOVED,
            topic=self._claim(table).topic,
            partitions=lost,
            checkpoint=int(checkpoint),
        )
        return dict.fromkeys(sorted(parts), reason)

    def close(self) -> None:
        self._owners.close_producer()
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

    def _cached_published(self) -> Published | None:
        return None if self._control.pointer is None else self._control.pointer.published()

    def _is_recorded(self, table: TableName, pointer: Pointer) -> bool:
        """Whether the pointer speaks of the topic that the table has now."""
        claim = self._claim(table)
        record = pointer.topics.get(claim.topic)
        return record is not None and record.topic_id == claim.topic_id

    def _pointer_of(self, checkpoint: CheckpointNumber) -> Pointer:
        self._control.refresh()
        pointer = self._control.pointer_at(checkpoint)
        if pointer is None:
            newest = self._control.pointer
            require_visible(self.name, None if newest is None else newest.transaction.checkpoint, checkpoint)
        assert pointer is not None
        return pointer

    def _claim(self, table: TableName) -> Claim:
        claim = self._control.claims.get(table)
        if claim is None:
            raise table_missing_error(self.name, table)
        return claim

    def _stage(
        self, transaction: TransactionId, table: TableName, messages: Iterator[Message]
    ) -> list[SentChunk]:
        staged = self._staged[transaction]
        if table in staged.spools:
            staged.spools.pop(table).close()
        spool = staged.spools[table] = Spool(self._encoded(table, messages), self._options.chunk_rows)
        return [
            SentChunk(table=table, number=number, digest=digest)
            for number, digest in enumerate(spool.digests)
        ]

    def _encoded(self, table: TableName, messages: Iterator[Message]) -> Iterator[EncodedMessage]:
        encode, largest = self._topics.values(table).encode, self._topics.largest_row(table)
        for key, row in messages:
            value = None if row is None else encode(row)
            size = len(key or b"") + len(value or b"")
            if largest is not None and size > largest:
                raise row_too_large_error(
                    self.name, table, (key or value or b"")[:200].decode(errors="replace"), size
                )
            yield key, value

    def _unstage(self, transaction: TransactionId) -> None:
        staged = self._staged.pop(transaction, None)
        if staged is not None:
            staged.close()

    def _send(self, transaction: TransactionId, fence: Fence) -> dict[tuple[TableName, int], Digest]:
        """Send all records in a new Kafka transaction; the digests of what the brokers say that they have."""
        session = self._owners.session_for(fence)
        staged = self._staged[transaction]
        headers = [*self._control.headers(), (PUBLICATION_HEADER, b"%d" % (self._control.publication + 1))]
        arrived: dict[tuple[TableName, int], RunningDigest] = {}
        with self._owners.errors(fence):
            self._owners.abort(session)
            self._comparison.require_unchanged(staged.tables, staged.intent.replaced)
            session.begin_transaction()
            self._owners.sent = transaction
            for table, spool in staged.spools.items():
                topic = self._claim(table).topic
                for chunk, (key, value) in spool.messages():
                    digest = arrived.setdefault((table, chunk), RunningDigest())
                    session.send(topic, key, value, headers, digest.add)
            session.flush()
            self._comparison.require_only_own(session, staged.tables)
        return {key: digest.digest() for key, digest in arrived.items()}

    def _commit(self, intent: Intent, fence: Fence) -> None:
        session = self._owners.session
        assert session is not None
        staged = self._staged[intent.transaction]
        with self._owners.errors(fence):
            require_base(intent, self._cached_published())
            self._comparison.require_unchanged(staged.tables, intent.replaced)
            pointer = Pointer(
                transaction=intent.transaction,
                versions={str(table): str(version) for table, version in intent.versions.items()},
                publication=self._control.publication + 1,
                topics=self._new_records(session, staged.tables),
            )
            self._states[intent.transaction] = _S.COMMITTING
            self._owners.send_records(session, pointer.records())
            session.commit()
            self._owners.sent = None
            self._client.await_decided(session.ends)
            self._comparison.record_committed(session, staged.tables)
        self._control.refresh()

    def _new_records(self, session: ProducerSession, tables: Sequence[TableName]) -> dict[str, TopicRecord]:
        """What each topic must be when the open transaction is committed."""
        before = {} if self._control.pointer is None else self._control.pointer.topics
        records = dict(before)
        for table in tables:
            claim = self._claim(table)
            record = before.get(claim.topic)
            if record is None or record.topic_id != claim.topic_id:
                record = TopicRecord(topic_id=claim.topic_id)
            counts = session.counts.get(claim.topic, Counter())
            records[claim.topic] = TopicRecord(
                topic_id=claim.topic_id,
                ends={**record.ends, **session.ends.get(claim.topic, {})},
                totals=Counter(record.totals) + counts,
            )
        return records
