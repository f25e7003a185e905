"""Streaming tables that take updates and deletes: events are merged into the table by its key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tautochrone.errors import DefinitionError

__all__ = ["APPLY_PREFIX", "KeyedApply", "column_list", "keyed_apply_of", "with_kept_columns"]

APPLY_PREFIX = "tautochrone.apply."
"""How the names of properties begin by which a table is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedApply:
    """How the rows of a flow's query are merged.

    Attributes:
        keys: columns that identify a row of the table. NULL is a value like any other.
        sequence: columns that order the events of a key; the last event counts.
        operation: the column that `delete` looks at, which says `delete` for rows of change files that are
            keys without rows; None: there are no such files.
        delete: a condition over the query's columns; an event that meets it removes the row.
        relation: the relation of a change log whose bulk must be complete before the table has a
            version; None: it waits for nothing.
        relation_column: the input's column that names the relation of a row, if the flow takes only rows of
            `relation`: then the input is read once for all tables that say so.
        transaction, snapshot: columns with the number of an event's transaction, and with what the reader
            of a copied row saw (see `runtime.refresh.latest_events`); None: nothing was copied.
        truncate: a condition over the query's columns; an event that meets it removes all rows.
        unchanged: a column with the names of the columns whose value an event leaves as it is.
        invalid: a column with a list of texts: the values of an event that the types of their columns do
            not have, and that are NULL. None: there are none.
        invalid_is_null: such values stay NULL, and are counted; otherwise they fail the refresh.
        weight: for a table whose rows may be equal: how many rows like it an event adds, below 0 removes
            (see `runtime.refresh.weighted_apply`). `keys` are all columns then.
        copied: a condition; an event that meets it names the snapshot of a copy of the whole table.
        dropped: columns of the query that the table does not have.
        keeps_columns: once the table exists it gets no new columns.
        ignored: columns of the query that it has not got for that reason.
        absent: columns that it keeps, and that the query no longer has: NULL in rows that change.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    operation: str | None = None
    delete: str | None = None
    relation: str | None = None
    relation_column: str | None = None
    transaction: str | None = None
    snapshot: str | None = None
    truncate: str | None = None
    unchanged: str | None = None
    invalid: str | None = None
    invalid_is_null: bool = False
    weight: str | None = None
    copied: str | None = None
    dropped: tuple[str, ...] = ()
    keeps_columns: bool = False
    ignored: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def keyed_apply_of(properties: Mapping[str, str], location: str) -> KeyedApply | None:
    """From a streaming table's properties; None: it only takes appended rows.

    Raises:
        DefinitionError: `KEYED_APPLY_INCOMPLETE`.

    >>> keyed_apply_of({"tautochrone.apply.keys": "id", "tautochrone.apply.sequence": "point"}, "a.py:1").keys
    ('id',)
    """
    prefixed = {name: text for name, text in properties.items() if name.startswith(APPLY_PREFIX)}
    texts = {name.removeprefix(APPLY_PREFIX): text for name, text in prefixed.items()}
    if not texts:
        return None
    keys, sequence = (_columns(texts.get(name, "")) for name in ("keys", "sequence"))
    if not keys or not sequence:
        raise DefinitionError(
            "KEYED_APPLY_INCOMPLETE",
            f"A table that events are merged into needs {APPLY_PREFIX}keys and {APPLY_PREFIX}sequence",
            location=location,
            hint="name the columns that identify a row, and those that order its events",
        )
    return KeyedApply(
        keys=keys,
        sequence=sequence,
        operation=texts.get("operation"),
        delete=texts.get("delete"),
        relation=texts.get("relation"),
        relation_column=texts.get("relation_column"),
        transaction=texts.get("transaction"),
        snapshot=texts.get("snapshot"),
        truncate=texts.get("truncate"),
        unchanged=texts.get("unchanged"),
        invalid=texts.get("invalid"),
        weight=texts.get("weight"),
        copied=texts.get("copied"),
        invalid_is_null=texts.get("invalid_values") == "null",
        dropped=_columns(texts.get("dropped", "")),
        keeps_columns=texts.get("columns") == "kept",
        ignored=_columns(texts.get("ignored", "")),
        absent=_columns(texts.get("absent", "")),
    )


def with_kept_columns(
    properties: Mapping[str, str], query: Sequence[str], stored: Sequence[str]
) -> dict[str, str]:
    """The properties of a table that keeps its columns.

    Args:
        query: the columns that the table would get.
        stored: those that it has.

    >>> with_kept_columns({}, ["id", "b"], ["id", "a"])
    {'tautochrone.apply.ignored': 'b', 'tautochrone.apply.absent': 'a'}
    """
    of_query, of_table = ({name.lower() for name in names} for names in (query, stored))
    return {
        **properties,
        f"{APPLY_PREFIX}ignored": column_list([name for name in query if name.lower() not in of_table]),
        f"{APPLY_PREFIX}absent": column_list([name for name in stored if name.lower() not in of_query]),
    }


def column_list(names: Sequence[str]) -> str:
    """Names of columns as the text of a property: separated by commas, or JSON where that is ambiguous.

    >>> column_list(["id", "day"])
    'id, day'
    >>> column_list(["first, last"])
    '["first, last"]'
    """
    plain = ", ".join(names)
    return plain if _columns(plain) == tuple(names) else json.dumps(list(names), ensure_ascii=False)


def _columns(text: str) -> tuple[str, ...]:
    if text.startswith('["'):
        try:
            return tuple(json.loads(text))
        except ValueError:
            # A column's name may begin like a list.
            pass
    return tuple(name.strip() for name in text.split(",") if name.strip())
