"""Which partition of a topic a row belongs to, so that an audit compares partition by partition."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from tautochrone.model.sink import Digest

__all__ = ["DEFAULT_PARTITIONER", "WHOLE_TOPIC", "PartOf", "murmur2", "part_digests", "part_of"]

WHOLE_TOPIC = ""
DEFAULT_PARTITIONER = "murmur2_random"
"""That of Kafka's Java client: programs that write or join by key agree with it."""
PartOf = Callable[[str | None, int], str]
"""From the key of a record, and the partition that it is in, to the part of the topic; -1: in none."""


def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client, without its sign.

    >>> murmur2(b"kafka") % 3
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
    "murmur2": murmur2,
    "murmur2_random": murmur2,
}


def part_of(client: Mapping[str, str], key: tuple[str, ...], at_start: int, now: int) -> PartOf:
    """How rows are assigned to parts.

    Args:
        client: the properties of Kafka's client.
        key: the columns of the table's key. Records without a key go to any partition.
        at_start: the number of partitions when the topic was claimed.
        now: the same today. Partitions that came later take keys of others.
    """
    hash_of = _HASHES.get(client.get("partitioner", DEFAULT_PARTITIONER))
    if hash_of is None or not key or at_start != now:
        return lambda _key, _partition: WHOLE_TOPIC
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
