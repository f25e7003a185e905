"""Rows with the columns of the table that they go to."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.names import quoted

__all__ = ["align"]


def align(rows: DataFrame, schema: StructType, flow: str) -> DataFrame:
    """`rows` with the columns of the target in its order; missing nullable ones become NULL.

    Raises:
        DefinitionError: `FLOW_SCHEMA_MISMATCH` for a column that the target does not have.
    """
    columns = {column.name.lower(): column for column in schema.fields}
    extra = [name for name in rows.columns if name.lower() not in columns]
    if extra:
        raise DefinitionError(
            "FLOW_SCHEMA_MISMATCH",
            f"Flow {flow} yields columns that its table does not have: {', '.join(extra)}",
            hint="add them to the table's schema, or drop them in the flow's query",
        )
    present = {column.name.lower(): column.dataType for column in rows.schema.fields}
    return rows.select(
        *(
            _without_collation(rows[quoted(column.name)], column.name, present[column.name.lower()])
            if column.name.lower() in present
            else sf.lit(None).cast(column.dataType).alias(column.name)
            for column in schema.fields
        )
    )


def _without_collation(value: Column, name: str, data_type: DataType) -> Column:
    """Lake tables have no collations: what comes back is plain text."""
    collated = isinstance(data_type, StringType) and "collate" in data_type.simpleString()
    return value.cast(StringType()).alias(name) if collated else value
