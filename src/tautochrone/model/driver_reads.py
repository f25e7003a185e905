"""What this process itself reads of a table's data files, without a Spark job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["AppendedRows", "CollectedChange"]


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """Rows that came to a table.

    Attributes:
        counts: their number by the value of a column.
        bytes: of all of them in memory; None: more than was asked for.
    """

    counts: Mapping[str | None, int]
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedChange:
    """The rows that came and went between two versions, as Arrow tables with the table's newest columns.

    Their columns are of the types that `toArrow` of a DataFrame of the table gives. None means no rows of
    that sign. The same row may be in both, as in `RowChange`.
    """

    added: Any = None
    removed: Any = None
