"""Settings of a session that suit the size of what it is about to compute.

Spark prepares for much data: it compiles every stage to bytecode, shuffles into many partitions, plans anew
between stages. For a few hundred rows that preparation is nearly all of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tautochrone.model import limits
from tautochrone.spark.analysis.session_context import session_settings

__all__ = ["tuned"]

_ONE_STAGE_AFTER_ANOTHER = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def tuned(session: SparkSession, *, delta_rows: int, input_rows: int | None = None) -> Iterator[None]:
    """Settings for a change of `delta_rows` rows in inputs of `input_rows` rows (None: nobody knows);
    put back afterwards."""
    wanted: dict[str, str] = {}
    if delta_rows <= limits.MAX_SINGLE_PARTITION_DELTA_ROWS:
        wanted |= _ONE_STAGE_AFTER_ANOTHER
        if input_rows is not None and input_rows <= limits.MAX_INTERPRETED_ROWS:
            wanted |= _INTERPRETED
    with session_settings(session, wanted):
        yield
