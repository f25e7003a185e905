"""The columns of a capture's log table.

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

__all__ = ["ARROW_SCHEMA", "SPARK_SCHEMA"]

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
