"""The values of key columns, as conditions by which files without such keys are not read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.model.names import quoted
from tautochrone.spark.translate.literals import UNORDERED_TYPE, has_literals, in_list, in_ranges

__all__ = ["KeyValues", "key_values"]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of one column of a key.

    Attributes:
        kind: the column's type, as its catalog string.
    """

    values: Collection[Any]
    kind: str

    def condition(self, name: str, *, or_null: bool) -> str:
        """SQL over a column called `name` that all these values meet, and perhaps others.

        >>> KeyValues({7}, "int").condition("id", or_null=True)
        '(id IN (7)) OR id IS NULL'
        """
        is_short = len(self.values) <= limits.MAX_IN_LIST_VALUES
        condition = (in_list if is_short else in_ranges)(name, self.values, self.kind)
        return f"({condition}) OR {name} IS NULL" if or_null else condition


def key_values(rows: DataFrame, keys: Sequence[str]) -> dict[str, KeyValues]:
    """By column the values of a few rows' keys. Columns whose type has no exact literals are left out."""
    kinds = dict(rows.select(*map(quoted, keys)).dtypes)
    usable = [key for key in keys if has_literals(kinds[key]) and not kinds[key].startswith(UNORDERED_TYPE)]
    collected = rows.select(*map(quoted, usable)).collect() if usable else []
    return {
        key: KeyValues({row[number] for row in collected}, kinds[key]) for number, key in enumerate(usable)
    }
