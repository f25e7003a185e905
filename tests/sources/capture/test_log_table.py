"""Columns of the log table from pieces of a buffer, and the SQL that reads its values."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tautochrone.errors import IngestError
from tautochrone.sources.capture import log_table
from tautochrone.sources.capture.log_table import (
    ARROW_SCHEMA,
    SPARK_SCHEMA,
    list_offsets,
    text_column,
    value_text_sql,
)

BUFFER = np.frombuffer("one, zwölf".encode(), np.uint8)


def test_both_schemas_have_the_same_columns() -> None:
    assert ARROW_SCHEMA.names == SPARK_SCHEMA.names == to_arrow_schema(SPARK_SCHEMA).names


def test_texts_are_pieces_of_the_buffer_in_any_order() -> None:
    starts, lengths = np.array([5, 0, 0, 3]), np.array([6, 0, 3, 0])
    texts = text_column(BUFFER, starts, lengths, np.array([False, True, False, False]))
    assert texts.to_pylist() == ["zwölf", None, "one", ""]


def test_texts_beyond_the_offsets_of_arrow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_table, "MAX_TEXT_BYTES", 5)
    pieces = np.array([0, 0]), np.array([3, 3])
    with pytest.raises(IngestError, match="CAPTURED_VALUES_TOO_LONG"):
        text_column(BUFFER, *pieces, np.array([False, False]))


def test_lists_have_an_item_for_each_flag() -> None:
    flags = np.array([[True, False, True], [False, False, False], [False, True, False]])
    assert list_offsets(flags).to_pylist() == [0, 2, 2, 3]


def test_names_of_columns_are_literals_of_spark() -> None:
    assert value_text_sql("it's \\ a name") == "columns['it\\'s \\\\ a name']"
