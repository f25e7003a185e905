"""Maxwell's JSON messages in Kafka as rows for AUTO CDC.

    from tautochrone.sources import maxwell

    @dp.temporary_view
    def order_events():
        records = spark.readStream.format("kafka").option("subscribe", "maxwell")….load()
        columns = "id BIGINT, state STRING, amount DECIMAL(10, 2)"
        return maxwell.events(records, columns, keys=["id"], ordered_by="position", table="shop.orders")

    dp.create_streaming_table("orders")
    dp.create_auto_cdc_flow(target="orders", source="order_events", keys=["id"], **maxwell.AUTO_CDC)

The format is that of Maxwell's documentation, "Data Format" and "Bootstrapping".
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DecimalType, LongType, StringType, StructType

from tautochrone.sources.json_events import (
    AUTO_CDC,
    IN_KAFKA,
    OPERATION,
    change_events,
    columns_of,
    digest_of,
    known_argument,
    operation_of,
    parsed_json,
    sent_columns,
    with_kafka_columns,
    without_other_tables,
)

__all__ = ["AUTO_CDC", "events"]

_ORDERS = ("position", "offset")
_OPERATIONS = {"insert": "c", "bootstrap-insert": "r", "update": "u", "delete": "d"}
_NO_CHANGES = "^(bootstrap-(start|complete)|(table|database)-(create|alter|drop))$"
_LAST = 2**63 - 1
_IDENTITY = ("type", "old", "ts", "xid", "server_id", "gtid")


def events(
    records: DataFrame,
    schema: str | StructType,
    *,
    keys: Sequence[str],
    ordered_by: str,
    table: str | None = None,
    time_zone: str = "UTC",
) -> DataFrame:
    """One row for each change of a row, with the columns of the table, `_op` and `_sequence`.

    `_op` is `c`, `u`, `d` or `r` (a row of a bootstrap). An update that changes a key is two events: a
    deletion, which has only the old key, and the row with the new one. Definitions of tables and the start
    and end of a bootstrap are left out. Messages that are no changes have NULL as `_sequence`, which AUTO CDC
    refuses: `AUTO_CDC_EVENT_INVALID`. A value that does not fit its column's type fails the flow. Maxwell
    writes no truncations.

    Args:
        records: of Kafka: `value`, `topic`, `partition` and `offset`.
        schema: the columns to take, as DDL or a StructType. Others are left out.
        keys: those of the AUTO CDC flow.
        ordered_by: what orders the changes of a row. `position`: that in the binlog; it needs Maxwell's
            `output_binlog_position`, and `output_xoffset` for several changes of one key in one statement,
            where else the offset decides. What is sent again is left out, and positions that begin lower, as
            after a failover, are refused when they are merged. Rows of a bootstrap have no position and count
            where they come. `offset`: the records' offsets, which is right as long as they are written once.
        table: `database.table`, of a topic that has several.
        time_zone: the zone in which the texts of TIMESTAMP columns are.

    Raises:
        DefinitionError: `CHANGE_EVENTS_OPTION_UNKNOWN`, `CHANGE_EVENTS_WITHOUT_OFFSETS`.
    """
    records = with_kafka_columns(records, "maxwell.events")
    columns = columns_of(schema, keys, "maxwell.events")
    by_position = known_argument("maxwell.events", "ordered_by", ordered_by, _ORDERS) == "position"
    sent = sent_columns(columns, (DecimalType,))
    message = (
        StructType()
        .add("database", StringType())
        .add("table", StringType())
        .add("type", StringType())
        .add("position", StringType())
        .add("xoffset", LongType())
        .add("commit", BooleanType())
        .add("ts", StringType())
        .add("xid", StringType())
        .add("server_id", StringType())
        .add("gtid", StringType())
        .add("data", sent)
        .add("old", sent)
    )
    named = records.where(sf.col("value").isNotNull()).select(
        parsed_json("value", message).alias("event"), *IN_KAFKA
    )
    kind = sf.col("event.type")
    rows = without_other_tables(named, table).where(~sf.coalesce(kind.rlike(_NO_CHANGES), sf.lit(False)))
    file = sf.regexp_extract("event.position", "^(.+):([0-9]+)$", 1)
    changes = rows.select(
        sf.col("event.data").alias("row"),
        "event.old",
        operation_of(kind, _OPERATIONS).alias(OPERATION),
        sf.when(sf.col("event.position").isNotNull(), file).alias("file"),
        sf.regexp_extract("event.position", ":([0-9]+)$", 1).try_cast("bigint").alias("pos"),
        # The last row of a transaction has no number.
        sf.when(sf.col("event.commit"), sf.lit(_LAST)).otherwise(sf.col("event.xoffset")).alias("xoffset"),
        digest_of(*(sf.col(f"event.{name}") for name in _IDENTITY)).alias("digest"),
        *IN_KAFKA,
    )
    is_known = sf.col(OPERATION).isNotNull()
    position = {}
    if by_position:
        is_known &= sf.col("pos").isNotNull() | (sf.col(OPERATION) == "r")
        # The number in a file's name grows longer: mysql-bin.999999, mysql-bin.1000000.
        digits = sf.length("file")
        position = {"digits": digits, **{name: sf.col(name) for name in ("file", "pos", "xoffset")}}
    return change_events(
        changes,
        columns,
        sent,
        keys,
        position,
        {},
        sf.col("digest"),
        is_known=is_known,
        time_zone=time_zone,
        binary=lambda text: sf.to_binary(text, sf.lit("base64")),
    )
