"""What JSON formats of change events have in common: parsing, the order of a row's changes, values as text.

A format gives the rows of its messages as texts; `change_events` makes them rows for AUTO CDC. An update that
changes the key is two events: a deletion of the old key, then the row with the new one.

`_sequence` says where an event stands in the database's log and in Kafka (`model.auto_cdc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import DIGEST, GENERATION, IS_UPSERT, OFFSET, PARTITION, TOPIC

__all__ = [
    "AUTO_CDC",
    "IN_KAFKA",
    "OPERATION",
    "SEQUENCE",
    "change_events",
    "columns_of",
    "digest_of",
    "event_sequence",
    "in_kafka",
    "known_argument",
    "operation_of",
    "parsed_json",
    "sent_columns",
    "struct_of",
    "with_kafka_columns",
    "without_other_tables",
]

OPERATION, SEQUENCE = "_op", "_sequence"
IN_KAFKA = (TOPIC, PARTITION, OFFSET)
"""Where a record is: columns that Kafka's source gives."""

AUTO_CDC: Mapping[str, Any] = {
    "sequence_by": SEQUENCE,
    "apply_as_deletes": f"{OPERATION} = 'd'",
    "except_column_list": [OPERATION, SEQUENCE],
}
"""Arguments of `create_auto_cdc_flow` that fit the events. For tables that are truncated add
`apply_as_truncates="_op = 't'"`."""


def parsed_json(column: str, schema: StructType) -> Column:
    """The JSON text of `column`; a value that does not fit fails the query, and so do bytes that are no
    UTF-8, which the parser would replace."""
    return sf.from_json(sf.validate_utf8(sf.col(column).cast(StringType())), schema, {"mode": "FAILFAST"})


def struct_of(ddl: str) -> StructType:
    """The columns that a DDL text names."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def columns_of(schema: str | StructType, keys: Sequence[str], function: str) -> StructType:
    """The columns to take.

    Raises:
        DefinitionError: `CHANGE_EVENTS_OPTION_UNKNOWN`, a key is none of them.
    """
    columns = struct_of(schema) if isinstance(schema, str) else schema
    for key in keys or [""]:
        known_argument(function, "keys", key, columns.names)
    return columns


def known_argument(function: str, argument: str, value: str, known: Sequence[str]) -> str:
    """
    Raises:
        DefinitionError: `CHANGE_EVENTS_OPTION_UNKNOWN`.
    """
    if value not in known:
        raise DefinitionError(
            "CHANGE_EVENTS_OPTION_UNKNOWN",
            f"{function}() got {argument}={value!r}",
            hint=f"one of {', '.join(known)}",
        )
    return value


def sent_columns(columns: StructType, typed: tuple[type[DataType], ...] = ()) -> StructType:
    """The columns as they are read from JSON: as texts, but for some types. What is no text in JSON comes as
    its JSON, in which numbers with a fraction have the digits of a DOUBLE only."""
    return StructType(
        [
            StructField(field.name, field.dataType if isinstance(field.dataType, typed) else StringType())
            for field in columns.fields
        ]
    )


def with_kafka_columns(records: DataFrame, function: str) -> DataFrame:
    """The records, if they say where in Kafka they are.

    Raises:
        DefinitionError: `CHANGE_EVENTS_WITHOUT_OFFSETS`.
    """
    names = {name.lower() for name in records.columns}
    missing = [name for name in IN_KAFKA if name not in names]
    if missing:
        raise DefinitionError(
            "CHANGE_EVENTS_WITHOUT_OFFSETS",
            f"{function}() got records without {', '.join(missing)}",
            hint="keep the columns topic, partition and offset of Kafka's source: without them an event that "
            "was sent again cannot be told from one of another server",
        )
    types = ("string", "int", "bigint")
    cast = {name: sf.col(name).cast(kind) for name, kind in zip(IN_KAFKA, types, strict=True)}
    return records.withColumns(cast)


def in_kafka() -> Column:
    """Whether a record says where it is."""
    return reduce(lambda left, right: left & right, (sf.col(name).isNotNull() for name in IN_KAFKA))


def digest_of(*parts: Column) -> Column:
    """What an event that is sent again has in common with its first copy, beside its position and its row.
    So it has no part that a connector makes anew, such as the time at which it read the log."""
    return sf.xxhash64(sf.to_json(sf.struct(*(part.alias(f"p{n}") for n, part in enumerate(parts)))))


def event_sequence(
    log_position: Mapping[str, Column],
    position_in_message: Mapping[str, Column],
    digest: Column,
    *,
    is_upsert_in_position: Column | None = None,
    is_upsert_in_message: Column | None = None,
) -> Column:
    """The struct that orders an event, see `model.auto_cdc`.

    Args:
        log_position: in the database's log; empty where offsets order the events.
        position_in_message: among the events of one message.
        is_upsert_in_position: whether the event writes a row, where deletions come first among those of one
            position.
        is_upsert_in_message: the same, where deletions come first among those of one message.
    """
    fields = [sf.lit(0).alias(GENERATION), *(value.alias(name) for name, value in log_position.items())]
    if is_upsert_in_position is not None:
        fields.append(is_upsert_in_position.cast("int").alias(IS_UPSERT))
    fields += [sf.col(OFFSET), *(value.alias(name) for name, value in position_in_message.items())]
    if is_upsert_in_message is not None:
        fields.append(is_upsert_in_message.cast("int").alias(IS_UPSERT))
    return sf.struct(*fields, sf.col(TOPIC), sf.col(PARTITION), digest.alias(DIGEST))


def operation_of(kind: Column, operations: Mapping[str, str]) -> Column:
    """The operation that a format's name stands for; NULL for other names."""
    return sf.create_map(*(sf.lit(text) for pair in operations.items() for text in pair))[kind]


