"""Whole columns have the same texts, and are sent as the same values, as one value after the other."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.types import MirroredColumn, column_type

_INSTANTS = st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))]))
_KINDS: list[tuple[spark.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (spark.BooleanType(), pa.bool_(), st.booleans()),
    (spark.ByteType(), pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (spark.IntegerType(), pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (spark.LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (spark.FloatType(), pa.float32(), st.floats(width=32)),
    (spark.DoubleType(), pa.float64(), st.floats()),
    (spark.DecimalType(38, 10), pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (spark.DecimalType(12, 2), pa.decimal128(12, 2), st.decimals(-(10**10) + 1, 10**10 - 1, places=2)),
    (spark.DecimalType(6, 6), pa.decimal128(6, 6), st.decimals("-0.999999", "0.999999", places=6)),
    (spark.DecimalType(9, 7), pa.decimal128(9, 7), st.decimals("-99", "99", places=7)),
    (spark.DecimalType(9, 9), pa.decimal128(9, 9), st.decimals("-0.999999999", "0.999999999", places=9)),
    (spark.DecimalType(5, 0), pa.decimal128(5, 0), st.integers(-99_999, 99_999).map(Decimal)),
    (spark.StringType(), pa.string(), st.text()),
    (spark.BinaryType(), pa.binary(), st.binary()),
    (spark.DateType(), pa.date32(), st.dates()),
    (spark.TimestampType(), pa.timestamp("us", tz="Asia/Kolkata"), _INSTANTS),
    (spark.TimestampNTZType(), pa.timestamp("us"), st.datetimes()),
]


@pytest.mark.parametrize(("kind", "arrow", "values"), _KINDS, ids=lambda value: str(value)[:20])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_column_is_encoded_as_its_values_are(
    kind: spark.DataType, arrow: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    listed = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    encoding = column_type("mirror", "t.c", kind)
    assert encoding.encode_array is not None
    expected = [encoding.encode(value, "c", []) for value in listed]
    sent = pa.array([value for value, _ in expected], encoding.arrow)
    # Spark's arrays are of types of its own, and begin somewhere in a buffer.
    array = pa.array([listed[0], *listed], arrow).slice(1)
    column = MirroredColumn("c", encoding, "")
    for given_values in (array, pa.array(listed, encoding.arrow), listed):
        batch = Batch.of([column], ["c"], [given_values])
        if not any(isinstance(value, float) and math.isnan(value) for value in listed):
            assert batch.arrays[0].equals(sent)
        assert batch.hashes == _hashes_of([text for _, text in expected])


def _hashes_of(texts: list[bytes]) -> list[bytes]:
    """The hashes of rows with these texts in their only column, which arrive as those of a composite."""
    plain = column_type("mirror", "t.c", spark.ArrayType(spark.LongType()))
    by_text = MirroredColumn("c", _Spelled(plain), "")  # type: ignore[arg-type]
    return list(Batch.of([by_text], ["c"], [texts]).hashes)


class _Spelled:
    """A type whose values are their own texts."""

    encode_array = None

    def __init__(self, plain: Any) -> None:
        self.arrow = plain.arrow

    def encode(self, value: bytes, _path: str, _nulls: list[str]) -> tuple[list[int], bytes]:
        return [], value
