"""The names of mirrored tables in a sink: two tables never get the same one, by construction.

A plain name is the database and the table with `__` between them, without the database `default`. It is
unique as long as no part has `__` in it or `_` at an end, as then it can be cut in one way only. Every other
name (also one that is too long, has characters that the system does not take, or letters that it folds) ends
in a hash of the table's whole name and `_`, at which no plain name ends.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tautochrone.model.names import TableName

__all__ = ["NameRules", "mirror_name"]

_OWN_PREFIX = "taut_"
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """Which names a system takes.

    Attributes:
        longest: characters, or bytes in UTF-8 if `in_bytes`.
        refused: a regular expression of what no name may contain.
        folds_case: the system takes names that differ in case only for the same.
    """

    longest: int
    in_bytes: bool = False
    refused: str = r"\x00"
    folds_case: bool = False


def mirror_name(table: TableName, rules: NameRules) -> str:
    """The name of a table in a sink.

    Example:
        >>> rules = NameRules(longest=63, in_bytes=True)
        >>> mirror_name(TableName("lake", ("shop",), "orders"), rules)
        'shop__orders'
        >>> mirror_name(TableName("lake", ("default",), "shop__orders"), rules)
        'shop__orders_fcaaa333cdb162b9_'
    """
    parts = [*(() if table.namespace == ("default",) else table.namespace), table.table]
    name = "__".join(parts)
    if _is_plain(parts, name, rules):
        return name
    whole_name = "\n".join((*table.namespace, table.table))
    suffix = f"_{hashlib.sha256(whole_name.encode()).hexdigest()[:_HASH_DIGITS]}_"
    stem = re.sub(rules.refused, "_", name)
    stem = stem.lower() if rules.folds_case else stem
    if f"{stem}_".lower().startswith(_OWN_PREFIX):
        # So begin the sink's own tables.
        stem = f"own_{stem[len(_OWN_PREFIX) :]}"
    while _length(stem + suffix, rules) > rules.longest:
        stem = stem[:-1]
    return stem + suffix


def _is_plain(parts: list[str], name: str, rules: NameRules) -> bool:
    if any("__" in part or part.startswith("_") or part.endswith("_") for part in parts):
        return False
    if name.lower().startswith(_OWN_PREFIX) or re.search(rules.refused, name):
        return False
    if rules.folds_case and name != name.lower():
        return False
    return _length(name, rules) <= rules.longest


def _length(text: str, rules: NameRules) -> int:
    return len(text.encode()) if rules.in_bytes else len(text)
