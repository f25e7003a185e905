"""What tasks make of a database's texts, beside what Spark makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from tautochrone.sources.capture.typed_rows import TextFormat, typed_rows

__all__ = ["count_equal_values"]


def count_equal_values(
    texts: Sequence[Mapping[str, str | None]], frame: DataFrame, text_format: TextFormat
) -> int:
    """How many values tasks read of rows: each is the value that Spark reads. The others they leave
    to it.

    Args:
        frame: what Spark reads of the same rows, in the same order.
    """
    schema, count = to_arrow_schema(frame.schema), 0
    expected = frame.toArrow().cast(schema)
    for number, row in enumerate(texts):
        for field in schema:
            text = pa.array([row[field.name]], pa.string())
            read = typed_rows({field.name: text}, 1, pa.schema([field]), text_format)
            if read is not None:
                value = expected[field.name][number : number + 1].combine_chunks()
                # NaN is not equal to itself.
                assert str(read.column(0)) == str(value), (field, row[field.name])
                count += text.null_count == 0
    return count
