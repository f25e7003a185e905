"""Debezium's change events in Kafka as rows for AUTO CDC.

    from tautochrone.sources import debezium

    @dp.temporary_view
    def order_events():
        records = spark.readStream.format("kafka").option("subscribe", "shop.public.orders")….load()
        columns = "id BIGINT, state STRING, amount DECIMAL(10, 2)"
        return debezium.events(records, columns, connector="postgresql")

    dp.create_streaming_table("orders")
    dp.create_auto_cdc_flow(
        target="orders", source="order_events", keys=["id"], **debezium.AUTO_CDC,
    )

The formats are those of Debezium's documentation, "Change event values" of each connector and "New Record
State Extraction"; JSON, with or without schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tautochrone.errors import DefinitionError
from tautochrone.sources.json_events import (
    AUTO_CDC,
    IN_KAFKA,
    OPERATION,
    SEQUENCE,
    digest_of,
    event_sequence,
    in_kafka,
    parsed_json,
    struct_of,
    with_kafka_columns,
)

__all__ = ["AUTO_CDC", "events"]

_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("lsn BIGINT",),
    "mysql": ("file STRING", "pos BIGINT", "row INT"),
    "mariadb": ("file STRING", "pos BIGINT", "row INT"),
    "sqlserver": ("commit_lsn STRING", "change_lsn STRING", "event_serial_no BIGINT"),
    "oracle": ("scn DECIMAL(38, 0)",),
    "tidb": ("commit_ts BIGINT",),
}
"""Fields of an event's `source` that order the changes of a row, by connector."""

_IDENTITY: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("txId",),
    "mysql": ("server_id", "gtid"),
    "mariadb": ("server_id", "gtid"),
    "oracle": ("txId", "rs_id", "ssn", "lcr_position"),
}
"""Fields of `source` that an event has again when it is sent again, beside the time of the change."""

_OPERATIONS = ("c", "u", "d", "r", "t")

_TIMESTAMPS: Mapping[str, Callable[[Column], Column]] = {
    "millis": sf.timestamp_millis,
    "micros": sf.timestamp_micros,
    "nanos": lambda value: sf.timestamp_micros(_nanos_as_micros(value)),
}
_DECIMALS = ("precise", "string", "double")
_NOT_SENT = "__debezium_unavailable_value"
_NOT_SENT_PROBLEM = (
    "the event lacks a long value that did not change: the table needs ALTER TABLE … REPLICA IDENTITY FULL"
)
_INTEGER = r"^-?\d+$"
_BASE64 = "^(?=.)(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def events(
    records: DataFrame,
    schema: str | StructType,
    *,
    connector: str,
    flattened: bool = False,
    decimals: str = "precise",
    timestamps: str | Mapping[str, str] = "micros",
) -> DataFrame:
    """One row for each change, with the columns of the table, `_op` and `_sequence`.

    `_op` is Debezium's: `c`, `u`, `d`, `r` (read by a snapshot) or `t` (truncate). A deletion has the values
    of the row before it, as far as the database sends them. Records that are no events of rows have NULL as
    `_sequence`, which AUTO CDC refuses: `AUTO_CDC_EVENT_INVALID`. A value that does not fit its column's type
    fails the flow, as Spark's `FAILFAST` does, and so does the value that stands for a long text that
    PostgreSQL did not send because it did not change: the table needs `REPLICA IDENTITY FULL` then.

    Args:
        records: of Kafka: `value`, `topic`, `partition` and `offset`; of flattened records `key` too.
        schema: the columns to take, as DDL or a StructType. Others are left out.
        connector: which database the events come from: `postgresql`, `mysql`, `mariadb`, `sqlserver`,
            `oracle`, `tidb` (TiCDC's Debezium format). Its positions order the changes; what is sent again is
            left out, and positions that begin lower, as after a failover, are refused when they are merged.
            `kafka`: the records' offsets order them, which is right as long as they are written once.
        flattened: the records went through `ExtractNewRecordState`. They are ordered by their offsets:
            `connector` must be `kafka`. A record without a value deletes the row of its key.
        decimals: the connector's `decimal.handling.mode`.
        timestamps: the unit of times that are numbers, `millis`, `micros` or `nanos`, of all columns or by
            name. Texts such as `2026-01-31T12:00:00Z` are understood in any case.

    Raises:
        DefinitionError: `DEBEZIUM_OPTION_UNKNOWN`, `CHANGE_EVENTS_WITHOUT_OFFSETS`.
    """
    records = with_kafka_columns(records, "debezium.events")
    _check("connector", connector, ("kafka",) if flattened else (*_POSITIONS, "kafka"))
    _check("decimals", decimals, _DECIMALS)
    units = timestamps.values() if isinstance(timestamps, Mapping) else [timestamps]
    for unit in units:
        _check("timestamps", unit, tuple(_TIMESTAMPS))
    columns = struct_of(schema) if isinstance(schema, str) else schema
    sent = StructType([StructField(field.name, _sent_type(field.dataType)) for field in columns.fields])
    read = _flattened if flattened else _enveloped
    rows = read(records, sent, connector)
    values = (
        _value_or_error(
            sf.col(f"row.`{field.name}`"),
            field,
            _value(sf.col(f"row.`{field.name}`"), field.dataType, decimals, _unit(timestamps, field.name)),
        ).alias(field.name)
        for field in columns.fields
    )
    return rows.select(*values, sf.col(OPERATION), sf.col(SEQUENCE))


