"""The query box's runner over a `Reader`. The pages themselves do without it: it needs Spark."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField

from tautochrone.metaservice.pages.ports import Answer
from tautochrone.model.checkpoint import Consistency
from tautochrone.reader.queries import query_error
from tautochrone.reader.reader import Reader

__all__ = ["ReaderRunner"]

_LONGEST = 2_000
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class ReaderRunner:
    """See `ports.Runner`. The reader stays open; `catalog` is its catalog's name."""

    def __init__(self, reader: Reader, catalog: str) -> None:
        self._reader = reader
        self._catalog = catalog

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        frame = self._reader.sql(sql, consistency, checkpoint)
        # Two columns may have one name; by position they are told apart.
        numbered = frame.toDF(*(f"c{at}" for at in range(len(frame.columns))))
        # One sign more than is shown tells that there are more.
        texts = [_text(field).substr(1, _LONGEST + 1) for field in numbered.schema.fields]
        try:
            rows = numbered.select(*texts).limit(limit + 1).collect()
        except PySparkException as error:
            # Only found while running: a division by zero, a file that is gone.
            raise query_error(error, sql) from error
        read_point = frame.sparkSession.conf.get(f"spark.sql.catalog.{self._catalog}.warehouse", "") or ""
        found = _CHECKPOINT.fullmatch(read_point)
        return Answer(
            columns=tuple(frame.columns),
            rows=tuple(tuple(map(_shown, row)) for row in rows[:limit]),
            checkpoint=int(found[1]) if found else None,
            more=len(rows) > limit,
        )


def _text(field: StructField) -> Column:
    """A value as Spark spells it; bytes as hexadecimal digits."""
    return f.hex(field.name) if isinstance(field.dataType, BinaryType) else f.col(field.name).cast("string")


def _shown(text: str | None) -> str | None:
    """A page is no place for megabytes of one value."""
    return text if text is None or len(text) <= _LONGEST else text[:_LONGEST] + "…"
