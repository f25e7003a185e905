"""The log table of a capture: its columns, their values from pieces of a buffer, and the SQL that reads them.

point         end of the transaction in the log: an LSN of PostgreSQL, a binlog file's number and offset of
              MariaDB; of a copied row: where the log was when the row was copied
sequence      orders the rows of one transaction
transaction   PostgreSQL: the transaction's 64-bit number (xid8); MariaDB: the point; NULL for a copied row
committed_at  when it was committed, by the database's clock
relation      schema and name of the table, such as `public.accounts`
operation     insert, update, delete, truncate, copy, completed; copied: a table without a key, as a whole;
              copied file, change file: a data file of the table, in light captures (`model.log_table`)
columns       name → text of the value, as the database prints it: the row; for a delete its key, or the row
unchanged     columns that the update left as they were and that the log does not contain (TOAST)
snapshot      of a copied row, and of `copied`: which transactions the reader saw, as text of a `pg_snapshot`
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tautochrone.errors import IngestError

__all__ = [
    "ARROW_SCHEMA",
    "MAX_TEXT_BYTES",
    "SPARK_SCHEMA",
    "Bytes",
    "Flags",
    "Integers",
    "list_offsets",
    "literal_sql",
    "require_offsets",
    "text_column",
    "value_text_sql",
]

SPARK_SCHEMA = StructType(
    [
        StructField("point", LongType()),
        StructField("sequence", LongType()),
        StructField("transaction", LongType()),
        StructField("committed_at", TimestampType()),
        StructField("relation", StringType()),
        StructField("operation", StringType()),
        StructField("columns", MapType(StringType(), StringType())),
        StructField("unchanged", ArrayType(StringType())),
        StructField("snapshot", StringType()),
    ]
)

ARROW_SCHEMA = pa.schema(
    [
        ("point", pa.int64()),
        ("sequence", pa.int64()),
        ("transaction", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("relation", pa.string()),
        ("operation", pa.string()),
        ("columns", pa.map_(pa.string(), pa.string())),
        ("unchanged", pa.list_(pa.string())),
        ("snapshot", pa.string()),
    ]
)

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
MAX_TEXT_BYTES = 2**31 - 1
"""Of all values of a column: Arrow's offsets of strings have 32 bits, and larger ones would wrap around."""


def require_offsets(text_bytes: int) -> None:
    """
    Raises:
        IngestError: `CAPTURED_VALUES_TOO_LONG`, the values of a column have more bytes than offsets count.
    """
    if text_bytes > MAX_TEXT_BYTES:
        raise IngestError(
            "CAPTURED_VALUES_TOO_LONG",
            f"Values that the database sent at once have {text_bytes} bytes as text; "
            f"{MAX_TEXT_BYTES} are the most",
            hint="write such values by statements of fewer rows, or leave their table out with exclude=[…]; "
            "then copy the database again: --full-refresh of the log table and of the captured tables",
            sqlstate="54000",
        )


def list_offsets(flags: Flags) -> pa.Array:
    """Offsets of lists that have an item for each flag that is set in their row."""
    return pa.array(np.concatenate(([0], np.cumsum(flags.sum(axis=1)))).astype(np.int32))


def text_column(buffer: Bytes, starts: Integers, lengths: Integers, is_null: Flags) -> pa.Array:
    """A string column of pieces of a buffer, which must be UTF-8.

    Raises:
        IngestError: `CAPTURED_VALUES_TOO_LONG`.
    """
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    require_offsets(int(offsets[-1]))
    source = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    validity = pa.array(~is_null).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(buffer[source])]
    return pa.Array.from_buffers(pa.string(), len(starts), buffers)


def value_text_sql(column: str) -> str:
    """SQL over a row of the log table: the text of a value, by the name of its column."""
    return f"columns[{literal_sql(column)}]"


def literal_sql(text: str) -> str:
    """A text in Spark's SQL.

    >>> print(literal_sql("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
