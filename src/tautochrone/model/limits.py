"""Every size threshold of the engine, with what happens beyond it.

No threshold changes what a table holds: above and below it the same rows are computed, only in another way.
The exceptions are in the last section, where a report is cut or a search gives up. Code reads them as
`limits.NAME`, so a test that patches this module changes them everywhere.

Where a number was measured, the comment says on what. The measurements are TPC-H and TPC-DS refreshes of
`bench/` on 2 cores; where no measurement is named, the number is a guess of the right order of magnitude.
"""

from __future__ import annotations

__all__ = [
    "INVARIANT_SAMPLE_ROWS",
    "LARGE_RELATION_ROWS",
    "MAX_ARROW_BYTES",
    "MAX_ARROW_ROWS",
    "MAX_BAD_RECORD_PROBES",
    "MAX_BROADCAST_VALUES",
    "MAX_CACHED_LOOKUP_VALUES",
    "MAX_CACHED_TABLE_CHANGES",
    "MAX_CACHED_TABLE_CHANGE_ROWS",
    "MAX_CACHED_VIEW_DELTAS",
    "MAX_CACHED_VIEW_DELTA_ROWS",
    "MAX_COLLECTED_KEYS",
    "MAX_COUNTED_VIOLATIONS",
    "MAX_DELETE_POSITIONS",
    "MAX_DELETION_VECTOR_POSITIONS",
    "MAX_DRIVER_BYTES",
    "MAX_DRIVER_CHARACTERS",
    "MAX_DRIVER_LOOKUP_BYTES",
    "MAX_DRIVER_LOOKUP_FILES",
    "MAX_DRIVER_LOOKUP_REMOTE_BYTES",
    "MAX_DRIVER_ROWS",
    "MAX_FIRST_BAD_RECORD_PROBES",
    "MAX_HELD_LOG_ROWS",
    "MAX_INTERPRETED_ROWS",
    "MAX_IN_LIST_VALUES",
    "MAX_KEY_RANGES",
    "MAX_LOOKUP_ROWS",
    "MAX_LOOKUP_VALUES",
    "MAX_POSITIONS_IN_FILTER",
    "MAX_PRUNING_COLUMNS",
    "MAX_ROWS_WITHOUT_ARROW",
    "MAX_SAMPLE_CHARACTERS",
    "MAX_SINGLE_PARTITION_DELTA_ROWS",
    "MAX_SINGLE_TASK_ROWS",
    "MAX_SMALL_TABLES",
    "MAX_SMALL_TABLE_BYTES",
    "MAX_SMALL_TABLE_ROWS",
    "MAX_SOURCE_OBSERVATIONS",
    "MAX_STATE_RUNS",
    "MAX_TASK_RANGES",
    "MAX_TASK_RECORDS",
    "MIN_REWRITTEN_ROWS_TO_COUNT",
    "MIN_TASK_RECORDS",
    "TINY_INPUT_ROWS",
]

# -- where results are computed and kept ----------------------------------------------------------

MAX_DRIVER_ROWS = 20_000
"""Rows that are materialized on the driver as a `LocalRelation`; plans over it need no shuffle and often no
Spark job. More rows stay on the executors that computed them. Measured at TPC-H scale factor 10: with 150,000
changed rows on the driver a refresh took twice as long as with those rows on the executors."""

MAX_DRIVER_CHARACTERS = 16_000_000
"""New rows of a change log that have more characters stay on the executors, however few they are: values of a
database may be long."""

MAX_ARROW_ROWS = 250_000
MAX_ARROW_BYTES = 100_000_000
"""Events of a captured table, and bytes of the new rows of its log, that Spark computes once and hands to the
driver as Arrow, which writes the rows that come. More events are computed twice by Spark: first their keys,
then the rows that come. Changed rows of a table that have more bytes go to sinks by Spark's jobs."""

MAX_SINGLE_TASK_ROWS = 50_000
"""A node whose leaves have at most this many rows each is grouped, sorted and joined in one task, without a
shuffle or a broadcast. Above it Spark's own partitioning is kept."""

LARGE_RELATION_ROWS = 200_000
"""For a relation above this size one more Spark job pays that finds out which keys a read needs. Smaller
relations are read whole."""

MAX_HELD_LOG_ROWS = 1_000_000
"""New rows of a change log that are held on the executors for a checkpoint, where several tables read them or
one reads them several times. More are read from the files each time."""

MAX_BROADCAST_VALUES = 1_500_000
"""Values (rows times columns) of a materialized join side that is broadcast. A larger side is shuffled.
Spark's own threshold cannot decide: it takes a materialized result for as large as what it was computed
from."""

MAX_SINGLE_PARTITION_DELTA_ROWS = 20_000
"""A refresh with at most this many changed rows runs with one shuffle partition and without adaptive
execution. Above it the session's own settings are used."""

MAX_INTERPRETED_ROWS = 100_000
"""A refresh whose inputs have at most this many rows, and which uses one partition, is interpreted instead of
compiled by whole-stage code generation: for so few rows compilation takes longer than execution."""

# -- keys -----------------------------------------------------------------------------------------

MAX_IN_LIST_VALUES = 1_000
"""Distinct keys that are written as `IN (…)`, which file statistics can prune by. More keys become a semi
join and a few ranges."""

MAX_KEY_RANGES = 8
"""`BETWEEN` ranges that stand for more keys than fit in an `IN` list; the widest gaps separate them."""