def without_other_tables(messages: DataFrame, table: str | None) -> DataFrame:
    """Messages of `database.table`, and those that name no table: they are no change events."""
    if table is None:
        return messages
    named = sf.concat_ws(".", "event.database", "event.table")
    return messages.where(sf.col("event.table").isNull() | (named == table))


def change_events(
    rows: DataFrame,
    columns: StructType,
    sent: StructType,
    keys: Sequence[str],
    log_position: Mapping[str, Column],
    position_in_message: Mapping[str, Column],
    digest: Column,
    *,
    is_known: Column,
    deletions_first: bool = False,
    time_zone: str,
    binary: Callable[[Column], Column],
) -> DataFrame:
    """One row for each change of a row, with the values, `_op` and `_sequence`.

    Args:
        rows: of `row` and `old`, structs of `sent`, `_op`, and `IN_KAFKA`.
        log_position: what orders the changes of a row in the database's log, in terms of `rows`; if it is
            empty, offsets do.
        position_in_message: among the rows of one message, in terms of `rows`.
        digest: of the message, see `digest_of`.
        deletions_first: among the changes of a row with one position, not only of one message.
        is_known: whether the message is a change whose position is known; otherwise `_sequence` is NULL.
        time_zone: in which texts of TIMESTAMP columns are.
        binary: the bytes of a text.
    """
    operation = sf.col(OPERATION)
    key_changes = (
        sf.col(f"old.`{key}`").isNotNull() & (sf.col(f"old.`{key}`") != sf.col(f"row.`{key}`"))
        for key in keys
    )
    has_new_key = (operation == "u") & sf.coalesce(reduce(lambda a, b: a | b, key_changes), sf.lit(False))
    old_key = {
        field.name: sf.coalesce(sf.col(f"old.`{field.name}`"), sf.col(f"row.`{field.name}`"))
        if field.name in keys
        else sf.lit(None).cast(field.dataType)
        for field in sent.fields
    }
    change = sf.struct(sf.col("row"), operation)
    removal = sf.struct(
        sf.struct(*(value.alias(name) for name, value in old_key.items())).alias("row"),
        sf.lit("d").alias(OPERATION),
    )
    changes = sf.when(has_new_key, sf.array(removal, change)).otherwise(sf.array(change))
    is_upsert = ~sf.col(f"change.{OPERATION}").isin("d", "t")
    exploded = rows.select(
        sf.explode(changes).alias("change"),
        *(value.alias(f"at_{name}") for name, value in ({**log_position, **position_in_message}).items()),
        *IN_KAFKA,
        digest.alias(DIGEST),
        (is_known & in_kafka()).alias("is_known"),
    )
    sequence = event_sequence(
        {name: sf.col(f"at_{name}") for name in log_position},
        {name: sf.col(f"at_{name}") for name in position_in_message},
        sf.col(DIGEST),
        # With `deletions_first` a deletion sorts before an insertion of its key at one position of the log;
        # otherwise only within one message.
        is_upsert_in_position=is_upsert if deletions_first else None,
        is_upsert_in_message=None if deletions_first else is_upsert,
    )
    values = (
        _value(sf.col(f"change.row.`{field.name}`"), read, field, time_zone, binary).alias(field.name)
        for field, read in zip(columns.fields, sent.fields, strict=True)
    )
    return exploded.select(
        *values,
        sf.col(f"change.{OPERATION}"),
        sf.when(sf.col("is_known"), sequence).alias(SEQUENCE),
    )


def _value(
    text: Column,
    read: StructField,
    field: StructField,
    time_zone: str,
    binary: Callable[[Column], Column],
) -> Column:
    kind = field.dataType
    if read.dataType == kind:
        return text
    if isinstance(kind, BinaryType):
        return binary(text)
    if isinstance(kind, (ArrayType, MapType, StructType)):
        return sf.from_json(text, sf.lit(kind.simpleString()), {"mode": "FAILFAST"})
    typed = _cast(text, kind, time_zone)
    # Also where the session's casts give NULL for such a value.
    problem = sf.concat(
        sf.lit(f"column {field.name}: "), text, sf.lit(f" is no value of {kind.simpleString()}")
    )
    return sf.when(text.isNotNull() & typed.isNull(), sf.raise_error(problem)).otherwise(typed)


def _cast(text: Column, kind: DataType, time_zone: str) -> Column:
    zoned = sf.concat_ws(" ", text, sf.lit(time_zone)) if isinstance(kind, TimestampType) else text
    return sf.when(text.isNotNull(), zoned).try_cast(kind)
