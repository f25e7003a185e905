"""Extreme values of each type, and tables that a database cannot have.

The sink has what the lake has, or it refuses the value or the table by its class, and goes on afterwards.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import string
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, deliver, stage
from tests.sinks.mariadb.benches import MariadbBench
from tests.support.mariadb import SINK_PASSWORD, is_installed, sink_url
from tests.support.postgresql import fresh_database

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.runtime.delivery.delivery import needs_attention
from tautochrone.sinks.mariadb.options import mariadb_options
from tautochrone.sinks.mariadb.sink import MariadbSink
from tautochrone.sinks.postgresql.options import postgresql_options
from tautochrone.sinks.postgresql.sink import PostgresqlSink
from tautochrone.testing.sink_conformance import transaction
from tautochrone.testing.sqlite_sink import ListRows

_NOISE = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=9000))
_FLOATS = [0.0, -0.0, 1e-45, 3.4028234663852886e38, math.nan, math.inf, -math.inf, 0.1]
_DOUBLES = [*_FLOATS, 5e-324, 1.7976931348623157e308, 2.0**53 + 1, -1e300]
_TEXTS = [
    *("", " ", "a ", "a\t\r\n\\N\\.", "\x00", "a\x00b", "\x01\x1a\x7f", "'\"`%s{}", "ü😀\u200f\ufffe\uffff"),
    *("\ud800", "x\udfffy", _NOISE[:2600], _NOISE[:3000], _NOISE, "x" * 1_000_000, "\U0010ffff", "Ⅷß", "İ"),
]
_DATES = [(1, 1, 1), (999, 12, 31), (1000, 1, 1), (1582, 10, 10), (1970, 1, 1), (2038, 1, 20), (9999, 12, 31)]
_TIMES = [dt.datetime.combine(dt.date(*day), moment) for day in _DATES for moment in (dt.time(), dt.time.max)]
_DECIMALS = ((38, 0), (38, 38), (38, 18), (38, 31), (1, 1), (5, 2))


def _decimals(precision: int, scale: int) -> list[Decimal]:
    digits = Decimal("9" * precision).scaleb(-scale)
    return [digits, -digits, Decimal(1).scaleb(-scale), Decimal(0).quantize(Decimal(1).scaleb(-scale))]


VALUES: list[tuple[spark.DataType, list[Any]]] = [
    (spark.BooleanType(), [True, False]),
    (spark.ByteType(), [-128, 127]),
    (spark.ShortType(), [-(2**15), 2**15 - 1]),
    (spark.IntegerType(), [-(2**31), 2**31 - 1]),
    (spark.LongType(), [-(2**63), 2**63 - 1]),
    (spark.FloatType(), _FLOATS),
    (spark.DoubleType(), _DOUBLES),
    *(
        (spark.DecimalType(*size), _decimals(*size))
        for size in ((38, 0), (38, 38), (38, 18), (38, 31), (1, 1), (5, 2))
    ),
    (spark.StringType(), _TEXTS),
    (spark.BinaryType(), [b"", b"\x00", bytes(range(256)), b"\xff" * 1_000_000]),
    (spark.DateType(), [dt.date(*day) for day in _DATES]),
    (spark.TimestampType(), [moment.replace(tzinfo=dt.UTC) for moment in _TIMES]),
    (spark.TimestampNTZType(), _TIMES),
    (spark.ArrayType(spark.StringType()), [[], [None], ["\x00"], ["\ud800"], ["😀", ""]]),
    (spark.ArrayType(spark.DoubleType()), [[x] for x in _DOUBLES]),
    (spark.ArrayType(spark.DecimalType(38, 10)), [[Decimal("9" * 28)], [Decimal("0.0000000001")]]),
    (spark.ArrayType(spark.LongType()), [[-(2**63), 2**63 - 1]]),
    (
        spark.MapType(spark.StringType(), spark.LongType()),
        [{}, {"": 1, " ": None}, {"a\x00": 1}, {"ü": 2**63 - 1}],
    ),
    (spark.StructType([spark.StructField("a\x00b", spark.StringType())]), [{"a\x00b": "x"}]),
]
_databases = count(1)


class _System:
    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.bench: MariadbBench | None = None

    def open(self) -> Any:
        schema = f"limits_{next(_databases)}"
        if self.name == "postgresql":
            return PostgresqlSink("mirror", postgresql_options("mirror", {"url": self.url, "schema": schema}))
        self.bench = MariadbBench()
        options = {"url": sink_url(self.bench.database), "password": SINK_PASSWORD}
        return MariadbSink("mirror", mariadb_options("mirror", options))


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def system(request: pytest.FixtureRequest) -> _System:
    if request.param == "mariadb" and not is_installed():
        pytest.skip("MariaDB is not installed")
    return _System(request.param, fresh_database() if request.param == "postgresql" else "")


def _opened(system: _System, schema: spark.StructType, key: list[str]) -> Any:
    sink = system.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, schema, key, Fence(1))
    return sink


def _number_and(kind: spark.DataType, name: str = "v") -> spark.StructType:
    return spark.StructType([spark.StructField("id", spark.LongType()), spark.StructField(name, kind)])


def _value_cases() -> list[Any]:
    cases = []
    for kind in VALUES:
        name = kind[0].simpleString()
        for key in ([], ["v"]):
            is_short = name == "string" or (not key and name in ("double", "timestamp", "array<string>"))
            marks = () if is_short else (pytest.mark.slow,)
            cases.append(pytest.param(kind, key, id=f"{name} {'key' if key else 'value'}", marks=marks))
    return cases


def _refusal(act: Callable[[], None]) -> SinkError | None:
    try:
        act()
    except SinkError as error:
        return error
    return None


@pytest.mark.parametrize(("kind", "key"), _value_cases())
def test_a_value_arrives_or_is_refused_by_its_class(system: _System, kind: Any, key: list[str]) -> None:
    spark_type, values = kind
    sink = _opened(system, _number_and(spark_type), key)
    rows: list[tuple[Any, ...]] = []
    for number, value in enumerate(values, 1):
        if key and "-0.0" in repr(value):
            # The same key as 0.0.
            continue
        error = _refusal(lambda: stage(sink, transaction(number), [(number, value)], columns=["id", "v"]))  # noqa: B023
        if error is not None:
            assert error.error_class == "SINK_VALUE_UNSUPPORTED", (value, error)
            assert needs_attention(error)
            assert not error.retryable
            assert str(ORDERS) in error.message
            sink.abort(transaction(number), Fence(1))
            continue
        sink.commit(transaction(number), Fence(1))
        rows.append((number, value))
        frame = ListRows(["id", "v"], rows)
        assert sink.audit(ORDERS, CheckpointNumber(number)) == sink.digest(ORDERS, frame), value
    sink.close()


@pytest.mark.parametrize("position", [0, 3, 6])
def test_the_row_and_the_column_are_told(system: _System, position: int) -> None:
    schema = spark.StructType(
        [
            spark.StructField("id", spark.LongType()),
            spark.StructField("a", spark.StringType()),
            spark.StructField("b", spark.DecimalType(38, 31)),
            spark.StructField("c", spark.StringType()),
        ]
    )
    sink = _opened(system, schema, ["id"])
    rows: list[Any] = [(number, "x", Decimal(1), "y") for number in range(7)]
    # MariaDB takes NUL, and no system takes a text that is no Unicode.
    rows[position] = (position, "x", Decimal(1), "a\x00b" if system.name == "postgresql" else "\ud800")
    with pytest.raises(SinkError) as refused:
        stage(sink, transaction(1), rows, columns=["id", "a", "b", "c"])
    assert refused.value.error_class == "SINK_VALUE_UNSUPPORTED"
    assert f'{{"id": {position}}}' in refused.value.message
    if system.name == "postgresql":
        assert refused.value.parameters["column"] == "c"
    sink.abort(transaction(1), Fence(1))
    rows[position] = (position, "x", Decimal(1), "y")
    deliver(sink, transaction(1, attempt=2), rows, columns=["id", "a", "b", "c"])


REFUSALS = ("SINK_SCHEMA_UNSUPPORTED", "SINK_TYPE_UNSUPPORTED", "SINK_COLUMN_NAME_RESERVED")
SHORT = ("long name", "long name in bytes", "case", "system name", "500 texts", "interval")
SCHEMAS = {
    "long name": [("x" * 64, spark.LongType())],
    "long name in bytes": [("ü" * 32, spark.LongType())],
    "longest name": [("ü" * 31, spark.LongType())],
    "too long for all": [("x" * 70, spark.LongType())],
    "case": [("a", spark.LongType()), ("A", spark.LongType())],
    "accents": [("ä", spark.LongType()), ("a", spark.LongType())],
    "folded": [
        ("ß", spark.LongType()),
        ("ẞ", spark.LongType()),
        ("ı", spark.LongType()),
        ("i", spark.LongType()),
    ],
    "system name": [("ctid", spark.LongType()), ("xmin", spark.LongType())],
    "own names": [("_taut_x", spark.LongType())],
    "quotes": [
        ('a"b', spark.LongType()),
        ("c`d", spark.LongType()),
        ("e%sf", spark.LongType()),
        (" g", spark.LongType()),
    ],
    "space at the end": [("a ", spark.LongType())],
    "empty name": [("", spark.LongType())],
    "NUL": [("a\x00b", spark.LongType())],
    "emoji": [("😀", spark.LongType())],
    "1,100 columns": [(f"c{number}", spark.LongType()) for number in range(1100)],
    "1,700 columns": [(f"c{number}", spark.LongType()) for number in range(1700)],
    "4,200 texts": [(f"c{number}", spark.StringType()) for number in range(4200)],
    "500 texts": [(f"c{number}", spark.StringType()) for number in range(500)],
    "interval": [("a", spark.DayTimeIntervalType())],
    "variant": [("a", spark.VariantType())],
    "void": [("a", spark.NullType())],
}


@pytest.mark.parametrize(
    "problem",
    [problem if problem in SHORT else pytest.param(problem, marks=pytest.mark.slow) for problem in SCHEMAS],
)
@pytest.mark.parametrize("is_added", [False, True], ids=["new", "added"])
def test_a_table_is_created_whole_or_refused_before_it(system: _System, problem: str, is_added: bool) -> None:
    columns = [spark.StructField(name, kind) for name, kind in SCHEMAS[problem]]
    simple = _number_and(spark.StringType(), "word")
    schema = spark.StructType([*simple.fields, *columns])
    sink = system.open()
    sink.fence(Fence(1))
    if is_added:
        sink.ensure(ORDERS, simple, [], Fence(1))
        deliver(sink, transaction(1), [(1, "one")])
    refused, again = (_refusal(lambda: sink.ensure(ORDERS, schema, [], Fence(1))) for _ in range(2))
    assert (again and again.error_class) == (refused and refused.error_class)
    if refused is not None:
        assert refused.error_class in REFUSALS, refused
        assert needs_attention(refused)
    if refused is not None:
        sink.ensure(ORDERS, simple, [], Fence(1))
    names = simple.names if refused else schema.names
    row = (2, "two", *([None] * (len(names) - 2)))
    deliver(sink, transaction(2), [row], columns=names)
    frame = ListRows(names, [row, *([(1, "one", *row[2:])] if is_added else [])])
    assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, frame)
    assert not sink.changed_tables([ORDERS], None)
    sink.close()
