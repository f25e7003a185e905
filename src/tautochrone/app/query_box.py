"""The query box's runner over a `Reader`. The pages themselves do without it: it needs Spark."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField

from tautochrone.metaservice.pages.ports import Answer
from tautochrone.model.checkpoint import Consistency
from tautochrone.reader import Reader, query_error

__all__ = ["ReaderRunner"]

_MAX_CHARACTERS = 2_000
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class ReaderRunner:
    """See `ports.Runner`. The reader stays open; `catalog` is its catalog's name."""

    def __init__(self, reader: Reader, catalog: str) -> None:
        self._reader = reader
        self._catalog = catalog

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        frame = self._reader.sql(sql, consistency, checkpoint)
        # Two columns may have the same name, so they are renamed by position.
        numbered = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
        # One character more than is shown tells that the value is longer.
        texts = [_text(field).substr(1, _MAX_CHARACTERS + 1) for field in numbered.schema.fields]
        try:
            rows = numbered.select(*texts).limit(limit + 1).collect()
        except PySparkException as error:
            # Some errors appear only while the query runs: a division by zero, a missing file.
            raise query_error(error, sql) from error
        read_point = frame.sparkSession.conf.get(f"spark.sql.catalog.{self._catalog}.warehouse", "") or ""
        checkpoint_match = _CHECKPOINT.fullmatch(read_point)
        return Answer(
            columns=tuple(frame.columns),
            rows=tuple(tuple(map(_shown, row)) for row in rows[:limit]),
            checkpoint=int(checkpoint_match[1]) if checkpoint_match else None,
            more=len(rows) > limit,
        )


def _text(field: StructField) -> Column:
    """A value as Spark spells it; bytes as hexadecimal digits."""
    return f.hex(field.name) if isinstance(field.dataType, BinaryType) else f.col(field.name).cast("string")


def _shown(text: str | None) -> str | None:
    """Long values are cut: a page must not carry megabytes of one value."""
    return text if text is None or len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