def _enveloped(records: DataFrame, row: StructType, connector: str) -> DataFrame:
    # Texts: their form says nothing here, and a value of another form than expected is no reason to fail.
    identity = [f"{name} STRING" for name in ("ts_ms", *_IDENTITY.get(connector, ()))]
    source = struct_of(", ".join([*_POSITIONS.get(connector, ()), *identity]))
    envelope = StructType().add("op", StringType()).add("before", row).add("after", row).add("source", source)
    # A deletion is followed by a record without a value, for Kafka's compaction.
    records_read = records.where(sf.col("value").isNotNull()).select(*_parsed("value", envelope), *IN_KAFKA)
    fields = [_unwrapped(name).alias(name) for name in envelope.names]
    unwrapped = records_read.select(*fields, *IN_KAFKA)
    operation = sf.col("op")
    names = source.names[: -len(identity)]
    position = {name: sf.col(f"source.{name}") for name in names}
    if connector in ("mysql", "mariadb"):
        # The number in a file's name grows longer: mysql-bin.999999, mysql-bin.1000000.
        position = {"digits": sf.length("source.file"), **position}
    # The row before tells apart most changes of a row that have one position.
    identifying = (sf.col(f"source.{name}") for name in source.names[len(names) :])
    digest = digest_of(operation, sf.col("before"), *identifying)
    # TiCDC sends an update that changes a key as a deletion and an insertion, in this order, with one
    # commit_ts: a key that two rows exchange in a transaction is deleted and inserted at one position.
    is_upsert = operation != "d" if connector == "tidb" else None
    has_position = next(iter(position.values()), sf.col("offset")).isNotNull()
    # An operation that came with a later version may be no row to keep.
    is_event = operation.isin(*_OPERATIONS) & has_position & in_kafka()
    # Messages that a program wrote into the log are no changes of rows.
    changes = unwrapped.where(operation.isNull() | (operation != "m"))
    return changes.select(
        sf.when(operation == "d", sf.col("before")).otherwise(sf.col("after")).alias("row"),
        operation.alias(OPERATION),
        sf.when(is_event, event_sequence(position, {}, digest, is_upsert_in_position=is_upsert)).alias(
            SEQUENCE
        ),
    )


def _flattened(records: DataFrame, row: StructType, _connector: str) -> DataFrame:
    marks = [StructField("__op", StringType()), StructField("__deleted", StringType())]
    record = StructType([*row.fields, *marks])
    # A deletion without a value has its key.
    text = sf.when(sf.col("value").isNull(), sf.col("key")).otherwise(sf.col("value"))
    texts = records.select(text.alias("text"), sf.col("value").isNull().alias("is_deleted"), *IN_KAFKA)
    records_read = texts.select(*_parsed("text", record), "is_deleted", *IN_KAFKA)
    fields = [_unwrapped(name).alias(name) for name in record.names]
    rows = records_read.select(*fields, "is_deleted", *IN_KAFKA)
    is_deleted = sf.col("is_deleted") | (sf.col("__deleted") == "true")
    is_known = sf.coalesce(sf.col("__op").isin(*_OPERATIONS), sf.lit(True))
    return rows.select(
        sf.struct(*(sf.col(f"`{name}`") for name in row.names)).alias("row"),
        sf.when(is_deleted, "d").otherwise(sf.coalesce("__op", sf.lit("u"))).alias(OPERATION),
        sf.when(is_known & in_kafka(), event_sequence({}, {}, digest_of(sf.col("__op")))).alias(SEQUENCE),
    )


def _parsed(column: str, record: StructType) -> list[Column]:
    """A record as `plain`, and as `wrapped` if it is Kafka Connect's `{"schema": …, "payload": …}`; the other
    one is NULL: a table may have columns of these names, whose values are not those of other columns."""
    text = sf.validate_utf8(sf.col(column).cast(StringType()))
    has_keys = sf.array_sort(sf.json_object_keys(text)) == sf.array(sf.lit("payload"), sf.lit("schema"))
    is_schema = sf.coalesce(sf.get_json_object(text, "$.schema").startswith("{"), sf.lit(True))
    if {"schema", "payload"} <= set(record.names):
        # A row of this table may look like a wrapper, but for the schema of a struct.
        is_schema = sf.coalesce(sf.get_json_object(text, "$.schema.type") == "struct", sf.lit(False))
    is_wrapped = sf.coalesce(has_keys, sf.lit(False)) & is_schema
    wrapper = StructType([StructField("payload", record)])
    return [
        sf.when(~is_wrapped, parsed_json(column, record)).alias("plain"),
        sf.when(is_wrapped, parsed_json(column, wrapper)).alias("wrapped"),
    ]


