"""Canal's JSON messages in Kafka (flat messages, also TiCDC's `canal-json`) as rows for AUTO CDC.

    from tautochrone.sources import canal

    @dp.temporary_view
    def order_events():
        records = spark.readStream.format("kafka").option("subscribe", "shop")….load()
        columns = "id BIGINT, state STRING, amount DECIMAL(10, 2)"
        return canal.events(records, columns, keys=["id"], ordered_by="offset", table="shop.orders")

    dp.create_streaming_table("orders")
    dp.create_auto_cdc_flow(target="orders", source="order_events", keys=["id"], **canal.AUTO_CDC)

The formats are those of Canal's `FlatMessage` and of TiCDC's "Canal-JSON Protocol".
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructType

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

_ORDERS = ("offset", "commit_ts")
_OPERATIONS = {"INSERT": "c", "INIT": "r", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}


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

    `_op` is `c`, `u`, `d`, `r` (`INIT`) or `t` (truncate). An update that changes a key is two events: a
    deletion, which has only the old key, and the row with the new one. Statements that define tables and
    TiCDC's watermarks are left out. Messages that are no changes have NULL as `_sequence`, which AUTO CDC
    refuses: `AUTO_CDC_EVENT_INVALID`. A value that does not fit its column's type fails the flow.

    Args:
        records: of Kafka: `value`, `topic`, `partition` and `offset`.
        schema: the columns to take, as DDL or a StructType. Others are left out.
        keys: those of the AUTO CDC flow.
        ordered_by: what orders the changes of a row. `commit_ts`: TiCDC's `_tidb.commitTs`; it needs
            `enable-tidb-extension=true`. What is sent again is left out, and positions that begin lower are
            refused when they are merged. `offset`: the records' offsets, then the rows' positions in the
            message, which is right as long as they are written once. Canal has no better: its times have
            whole seconds and are not in the order of commits.
        table: `database.table`, of a topic that has several.
        time_zone: the zone in which the texts of TIMESTAMP columns are: that of Canal's process, or of the
            changefeed.

    Raises:
        DefinitionError: `CHANGE_EVENTS_OPTION_UNKNOWN`, `CHANGE_EVENTS_WITHOUT_OFFSETS`.
    """
    records = with_kafka_columns(records, "canal.events")
    columns = columns_of(schema, keys, "canal.events")
    by_offset = known_argument("canal.events", "ordered_by", ordered_by, _ORDERS) == "offset"
    sent = sent_columns(columns)
    message = (
        StructType()
        .add("database", StringType())
        .add("table", StringType())
        .add("type", StringType())
        .add("isDdl", BooleanType())
        .add("data", ArrayType(sent))
        .add("old", ArrayType(sent))
        .add("es", StringType())
        .add("_tidb", StructType().add("commitTs", LongType()))
    )
    named = records.where(sf.col("value").isNotNull()).select(
        parsed_json("value", message).alias("event"), *IN_KAFKA
    )
    kind = sf.col("event.type")
    is_definition = sf.coalesce("event.isDdl", sf.lit(False)) & (kind != "TRUNCATE")
    left_out = sf.coalesce(is_definition | (kind == "TIDB_WATERMARK"), sf.lit(False))
    rows = without_other_tables(named, table).where(~left_out)
    # A message without rows keeps one, whose key is NULL: AUTO CDC refuses it.
    exploded = rows.select("*", sf.posexplode_outer("event.data").alias("number", "row"))
    # A truncation has no rows, and so no position among them.
    number = sf.coalesce("number", sf.lit(0))
    events = exploded.select(
        "event._tidb.commitTs",
        digest_of(kind, sf.col("event.es")).alias("digest"),
        *IN_KAFKA,
        number.alias("number"),
        "row",
        sf.get("event.old", number).alias("old"),
        operation_of(kind, _OPERATIONS).alias(OPERATION),
    )
    position = {} if by_offset else {"commit_ts": sf.col("commitTs")}
    return change_events(
        events,
        columns,
        sent,
        keys,
        position,
        {"row": sf.col("number")},
        sf.col("digest"),
        is_known=sf.col(OPERATION).isNotNull() & sf.col("offset" if by_offset else "commitTs").isNotNull(),
        deletions_first=not by_offset,
        time_zone=time_zone,
        binary=lambda text: sf.encode(text, "ISO-8859-1"),
    )
