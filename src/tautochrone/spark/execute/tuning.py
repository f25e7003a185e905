"""Settings of a session by the size of the data that it is about to process.

Spark is set up for much data: it compiles every stage to bytecode, shuffles into many partitions, and plans
again between stages. For a few hundred rows this preparation takes nearly all of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tautochrone.model import limits
from tautochrone.spark.analysis.session_context import session_settings

__all__ = ["tuned"]

_ONE_PARTITION = {
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
    """Set the session up for a change of `delta_rows` rows in inputs of `input_rows` rows (None: unknown);
    restore its settings afterwards."""
    settings: dict[str, str] = {}
    if delta_rows <= limits.MAX_SINGLE_PARTITION_DELTA_ROWS:
        settings |= _ONE_PARTITION
        if input_rows is not None and input_rows <= limits.MAX_INTERPRETED_ROWS:
            settings |= _INTERPRETED
    with session_settings(session, settings):
        yield
