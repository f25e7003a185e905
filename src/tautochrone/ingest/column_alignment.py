"""Rows with the columns of the table that they go to."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.names import quoted

__all__ = ["align", "aligned_columns"]


def align(rows: DataFrame, schema: StructType, flow: str, dropped: Collection[str] = ()) -> DataFrame:
    """`rows` with the columns of the target in its order; missing nullable ones become NULL.

    Args:
        dropped: columns that the target need not have.

    Raises:
        DefinitionError: `FLOW_SCHEMA_MISMATCH` for a column that the target does not have.
    """
    return rows.select(*aligned_columns(rows, schema, flow, dropped))


def aligned_columns(
    rows: DataFrame, schema: StructType, flow: str, dropped: Collection[str] = ()
) -> list[Column]:
    """The columns that `align` selects.

    Raises:
        DefinitionError: `FLOW_SCHEMA_MISMATCH`.
    """
    columns = {column.name.lower(): column for column in schema.fields}
    expected = columns.keys() | {name.lower() for name in dropped}
    extra = [name for name in rows.columns if name.lower() not in expected]
    if extra:
        raise DefinitionError(
            "FLOW_SCHEMA_MISMATCH",
            f"Flow {flow} yields columns that its table does not have: {', '.join(extra)}",
            hint="add them to the table's schema, or drop them in the flow's query",
        )
    present = {column.name.lower(): column.dataType for column in rows.schema.fields}
    return [
        _without_collation(rows[quoted(column.name)], column.name, present[column.name.lower()])
        if column.name.lower() in present
        else sf.lit(None).cast(column.dataType).alias(column.name)
        for column in schema.fields
    ]


def _without_collation(value: Column, name: str, data_type: DataType) -> Column:
    """Lake tables have no collations: what comes back is plain text."""
    collated = isinstance(data_type, StringType) and "collate" in data_type.simpleString()
    return value.cast(StringType()).alias(name) if collated else value
