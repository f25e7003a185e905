"""The rows that the records of a table's topic tell, and the partition that a row belongs to, so that an
audit compares partition by partition.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest
from tautochrone.sinks.json_rows import comparable, row_number
from tautochrone.sinks.kafka.client import Client
from tautochrone.sinks.kafka.control import ControlTopic, Pointer
from tautochrone.sinks.kafka.options import DEFAULT_PARTITIONER, KafkaOptions, Mode
from tautochrone.sinks.kafka.topics import Topics, foreign_record_error

__all__ = ["PUBLICATION_HEADER", "PartOf", "Records", "part_digests"]

_WHOLE_TOPIC = ""
PartOf = Callable[[str | None, int], str]
"""From the key of a record, and the partition that it is in, to the part of the topic; -1: in none."""


def _murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client, without its sign.

    >>> _murmur2(b"kafka") % 3
    1
    """
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        value = value * factor & mask ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return (value ^ value >> 15) & 0x7FFFFFFF


_HASHES: dict[str, Callable[[bytes], int]] = {
    "consistent": zlib.crc32,
    "consistent_random": zlib.crc32,
    "murmur2": _murmur2,
    "murmur2_random": _murmur2,
}


def _part_of(client: Mapping[str, str], key: tuple[str, ...], at_start: int, now: int) -> PartOf:
    """How rows are assigned to parts.

    Args:
        client: the properties of Kafka's client.
        key: the columns of the table's key. Records without a key go to any partition.
        at_start: the number of partitions when the topic was claimed.
        now: the same today. Partitions that came later take keys of others.
    """
    hash_of = _HASHES.get(client.get("partitioner", DEFAULT_PARTITIONER))
    if hash_of is None or not key or at_start != now:
        return lambda _key, _partition: _WHOLE_TOPIC
    return lambda text, partition: str(hash_of((text or "").encode()) % now if partition < 0 else partition)


def part_digests(rows: Iterable[tuple[str, int, int]]) -> dict[str, Digest]:
    """The digest of each part, by its name, the hash of a row and its sign; nothing for no rows."""
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for part, number, sign in rows:
        counts[part] += sign
        totals[part] = (totals[part] + number * sign) % 2**64
    return {
        part: Digest(counts[part], f"{totals[part]:016x}") for part in counts if counts[part] or totals[part]
    }


PUBLICATION_HEADER = "taut-publication"
"""The number of the commit of a record."""


class Records:
    """See the module docstring."""

    def __init__(
        self, sink: str, client: Client, options: KafkaOptions, control: ControlTopic, topics: Topics
    ) -> None:
        self._sink = sink
        self._client = client
        self._options = options
        self._control = control
        self._topics = topics

    def part_of(self, table: TableName) -> PartOf:
        """How an audit assigns rows of the table to parts of its topic."""
        claim = self._control.claims[table]
        partitions = self._topics.require_topic(table, claim).partitions
        return _part_of(self._options.client, claim.key, len(claim.starts), partitions)

    def lost_records(self, table: TableName, pointer: Pointer) -> dict[int, int]:
        """By partition how many records of those up to a commit are gone, without partitions that lack
        none."""
        claim = self._control.claims[table]
        record = pointer.topics.get(claim.topic)
        if record is None:
            return {}
        partitions = range(self._topics.require_topic(table, claim).partitions)
        if record.topic_id != claim.topic_id:
            # Rows of the older topic may belong to any partition of the newer one.
            older = sum(record.totals.values())
            return dict.fromkeys(partitions, older) if older else {}
        counts = Counter(message.partition() for _, message in self._messages(table, pointer.publication))
        lost = {partition: record.totals.get(partition, 0) - counts[partition] for partition in partitions}
        return {partition: number for partition, number in lost.items() if number > 0}

    def row_hashes_by_key(self, table: TableName, publication: int) -> dict[str, tuple[int, int]]:
        """Of a topic of newest values the hash of each key's row, and its partition."""
        decode = self._topics.values(table).decode
        newest: dict[str, tuple[int, int | None, int]] = {}
        for written, message in self._messages(table, publication):
            key, value = message.key().decode(), message.value()
            number = None if value is None else row_number(comparable(decode(value)))
            if written >= newest.get(key, (0, None, 0))[0]:
                newest[key] = (written, number, message.partition())
        return {
            key: (number, partition) for key, (_, number, partition) in newest.items() if number is not None
        }

    def changes(self, table: TableName, publication: int) -> Iterator[tuple[Mapping[str, Any], int, int]]:
        """Of a change log each row that came (1) or went (-1), and the partition."""
        decode = self._topics.values(table).decode
        for _, message in self._messages(table, publication):
            envelope = decode(message.value())
            for row, sign in ((envelope["before"], -1), (envelope["after"], 1)):
                if row is not None:
                    yield row, sign, message.partition()

    def rows(self, table: TableName, publication: int) -> tuple[Counter[str], dict[str, Mapping[str, Any]]]:
        """The rows of a topic: copies by text, and the row by text. All of them are in memory."""
        copies: Counter[str] = Counter()
        rows: dict[str, Mapping[str, Any]] = {}
        if self._control.claims[table].mode == Mode.CHANGELOG:
            for row, sign, _ in self.changes(table, publication):
                text = comparable(row)
                copies[text] += sign
                rows[text] = row
        else:
            decode = self._topics.values(table).decode
            newest: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
            for written, message in self._messages(table, publication):
                key, value = message.key().decode(), message.value()
                if written >= newest.get(key, (0, None))[0]:
                    newest[key] = (written, None if value is None else decode(value))
            rows = {comparable(row): row for _, row in newest.values() if row is not None}
            copies.update(rows.keys())
        return Counter({text: count for text, count in copies.items() if count}), rows

    def publication_of(self, table: TableName, message: Any) -> int:
        """The number of the commit that wrote a record.

        Raises:
            SinkError: `SINK_NAME_TAKEN`, it was somebody else.
        """
        if not self._control.is_own(message):
            topic = self._control.claims[table].topic
            raise foreign_record_error(self._sink, table, topic, message.partition(), message.offset())
        return int(dict(message.headers())[PUBLICATION_HEADER])

    def _messages(self, table: TableName, publication: int) -> Iterator[tuple[int, Any]]:
        """The records of a topic up to a commit, with the numbers of their commits."""
        claim = self._control.claims[table]
        info = self._topics.require_topic(table, claim)
        starts = {part: low for part, (low, _) in self._topics.offset_ranges(table, claim, info).items()}
        for message in self._client.read(claim.topic, starts):
            written = self.publication_of(table, message)
            if written <= publication:
                yield written, message
