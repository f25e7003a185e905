"""The changed rows of one table in one transaction, in a file of this process until they are loaded.

StarRocks cannot take a row back from an open transaction, and aborts one that is open for too long. So rows
are computed before the transaction begins, and can be sent again after it broke.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.model.sink import Digest
from tautochrone.sinks.json_rows import to_text

__all__ = ["Spool", "SpooledRow", "batch_digest"]

_MEMORY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """A row that came (`sign` 1) or went (-1), as StarRocks's JSON loader takes it.

    Attributes:
        key: the hash of the columns of the key; that of the row in a table without one.
        hash: of the row.
    """

    sign: int
    key: str
    hash: str
    columns: Mapping[str, Any]


def batch_digest(rows: Iterable[SpooledRow]) -> Digest:
    """The digest of rows in any order."""
    count = total = 0
    for row in rows:
        count += 1
        total += row.sign * int(row.hash[:8], 16)
    return Digest(count, str(total))


class Spool:
    """Rows in numbered chunks. Small ones stay in memory.

    Attributes:
        is_replacement: the rows are all rows of the table.
    """

    def __init__(self, *, is_replacement: bool) -> None:
        self.is_replacement = is_replacement
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115

    def append(self, rows: Iterable[SpooledRow]) -> None:
        """Add a chunk."""
        listed = [[row.sign, row.key, row.hash, row.columns] for row in rows]
        self._file.write(to_text(listed).encode() + b"\n")

    def chunks(self) -> Iterator[list[SpooledRow]]:
        """What was added, chunk by chunk."""
        self._file.seek(0)
        for line in self._file:
            yield [SpooledRow(*values) for values in json.loads(line)]

    def rows(self) -> Iterator[SpooledRow]:
        for chunk in self.chunks():
            yield from chunk

    def close(self) -> None:
        self._file.close()
