"""The partitions of a table, and what became of them between two looks.

The log says nothing of partitions that are attached, detached, dropped or truncated by themselves: their rows
come and go without an event. So the tree of partitions is part of a table's fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PARTITIONS_SQL", "Partition", "attached", "encoded", "has_lost_rows"]

PARTITIONS_SQL = """
       (SELECT json_agg(json_build_array(
                   t.relid::oid::bigint, t.parentrelid::oid::bigint, h.xmin::text, m.relfilenode::bigint,
                   t.isleaf,
                   -- ATTACH PARTITION updates all columns, which CREATE TABLE made together with the type.
                   y.xmin = h.xmin AND EXISTS (
                       SELECT FROM pg_attribute a WHERE a.attrelid = t.relid AND a.attnum > 0
                       AND a.xmin = y.xmin AND a.cmin = y.cmin),
                   -- A table's first file has its number.
                   m.relfilenode = m.oid OR m.xmin = h.xmin,
                   CASE WHEN %(with_sizes)s THEN s.nspname ELSE '' END,
                   CASE WHEN %(with_sizes)s THEN m.relname ELSE '' END,
                   CASE WHEN %(with_sizes)s AND t.isleaf THEN pg_table_size(t.relid) ELSE 0 END,
                   %(with_sizes)s AND has_table_privilege(t.relid, 'SELECT')
                       AND has_schema_privilege(m.relnamespace, 'USAGE'))
               ORDER BY t.relid)
        FROM pg_partition_tree(c.oid) t
        JOIN pg_class m ON m.oid = t.relid
        JOIN pg_namespace s ON s.oid = m.relnamespace
        JOIN pg_type y ON y.oid = m.reltype
        JOIN pg_inherits h ON h.inhrelid = t.relid
        WHERE t.level > 0)
"""
_HASH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Partition:
    """
    Attributes:
        parent: number of the table that it is directly a partition of.
        attached_by: number of the transaction that made it a partition.
        file: of its rows; another one after TRUNCATE, VACUUM FULL and some forms of ALTER TABLE.
        is_leaf: it has rows itself.
        is_created: it was empty when it became a partition, so that the log has all its rows.
        has_kept_rows: its rows were not truncated since then, so that it has all that the log has. False also
            where that cannot be told.
        schema, table, size_bytes, may_read: only where sizes were asked for.
    """

    oid: int
    parent: int
    attached_by: str
    file: int
    is_leaf: bool
    is_created: bool
    has_kept_rows: bool = True
    schema: str = ""
    table: str = ""
    size_bytes: int = 0
    may_read: bool = False

    @property
    def digest(self) -> bytes:
        text = f"{self.oid} {self.parent} {self.attached_by} {self.file}"
        return hashlib.sha256(text.encode()).digest()[:_HASH_BYTES]


def encoded(partitions: Sequence[Partition] | None) -> str:
    """As a part of a fingerprint: a few bytes for each partition, since each commit has it."""
    if partitions is None:
        return ""
    digests = b"".join(sorted(partition.digest for partition in partitions))
    return f"p{base64.urlsafe_b64encode(digests).decode()}"


def _digests(text: str) -> set[bytes]:
    data = base64.urlsafe_b64decode(text[1:])
    return {data[start : start + _HASH_BYTES] for start in range(0, len(data), _HASH_BYTES)}


def has_lost_rows(before: str, partitions: Sequence[Partition]) -> bool:
    """Whether some that were there are gone, were emptied, or were something else meanwhile; or some that
    came may have been emptied."""
    known = _digests(before)
    came = [partition for partition in partitions if partition.digest not in known and partition.is_leaf]
    return not known <= {partition.digest for partition in partitions} or not all(
        partition.has_kept_rows for partition in came
    )


def attached(before: str, partitions: Sequence[Partition]) -> list[Partition]:
    """Those with rows that may have had rows before they came into the tree."""
    known = _digests(before)
    came = {partition.oid: partition for partition in partitions if partition.digest not in known}

    def is_created(partition: Partition | None) -> bool:
        # A partition of one that was attached had its rows before.
        return partition is None or (partition.is_created and is_created(came.get(partition.parent)))

    return [partition for partition in came.values() if partition.is_leaf and not is_created(partition)]
