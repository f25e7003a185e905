"""What changed between the snapshot that a log of events leads to and a new snapshot, by key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.model.auto_cdc import DELETE_COLUMN, SEQUENCE_COLUMN, TRUNCATE_COLUMN
from tautochrone.model.names import quoted
from tautochrone.spark.execute.merge_events import row_hash

__all__ = ["ROWS_OF_KEY", "snapshot_difference"]

ROWS_OF_KEY = "__taut_rows"
"""How many rows of the new snapshot have the key."""

_IS_NEW, _HASH, _ROW = "__taut_is_new", "__taut_hash", "__taut_row"
_OLD_HASH, _NEW_HASH, _WAS_THERE = "__taut_old_hash", "__taut_new_hash", "__taut_was_there"
_SPECIAL = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)


def snapshot_difference(
    snapshot: DataFrame, log: DataFrame, schema: StructType, keys: Sequence[str], version: Column
) -> DataFrame:
    """An event for each key whose row came, changed or went, and `ROWS_OF_KEY`.

    The events are unusable if a key is NULL or has several rows in the snapshot.

    Args:
        snapshot: the rows, with the columns of `schema` without those of AUTO CDC.
        log: the events of the snapshots before, with the columns of `schema`.
        schema: of the log.
        keys: columns as `schema` spells them.
        version: becomes the sequence value.
    """
    sequence = schema[SEQUENCE_COLUMN].dataType
    fields = [field for field in schema.fields if field.name not in (*keys, *_SPECIAL)]
    values = [sf.col(quoted(field.name)) for field in fields]
    kinds = [field.dataType for field in fields]
    key_columns = [sf.col(quoted(key)) for key in keys]

    def with_hash(rows: DataFrame, order: Column, deleted: Column, *, is_new: bool) -> DataFrame:
        return rows.select(
            *key_columns,
            sf.lit(is_new).alias(_IS_NEW),
            order.cast(sequence).alias(SEQUENCE_COLUMN),
            deleted.alias(DELETE_COLUMN),
            row_hash(values, kinds).alias(_HASH),
            # A struct without fields cannot be stored.
            sf.when(sf.lit(is_new), sf.struct(*values, sf.lit(0).alias("_"))).alias(_ROW),
        )

    new = with_hash(snapshot, sf.lit(None), sf.lit(False), is_new=True)
    old = with_hash(log, sf.col(SEQUENCE_COLUMN), sf.col(DELETE_COLUMN), is_new=False)
    # The sequence value of a new row is NULL, which max_by leaves out.
    last = sf.max_by(sf.struct(sf.col(_HASH), sf.col(DELETE_COLUMN)), SEQUENCE_COLUMN)
    by_key = (
        new.unionByName(old)
        .groupBy(*key_columns)
        .agg(
            sf.count_if(_IS_NEW).alias(ROWS_OF_KEY),
            sf.max(sf.when(sf.col(_IS_NEW), sf.col(_HASH))).alias(_NEW_HASH),
            sf.any_value(_ROW, True).alias(_ROW),
            last.getField(_HASH).alias(_OLD_HASH),
            sf.coalesce(~last.getField(DELETE_COLUMN), sf.lit(False)).alias(_WAS_THERE),
        )
    )
    is_there = sf.col(ROWS_OF_KEY) > 0
    differs = sf.col(_WAS_THERE) != is_there
    changed = is_there & ~sf.col(_NEW_HASH).eqNullSafe(sf.col(_OLD_HASH))
    return by_key.where(differs | changed | (sf.col(ROWS_OF_KEY) > 1)).select(
        *key_columns,
        *(sf.col(f"{_ROW}.{quoted(field.name)}").alias(field.name) for field in fields),
        version.cast(sequence).alias(SEQUENCE_COLUMN),
        (~is_there).alias(DELETE_COLUMN),
        sf.lit(False).alias(TRUNCATE_COLUMN),
        ROWS_OF_KEY,
    )
