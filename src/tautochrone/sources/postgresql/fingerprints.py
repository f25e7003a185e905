"""What happened to the rows of a table, apart from what the log says, between two fingerprints of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.sources.postgresql.partitions import Partition, attached, has_lost_rows
from tautochrone.sources.postgresql.tables import CapturedTable

__all__ = ["Difference", "difference"]

_, _COLUMNS, _FILES, _ATTRIBUTES, _KEY, _ORIGIN, _PARTITIONS, _LAST_NUMBER = range(8)


@dataclass(frozen=True, slots=True)
class Difference:
    """
    Attributes:
        change: what was changed, as a part of a sentence; empty: nothing that the log does not have.
        attached: partitions whose rows must be copied; empty: those of the whole table must.
        columns_before: so many columns it had before others were added that are NULL in all rows that were
            there; the log has rows without these.
    """

    change: str = ""
    attached: Sequence[Partition] = ()
    columns_before: int | None = None

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
    if len(old) != len(new):
        return Difference("came, or must be copied")
    if old[_KEY] != new[_KEY]:
        return Difference("got another key")
    if old[_ORIGIN] != new[_ORIGIN]:
        return Difference("was dropped and made anew, or its publication was changed")
    if old[_COLUMNS] != new[_COLUMNS]:
        columns_before = _columns_before(old, new, table)
        return Difference("" if columns_before else "got other columns", columns_before=columns_before)
    if table.partitions is not None:
        return _of_partitions(old[_PARTITIONS], table.partitions)
    if old[_FILES] != new[_FILES] and old[_ATTRIBUTES] != new[_ATTRIBUTES]:
        return Difference("was written anew by ALTER TABLE")
    return Difference()


def _columns_before(old: Sequence[str], new: Sequence[str], table: CapturedTable) -> int | None:
    """How many columns it had, if nothing happened but that columns without a value were added."""
    if (
        len(old) <= _LAST_NUMBER
        or table.partitions is not None
        or not table.keys
        or old[_FILES] != new[_FILES]
    ):
        # Without a key all columns identify a row.
        return None
    last_number = int(old[_LAST_NUMBER])
    if any(number > last_number for number in table.filled_numbers):
        return None
    return (
        table.count_of_columns(last_number) if table.digest_of_columns(last_number) == old[_COLUMNS] else None
    )


def _of_partitions(before: str, partitions: Sequence[Partition]) -> Difference:
    if has_lost_rows(before, partitions):
        return Difference("has partitions that were detached, dropped, truncated or written anew")
    came = attached(before, partitions)
    return Difference("has partitions that were attached", attached=came) if came else Difference()
