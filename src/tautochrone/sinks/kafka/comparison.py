"""Whether the topics hold what the pointer stands for: no record was taken away, and nobody else added one.

A topic keeps its id until it is deleted, and its records their offsets. So it holds what was delivered if it
has the recorded id, if no record was deleted from its beginning or its end, if its settings delete none, and
if the records behind those of the sink are nobody else's. Compaction keeps the newest record of each key, and
is no change of a topic of newest values.

A topic that is gone, or was created again, is sent whole. Every other change is refused: readers that follow
the topic would not hear of rows that go and are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sinks.common.errors import table_changed_error, table_missing_error
from tautochrone.sinks.kafka.client import Client, ProducerSession, TopicInfo
from tautochrone.sinks.kafka.control import Claim, ControlTopic, Pointer
from tautochrone.sinks.kafka.options import Mode
from tautochrone.sinks.kafka.records import Records
from tautochrone.sinks.kafka.topics import (
    Topics,
    foreign_record_error,
    records_lost_error,
    require_kept,
    topic_changed_error,
)

__all__ = ["Comparison"]

_COUNTED_RECORDS = 100_000
"""In change logs with so many records at most they are counted at the first look of a process."""


class Comparison:
    """See the module docstring."""

    def __init__(
        self, sink: str, client: Client, control: ControlTopic, topics: Topics, records: Records
    ) -> None:
        self._sink = sink
        self._client = client
        self._control = control
        self._topics = topics
        self._records = records
        self._checked: dict[str, dict[int, int]] = {}
        """By the id of a topic, and partition, the offset before which nobody else has a record."""
        self._counted: set[str] = set()

    def changed_tables(self, tables: Sequence[TableName], max_rows: int | None) -> dict[TableName, Reason]:
        """See `model.sink.Sink.changed_tables`.

        Raises:
            SinkError: `SINK_TOPIC_CHANGED`, `SINK_TOPIC_RETENTION`, `SINK_NAME_TAKEN`.
        """
        pointer, claims = self._control.pointer, self._control.claims
        if pointer is None:
            return {}
        self._control.require_kept()
        infos = self._client.topics({claims[table].topic for table in tables if table in claims})
        settings = self._client.settings([topic for topic, info in infos.items() if info is not None])
        changed: dict[TableName, Reason] = {}
        for table in tables:
            claim = claims.get(table)
            record = None if claim is None else pointer.topics.get(claim.topic)
            if claim is None or record is None:
                changed[table] = Reason.of(ReasonCode.SINK_TABLE_UNRECORDED)
                continue
            info = infos[claim.topic]
            if info is None or info.topic_id != record.topic_id:
                self._client.forget()
                changed[table] = Reason.of(ReasonCode.SINK_TABLE_MISSING)
                continue
            require_kept(self._sink, claim.topic, Mode(claim.mode), settings[claim.topic])
            self._require_whole(table, claim, info, pointer)
            self._require_counted(table, claim, pointer, max_rows)
        return changed

    def require_unchanged(self, tables: Sequence[TableName], replaced: Sequence[TableName]) -> None:
        """Refuse to send to a topic that is not the one that was compared.

        Raises:
            SinkError: `SINK_BASE_CHANGED`; as `changed_tables`.
        """
        pointer, claims = self._control.pointer, self._control.claims
        infos = self._client.topics({claims[table].topic for table in tables if table in claims})
        for table in tables:
            claim = claims.get(table)
            if claim is None:
                raise table_missing_error(self._sink, table)
            info = infos[claim.topic]
            if info is None or info.topic_id != claim.topic_id:
                raise table_changed_error(self._sink, table)
            record = None if pointer is None else pointer.topics.get(claim.topic)
            if table not in replaced and record is not None and record.topic_id != claim.topic_id:
                raise table_changed_error(self._sink, table)
            self._require_whole(table, claim, info, pointer)

    def require_only_own(self, session: ProducerSession, tables: Sequence[TableName]) -> None:
        """Refuse a transaction if somebody else wrote between what was compared and its last records.

        They cannot be read before it ends; the next try reads them.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        for table in tables:
            claim = self._control.claims[table]
            starts = session.starts.get(claim.topic, {})
            for partition, start in starts.items():
                count = session.counts[claim.topic][partition]
                is_whole = session.ends[claim.topic][partition] - start == count
                if not is_whole or start != self._position(claim, partition):
                    raise table_changed_error(self._sink, table)

    def record_committed(self, session: ProducerSession, tables: Sequence[TableName]) -> None:
        """The sink itself wrote the records of a transaction, and Kafka the marker behind them."""
        for table in tables:
            claim = self._control.claims[table]
            for partition, end in session.ends.get(claim.topic, {}).items():
                is_next = self._client.offset_range(claim.topic, partition)[1] == end + 1
                self._checked.setdefault(claim.topic_id, {})[partition] = end + 1 if is_next else end

    def _require_whole(
        self, table: TableName, claim: Claim, info: TopicInfo, pointer: Pointer | None
    ) -> None:
        ranges = self._topics.offset_ranges(table, claim, info)
        record = None if pointer is None else pointer.topics.get(claim.topic)
        if record is not None and record.topic_id == claim.topic_id:
            for partition, end in record.ends.items():
                if partition not in ranges or ranges[partition][1] < end:
                    problem = f"lacks records before offset {end} of partition {partition}, which it had"
                    raise topic_changed_error(self._sink, table, claim.topic, problem)
        if self._first_behind(claim, ranges) is not None:
            # A newer owner may have committed meanwhile.
            self._control.refresh()
            message = self._first_behind(claim, ranges)
            if message is not None:
                raise self._unknown_record_error(table, claim, message)
        checked = self._checked.setdefault(claim.topic_id, {})
        for partition, (_, end) in ranges.items():
            checked[partition] = max(end, self._position(claim, partition))

    def _first_behind(self, claim: Claim, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """A record behind those of the newest commit; None: there is none."""
        starts = {partition: self._position(claim, partition) for partition in ranges}
        starts = {partition: start for partition, start in starts.items() if start < ranges[partition][1]}
        if not starts:
            return None
        messages = self._client.read(claim.topic, starts)
        with closing(messages):
            return next(messages, None)

    def _unknown_record_error(self, table: TableName, claim: Claim, message: Any) -> SinkError:
        if (
            self._control.is_own(message)
            and self._records.publication_of(table, message) > self._control.publication
        ):
            problem = "has records of a commit that the control topic does not have"
            return topic_changed_error(self._sink, table, claim.topic, problem)
        # A copy of a record of the sink is no record of it.
        return foreign_record_error(self._sink, table, claim.topic, message.partition(), message.offset())

    def _position(self, claim: Claim, partition: int) -> int:
        """Where the records begin that may be somebody else's."""
        pointer = self._control.pointer
        checked = self._checked.get(claim.topic_id, {}).get(partition, 0)
        record = None if pointer is None else pointer.topics.get(claim.topic)
        is_same = record is not None and record.topic_id == claim.topic_id
        ends: Mapping[int, int] = record.ends if record is not None and is_same else {}
        return max(checked, ends.get(partition, claim.starts.get(partition, 0)))

    def _require_counted(
        self, table: TableName, claim: Claim, pointer: Pointer, max_rows: int | None
    ) -> None:
        """A change log tells its rows only as a whole, and a topic that is compacted for a while loses some
        of it."""
        if claim.mode == Mode.UPSERT or (claim.topic_id in self._counted and max_rows is not None):
            return
        total = sum(pointer.topics[claim.topic].totals.values())
        if max_rows is None or total <= min(max_rows, _COUNTED_RECORDS):
            self.require_all_records(table, claim, pointer)
        self._counted.add(claim.topic_id)

    def require_all_records(self, table: TableName, claim: Claim, pointer: Pointer) -> None:
        """Refuse a change log that lacks records which it had at a commit.

        Raises:
            SinkError: `SINK_TOPIC_RETENTION`.
        """
        for partition, records in self._records.lost_records(table, pointer).items():
            problem = f"lacks {records} of its records"
            raise records_lost_error(self._sink, table, claim.topic, partition, problem)
