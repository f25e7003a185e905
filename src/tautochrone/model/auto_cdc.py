"""AUTO CDC: how a flow's change events become the rows of its streaming table, by the table's key.

For how long a table remembers the deletions of keys is a property of the table.

The sequence of a change event that came through Kafka: where it stands in the database's log and in Kafka.

    STRUCT<generation, …position, is_upsert?, offset, …row?, is_upsert?, topic, partition, digest>

The fields before `is_upsert` or `offset` are the position in the log; there are none where offsets alone
order the events. A log's positions begin lower after a failover or a restore. Offsets cannot tell that from
an event that its connector sends again, so both are needed (`spark.execute.change_order`).

The property `tautochrone.position-restarts` of the table says from which offsets on the positions are those
of another log: a JSON object as Spark's option `startingOffsets` takes it, or a list of such, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tautochrone.errors import DefinitionError
from tautochrone.model.log_table import duration_ms

__all__ = [
    "APPLY_PREFIX",
    "DELETE_COLUMN",
    "DIGEST",
    "END_COLUMN",
    "EVENTS_SET_ASIDE",
    "GENERATION",
    "IS_UPSERT",
    "OFFSET",
    "PARTITION",
    "POSITION_RESTARTS",
    "SEQUENCE_COLUMN",
    "START_COLUMN",
    "TOMBSTONE_RETENTION",
    "TOPIC",
    "TRUNCATE_COLUMN",
    "AutoCdc",
    "ColumnChoice",
    "KeyedApply",
    "MergeColumns",
    "Restart",
    "column_list",
    "column_named",
    "common_auto_cdc",
    "keyed_apply_of",
    "position_restarts",
    "restarts_text",
    "tombstone_retention_ms",
    "with_kept_columns",
]


START_COLUMN, END_COLUMN = "__START_AT", "__END_AT"
"""Columns of a table of SCD type 2: from which sequence value on, and up to which, a row was current."""

SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN = "__taut_sequence", "__taut_delete", "__taut_truncate"
"""What the query of an AUTO CDC flow yields besides the columns of its table."""


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Some columns, or all but some."""

    names: tuple[str, ...]
    is_except: bool = False

    def of(self, columns: Sequence[str], location: str) -> tuple[str, ...]:
        """The chosen ones of these columns, in their order; case does not matter, as in Spark.

        Raises:
            DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
        """
        for name in self.names:
            column_named(name, columns, location)
        lowered = {name.lower() for name in self.names}
        return tuple(column for column in columns if (column.lower() in lowered) != self.is_except)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCdc:
    """What a flow says. Expressions are SQL text or Columns of PySpark, over the columns of the source.

    Attributes:
        keys: columns that identify a row of the table.
        sequence: orders the events of a key.
        delete: an event that meets this condition removes the row.
        truncate: an event that meets this condition removes all rows.
        columns: which columns of the source the table has; None: all.
        is_ignoring_nulls: a NULL in an event leaves the column as it was.
        null_ignoring: in which columns NULL is ignored, if it is; None: in all.
        scd_type: 1, the table holds the newest row of each key; 2, it holds all of them.
        tracked: changes of which columns begin a new row of type 2; None: of all.
        snapshots_of: the parts of the source's name, if its rows are no events. At each checkpoint the table
            takes what changed in them since the last one; the sequence value is the time of the checkpoint.
        takes_snapshots: the events are the differences of snapshots.
        is_once: the source is to be read once.
    """

    keys: tuple[str, ...]
    sequence: Any
    delete: Any = None
    truncate: Any = None
    columns: ColumnChoice | None = None
    is_ignoring_nulls: bool = False
    null_ignoring: ColumnChoice | None = None
    scd_type: int = 1
    tracked: ColumnChoice | None = None
    snapshots_of: tuple[str, ...] | None = None
    takes_snapshots: bool = False
    is_once: bool = False

    def check(self, location: str) -> None:
        """What can be checked without the source's columns.

        Raises:
            DefinitionError: `AUTO_CDC_WITHOUT_KEYS`, `AUTO_CDC_SCD_TYPE`, `AUTO_CDC_ONLY_SCD_TYPE_2`,
                `AUTO_CDC_ONLY_SCD_TYPE_1`.
        """
        if not self.keys:
            raise DefinitionError(
                "AUTO_CDC_WITHOUT_KEYS",
                "An AUTO CDC flow names no keys",
                location=location,
                hint="name the columns that identify a row: KEYS (id), or keys=['id']",
            )
        if self.scd_type not in (1, 2):
            raise DefinitionError(
                "AUTO_CDC_SCD_TYPE",
                f"An AUTO CDC flow stores its table as SCD type {self.scd_type}",
                sqlstate="0A000",
                location=location,
                hint="there are types 1 (the newest row of each key) and 2 (all of them)",
            )
        if self.tracked is not None and self.scd_type != 2:
            raise DefinitionError(
                "AUTO_CDC_ONLY_SCD_TYPE_2",
                "TRACK HISTORY is for tables of SCD type 2, and the flow's table is of type 1",
                location=location,
                hint="add STORED AS SCD TYPE 2, or leave the tracked columns out",
            )
        if self.truncate is not None and self.scd_type != 1:
            raise DefinitionError(
                "AUTO_CDC_ONLY_SCD_TYPE_1",
                "APPLY AS TRUNCATE is for tables of SCD type 1, and the flow's table is of type 2",
                sqlstate="0A000",
                location=location,
                hint="a table of type 2 keeps what was there; send an event of deletion for each key",
            )

    def merge_columns(self, query_columns: Sequence[str], location: str) -> MergeColumns:
        """The roles of the columns that the flow's query yields.

        Raises:
            DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
        """
        special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
        columns = [name for name in query_columns if name not in special]
        keys = tuple(column_named(name, columns, location) for name in self.keys)
        values = tuple(name for name in columns if name not in keys)
        tracked = self._chosen(self.tracked, columns, location)
        null_ignoring = self._chosen(self.null_ignoring, columns, location) if self.is_ignoring_nulls else ()
        return MergeColumns(
            keys=keys,
            values=values,
            tracked=tuple(name for name in tracked if name not in keys),
            null_ignoring=tuple(name for name in null_ignoring if name not in keys),
        )

    def _chosen(self, choice: ColumnChoice | None, columns: Sequence[str], location: str) -> tuple[str, ...]:
        """The chosen columns of the table. One that the table leaves out may be named after EXCEPT too."""
        if choice is None:
            return tuple(columns)
        if self.columns is not None and self.columns.is_except and choice.is_except:
            left_out = {name.lower() for name in self.columns.names}
            names = tuple(name for name in choice.names if name.lower() not in left_out)
            choice = replace(choice, names=names)
        return choice.of(columns, location)

    @property
    def text(self) -> str:
        """The same in every process."""
        return repr(
            (
                [name.lower() for name in self.keys],
                *(str(expression) for expression in (self.sequence, self.delete, self.truncate)),
                self.columns,
                self.is_ignoring_nulls,
                self.scd_type,
                self.tracked,
                *(["snapshots"] if self.snapshots_of else []),
                *([] if self.null_ignoring is None else [self.null_ignoring]),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeColumns:
    """Columns of the table by what they do in a merge. `values` are those that are no keys.

    A change of `tracked` ones begins a new row of type 2. NULL in an event leaves `null_ignoring` ones as
    they were.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    tracked: tuple[str, ...]
    null_ignoring: tuple[str, ...] = ()


def column_named(name: str, columns: Sequence[str], location: str) -> str:
    """The column as the source spells it.

    Raises:
        DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
    """
    column = next((column for column in columns if column.lower() == name.lower()), None)
    if column is None:
        raise DefinitionError(
            "AUTO_CDC_COLUMN_NOT_FOUND",
            f"An AUTO CDC flow names the column {name}, which its source or table does not have",
            sqlstate="42703",
            location=location,
            hint=f"the columns are {', '.join(columns)}; keys must be among the table's columns",
        )
    return column


def common_auto_cdc(flows: Sequence[tuple[str, AutoCdc | None, str]]) -> AutoCdc | None:
    """How the flows of one table merge; None: they append.

    Args:
        flows: name, what it says, and location of each.

    Raises:
        DefinitionError: `AUTO_CDC_FLOWS_DIFFER`.
    """
    first = next((auto_cdc for _, auto_cdc, _ in flows if auto_cdc is not None), None)
    if first is None:
        return None
    for name, auto_cdc, location in flows:
        is_alone = len(flows) == 1 or auto_cdc is None or not auto_cdc.takes_snapshots
        if auto_cdc is None or _shared(auto_cdc) != _shared(first) or not is_alone:
            raise DefinitionError(
                "AUTO_CDC_FLOWS_DIFFER",
                f"Flow {name} writes a table that another flow writes by AUTO CDC in another way",
                location=location,
                hint="flows into one table agree on keys, SCD type, tracked columns and treatment of NULL; "
                "a table of snapshots has one flow",
            )
    return first


def _shared(auto_cdc: AutoCdc) -> tuple[object, ...]:
    keys = tuple(name.lower() for name in auto_cdc.keys)
    return keys, auto_cdc.scd_type, auto_cdc.is_ignoring_nulls, auto_cdc.null_ignoring, auto_cdc.tracked


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
            of a copied row saw (see `runtime.merges.latest_events`); None: nothing was copied.
        truncate: a condition over the query's columns; an event that meets it removes all rows.
        unchanged: a column with the names of the columns whose value an event leaves as it is.
        invalid: a column with a list of texts: the values of an event that the types of their columns do
            not have, and that are NULL. None: there are none.
        invalid_is_null: such values stay NULL, and are counted; otherwise they fail the refresh.
        weight: for a table whose rows may be equal: how many rows like it an event adds, below 0 removes
            (see `runtime.merges.weighted_apply`). `keys` are all columns then.
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


GENERATION, OFFSET, IS_UPSERT = "generation", "offset", "is_upsert"
TOPIC, PARTITION, DIGEST = "topic", "partition", "digest"

POSITION_RESTARTS = "tautochrone.position-restarts"

Restart = Mapping[str, Mapping[int, int]]
"""Topic → partition → the first offset whose event has a position of the next log."""


def position_restarts(properties: Mapping[str, str], location: str) -> tuple[Restart, ...]:
    """Where the positions of a table's events began anew, oldest first; from its properties.

    Raises:
        DefinitionError: `INVALID_POSITION_RESTARTS`.

    >>> position_restarts({"tautochrone.position-restarts": '{"orders": {"0": 120}}'}, "a.py:1")
    ({'orders': {0: 120}},)
    """
    text = properties.get(POSITION_RESTARTS)
    if text is None:
        return ()
    try:
        parsed = json.loads(text)
        restarts = parsed if isinstance(parsed, list) else [parsed]
        read = tuple(
            {
                topic: {int(partition): _offset(offset) for partition, offset in offsets.items()}
                for topic, offsets in restart.items()
            }
            for restart in restarts
        )
    except (ValueError, AttributeError) as error:
        raise DefinitionError(
            "INVALID_POSITION_RESTARTS",
            f"{text!r} names no offsets of partitions",
            location=location,
            hint='such as {"orders": {"0": 120, "1": 95}}, or a list of such, oldest first',
        ) from error
    return read


def restarts_text(restarts: Sequence[Restart]) -> str:
    """The property's value, the same for equal restarts."""
    return json.dumps(list(restarts) if len(restarts) != 1 else restarts[0], sort_keys=True)


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


EVENTS_SET_ASIDE = "tautochrone.events-set-aside"
"""Under this name a table counts the events without a key or a sequence value that it does not merge."""
TOMBSTONE_RETENTION = "tautochrone.tombstone-retention"


def tombstone_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """Milliseconds, from the properties of a streaming table; None: it remembers them for ever.

    Raises:
        DefinitionError: `INVALID_TOMBSTONE_RETENTION`.

    >>> tombstone_retention_ms({"tautochrone.tombstone-retention": "2 days"}, "a.py:1")
    172800000
    """
    text = properties.get(TOMBSTONE_RETENTION)
    if text is None:
        return None
    retention_ms = duration_ms(text)
    if retention_ms is None:
        raise DefinitionError(
            "INVALID_TOMBSTONE_RETENTION",
            f"{text!r} is no duration for which a table remembers deletions",
            location=location,
            hint="such as '2 days' or '12h'",
        )
    return retention_ms
