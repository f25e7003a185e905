"""The rows of data files that belong to no version yet, as the events that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.lake import Staged
from tautochrone.model.names import quoted

__all__ = ["FILE", "POSITION", "as_events", "located_rows"]

FILE, POSITION = "__taut_file", "__taut_position"
"""Columns with the name of a row's file, and the row's position in it."""
_PATTERN = re.compile(r"[\\{}\[\]*?]")
"""By these characters Hadoop takes a path for a pattern of paths; names of tables may have them."""


def located_rows(session: SparkSession, staged: Staged, events: DataFrame, apply: KeyedApply) -> DataFrame:
    """The rows of staged files with `FILE` and `POSITION`.

    Args:
        events: of the same table.
    """
    columns = [field for field in events.schema.fields if field.name not in apply.dropped]
    locations = [_PATTERN.sub(r"\\\g<0>", str(file.location())) for file in staged.files]
    # Read by their names: a column that the table got since is NULL in all rows.
    stored = session.read.schema(type(events.schema)(columns)).parquet(*locations)
    metadata = stored.metadataColumn("_metadata")
    return stored.select("*", metadata["file_name"].alias(FILE), metadata["row_index"].alias(POSITION))


def as_events(
    located: DataFrame,
    files: Mapping[str, Mapping[str, Any]],
    values: Mapping[str | None, Column],
    events: DataFrame,
    apply: KeyedApply,
) -> DataFrame:
    """Located rows with the columns of events.

    Args:
        files: by name, values of a file, which are columns of `files` for `values`.
        values: of columns that the table does not have; of others they are NULL.
    """
    types = ", ".join(
        f"{name} {'STRING' if isinstance(value, str) else 'BIGINT'}"
        for name, value in next(iter(files.values())).items()
    )
    named = located.sparkSession.createDataFrame(
        [(name, *of_file.values()) for name, of_file in files.items()], f"{FILE} STRING, {types}"
    )
    return (
        located.alias("rows")
        .join(sf.broadcast(named).alias("files"), FILE)
        .select(
            *(
                (
                    sf.col(f"rows.{quoted(field.name)}")
                    if field.name not in apply.dropped
                    else values.get(field.name, sf.lit(None)).cast(field.dataType)
                ).alias(field.name)
                for field in events.schema.fields
            )
        )
    )