MAX_PRUNING_COLUMNS = 3
"""Columns whose values restrict the read for rows to be deleted; the most selective ones are taken."""

MAX_DRIVER_LOOKUP_FILES = 100
MAX_DRIVER_LOOKUP_BYTES = 256_000_000
"""Data files, and bytes of their key columns, in which the driver itself looks for the rows of keys; also
those of changed rows that it reads for a sink. In more of them a Spark job looks. The driver reads 80 MB of
keys in 0.2 CPU seconds; a merge with a Spark job took 1.3 CPU seconds more than one of as many rows into a
tenth of the table."""

MAX_DRIVER_LOOKUP_REMOTE_BYTES = 8_000_000
"""The same where files are not on this machine: they are fetched as a whole then."""

MAX_COLLECTED_KEYS = 500_000
"""Keys that are collected from the executors to prune a read by them. More keys are only joined. Measured on
TPC-H q18, which looks up 3,000 of 1.5 million groups."""

MAX_ROWS_WITHOUT_ARROW = 1_000
"""Rows of a `LocalRelation` that are collected as Python rows, which needs no Spark job. More rows are
collected with Arrow, which needs one and is faster for each row."""

# -- key lookups shared by the views of a run -----------------------------------------------------

MAX_LOOKUP_ROWS = 300_000
MAX_LOOKUP_VALUES = 2_500_000
"""Rows, and values (rows times columns), of one key lookup that is cached. A larger one is not cached: each
view reads the table itself."""

MAX_DRIVER_BYTES = 64_000_000
"""The size in memory of rows that the driver reads without a job."""

MAX_SMALL_TABLE_ROWS = 10_000
MAX_SMALL_TABLE_BYTES = 4_000_000
MAX_SMALL_TABLES = 64
"""An input with at most this many rows, of at most this size in memory, is read once per version and held by
the driver; so many of them at a time."""

MAX_CACHED_LOOKUP_VALUES = 5_000_000
"""Values of all cached key lookups together. Beyond it the oldest are dropped."""

# -- changes of tables ----------------------------------------------------------------------------

TINY_INPUT_ROWS = 1_000
"""A view with the policy AUTO whose inputs have at most this many rows together keeps no state and is
compared instead: a refresh by its change would cost more than a full computation."""

MIN_REWRITTEN_ROWS_TO_COUNT = 20_000
"""Rows of rewritten data files above which a Spark job counts the rows that really changed, before the
refresh mode is chosen. Below it the bound from metadata is used: the job would cost more than it saves. The
counted rows are materialized if there are at most this many."""

MAX_CACHED_VIEW_DELTAS = 64
MAX_CACHED_VIEW_DELTA_ROWS = 500_000
"""Deltas of views, and their rows together, that are kept in memory for the views downstream. Beyond it the
oldest are dropped, and a downstream view reads the change from the table's files."""

MAX_CACHED_TABLE_CHANGES = 16
MAX_CACHED_TABLE_CHANGE_ROWS = 1_000_000
"""Changes of tables that are materialized for all views that read them, and the rows of one such change. A
larger change is read by each view itself; of more changes the oldest is dropped."""

MAX_STATE_RUNS = 24
"""Runs in the log of a view's state. The next run folds the log: only the newest row of each group stays."""

# -- deleted rows ---------------------------------------------------------------------------------

MAX_DELETE_POSITIONS = 1_000_000
"""Positions of deleted rows that are read one by one. With more of them whole data files are compared."""

MAX_POSITIONS_IN_FILTER = 20_000
"""Positions that are put into a filter. More of them are joined."""

MAX_DELETION_VECTOR_POSITIONS = 1_000_000
"""Positions of a deletion vector that is compared with an older one on the driver. With more of them the
whole data file is compared."""

# -- batches from Kafka ---------------------------------------------------------------------------

MIN_TASK_RECORDS = 25_000
"""A batch of as many records is read and written by one task, and each further task needs as many again, up
to the number of cores. A task writes a file of its own, and a core takes 100,000 to 200,000 records a second
(`bench/skew.py`)."""

MAX_TASK_RECORDS = 1_000_000
"""A larger batch has more tasks than cores: a task that fails is done again as a whole."""

MAX_TASK_RANGES = 64
"""Partitions that one task reads. Spark keeps a consumer open for each until the task ends, and caches this
number of them (`spark.kafka.consumer.cache.capacity`)."""

# -- checks and reports ---------------------------------------------------------------------------

INVARIANT_SAMPLE_ROWS = 5
"""Rows that violate an invariant and are reported with their values."""

MAX_COUNTED_VIOLATIONS = 1_000
"""Rows that violate an invariant and are counted; beyond it the report says "at least". One wrong join may
return more rows than the lake has."""

MAX_SAMPLE_CHARACTERS = 500
"""Characters of a reported value; the rest is cut off."""

MAX_BAD_RECORD_PROBES = 2_000
"""Attempts to run parts of a failed batch while its bad records are searched. Beyond it the flow fails with
TOO_MANY_BAD_RECORDS."""

MAX_FIRST_BAD_RECORD_PROBES = 64
"""The same when only the first bad record is searched, for the error of a flow that fails on it."""

MAX_SOURCE_OBSERVATIONS = 1_024
"""Observations of a source during one batch. Beyond it every second one is dropped; the newest is kept."""
