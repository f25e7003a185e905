"""What happened to the rows of a table, apart from what the log says, between two fingerprints of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.sources.postgresql.partitions import Partition, attached, has_lost_partitions
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["Difference", "difference"]

_IDENTITY, _COLUMNS, _FILES, _ATTRIBUTES, _KEY, _ORIGIN, _PARTITIONS = range(7)


@dataclass(frozen=True, slots=True)
class Difference:
    """
    Attributes:
        change: what was changed, as a part of a sentence; empty: nothing that the log does not have.
        has_other_key: a copy cannot mend it.
        attached: partitions whose rows must be copied; empty: those of the whole table must.
    """

    change: str = ""
    has_other_key: bool = False
    attached: Sequence[Partition] = ()

    def __bool__(self) -> bool:
        return bool(self.change)


def difference(before: str | None, table: CapturedTable) -> Difference:
    """Compare a table with the fingerprint that it had.

    ALTER TABLE may write the rows anew, such as `ALTER COLUMN … TYPE … USING …` with the same type: then
    files and attributes are others. Files alone are others after VACUUM FULL or TRUNCATE, attributes alone
    after SET DEFAULT.
    """
    if not before:
        return Difference("came, or must be copied")
    old, new = before.split("/"), table.fingerprint.split("/")
    if old == new:
        return Difference()
    if len(old) <= _KEY:
        # An earlier release wrote it, without the parts that follow.
        if old[_IDENTITY] != new[_IDENTITY]:
            return Difference("was dropped and made anew, got another key, or left the publication", True)
        old += new[_KEY:]
    if old[_KEY] != new[_KEY]:
        return Difference("got another key", True)
    if old[_ORIGIN] != new[_ORIGIN]:
        return Difference("was dropped and made anew, or its publication was changed")
    if old[_COLUMNS] != new[_COLUMNS]:
        return Difference("got other columns")
    if table.partitions is not None:
        return _of_partitions(old[_PARTITIONS], table.partitions)
    if old[_FILES] != new[_FILES] and old[_ATTRIBUTES] != new[_ATTRIBUTES]:
        return Difference("was written anew by ALTER TABLE")
    return Difference()


def _of_partitions(before: str, partitions: Sequence[Partition]) -> Difference:
    if has_lost_partitions(before, partitions):
        return Difference("has partitions that were detached, dropped, truncated or written anew")
    came = attached(before, partitions)
    return Difference("has partitions that were attached", attached=came) if came else Difference()