def _unwrapped(name: str) -> Column:
    return sf.when(sf.col("wrapped").isNotNull(), sf.col(f"wrapped.payload.`{name}`")).otherwise(
        sf.col(f"plain.`{name}`")
    )


def _sent_type(kind: DataType) -> DataType:
    """As what a column is read from JSON: text, where Debezium has several forms."""
    return (
        StringType() if isinstance(kind, (DateType, TimestampType, TimestampNTZType, DecimalType)) else kind
    )


def _value_or_error(sent: Column, field: StructField, value: Column) -> Column:
    """The value; an error for one that the database did not send, or that is none of the column's type,
    whatever the session's casts do."""
    kind = field.dataType
    not_sent = _not_sent(kind)
    if not_sent is not None:
        value = sf.when(sent == not_sent, sf.raise_error(sf.lit(_NOT_SENT_PROBLEM))).otherwise(value)
    if _sent_type(kind) == kind:
        return value
    problem = sf.concat(
        sf.lit(f"column {field.name}: "),
        sent,
        sf.lit(f" is no value of {kind.simpleString()}; see the arguments decimals and timestamps"),
    )
    return sf.when(sent.isNotNull() & value.isNull(), sf.raise_error(problem)).otherwise(value)


def _not_sent(kind: DataType) -> Column | None:
    """What stands for a long value that PostgreSQL did not send, in a column of a type."""
    data = _NOT_SENT.encode()
    if isinstance(kind, StringType):
        return sf.lit(_NOT_SENT)
    if isinstance(kind, BinaryType):
        return sf.lit(data)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        if isinstance(element, StringType):
            return sf.array(sf.lit(_NOT_SENT))
        if isinstance(element, (IntegerType, LongType)):
            return sf.array(*(sf.lit(number).cast(element) for number in data))
    return None


def _value(sent: Column, kind: DataType, decimals: str, unit: str) -> Column:
    """NULL for what is none of the type."""
    if isinstance(kind, DecimalType):
        return _unscaled(sent, kind) if decimals == "precise" else sent.try_cast(kind)
    if isinstance(kind, DateType):
        days = sf.date_add(sf.lit("1970-01-01").cast(kind), _number(sent).try_cast("int"))
        return sf.when(sent.rlike(_INTEGER), days).otherwise(_unless_number(sent).try_cast(kind))
    if isinstance(kind, TimestampType):
        time = _TIMESTAMPS[unit](_number(sent))
        return sf.when(sent.rlike(_INTEGER), time).otherwise(_unless_number(sent).try_cast(kind))
    if isinstance(kind, TimestampNTZType):
        micros = {
            "millis": _number(sent) * 1000,
            "micros": _number(sent),
            "nanos": _nanos_as_micros(_number(sent)),
        }
        epoch = sf.lit("1970-01-01 00:00:00").cast(kind)
        since = sf.make_dt_interval(
            sf.lit(0), sf.lit(0), sf.lit(0), micros[unit].cast("decimal(38,0)") / 1_000_000
        )
        return sf.when(sent.rlike(_INTEGER), epoch + since).otherwise(_unless_number(sent).try_cast(kind))
    return sent


def _number(sent: Column) -> Column:
    return sf.when(sent.rlike(_INTEGER), sent).try_cast(LongType())


def _nanos_as_micros(nanos: Column) -> Column:
    """By 1,000, as decimals: the numbers have more digits than a DOUBLE."""
    return sf.floor(nanos.cast("decimal(20,0)") / 1000).cast(LongType())


def _unless_number(sent: Column) -> Column:
    return sf.when(~sent.rlike(_INTEGER), sent)


def _unscaled(sent: Column, kind: DecimalType) -> Column:
    """A decimal from the big-endian bytes of its digits, in base64. NULL for what is no base64: a number of
    the modes `string` and `double`, of which a decoder would skip the point and the sign, or a decimal with a
    scale of its own."""
    digits = "decimal(38,0)"
    data = sf.hex(sf.unbase64(sf.when(sent.rlike(_BASE64), sent)))
    count = (sf.length(data) / 2).cast("int")
    byte_values = sf.transform(
        sf.sequence(sf.lit(1), count),
        lambda number: sf.conv(sf.substring(data, number * 2 - 1, sf.lit(2)), 16, 10).cast(digits),
    )
    first = sf.element_at(byte_values, 1)
    # Two's complement: the highest byte of a negative number counts from -128.
    signed = sf.when(first >= 128, first - 256).otherwise(first).cast(digits)
    whole = sf.aggregate(
        sf.slice(byte_values, sf.lit(2), sf.greatest(count - 1, sf.lit(0))),
        signed,
        lambda total, value: (total * 256 + value).cast(digits),
    )
    return sf.concat(whole.cast(StringType()), sf.lit(f"E-{kind.scale}")).try_cast(kind)


def _unit(timestamps: str | Mapping[str, str], column: str) -> str:
    return timestamps if isinstance(timestamps, str) else timestamps.get(column, "micros")


def _check(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DefinitionError(
            "DEBEZIUM_OPTION_UNKNOWN",
            f"debezium.events() got {argument}={value!r}",
            hint=f"one of {', '.join(known)}",
        )
