"""A table of rows with other columns takes the place of the older one: between any two statements, and for
any change of a type, readers see all of the one or all of the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, permutations
from pathlib import Path

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.benches import BrokenConnectionError, EmbeddedBench

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.row_tables import common_columns
from tautochrone.sinks.clickhouse.tables import mirrored_column
from tautochrone.testing.sink_conformance import LAKE, LINES, ORDERS, new_intent
from tautochrone.testing.sink_contents_conformance import Rebuild

_databases = count()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(tmp_path, database=f"rebuilds_{next(_databases)}")
    yield bench
    bench.close()


def opened(bench: EmbeddedBench) -> tuple[Sink, Rebuild]:
    """A sink with rows of checkpoint 1."""
    sink = bench.open()
    sink.claim(LAKE)
    sink.fence(Fence(1))
    for table in (ORDERS, LINES):
        sink.ensure(table, bench.schema(), (), Fence(1))
    rebuild = Rebuild(bench, ["id", "word"], bench.schema(), bench.numbers(), is_numeric=True)
    rebuild.deliver_older(sink)
    return sink, rebuild


_STATEMENTS = range(30)
"""More than a commit has."""
_IN_CI = (5, 10)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n in _IN_CI else pytest.mark.slow) for n in _STATEMENTS]
)
def test_a_commit_that_breaks_at_a_statement(bench: EmbeddedBench, number: int) -> None:
    sink, rebuild = opened(bench)
    intent = rebuild.stage(sink, new_intent(2))
    statements = iter(range(number))
    bench.break_when("after", lambda _statement: next(statements, None) is None)
    try:
        sink.commit(intent.transaction, Fence(1))
    except BrokenConnectionError:
        assert rebuild.shown() in (rebuild.OLDER, rebuild.NEWER)
        rebuild.recover_and_go_on(intent)
    else:
        bench.break_when("after", None)
        assert rebuild.shown() == rebuild.NEWER
    rows = "SELECT name FROM system.tables WHERE startsWith(name, 'taut_r') AND endsWith(name, '_orders') "
    in_database = f"AND database = '{bench.options.database}' ORDER BY name"
    kept = [name for (name,) in bench.reader.rows(rows + in_database)]
    assert [name.partition("_shop")[0].rstrip("0123456789b") for name in kept] == ["taut_read", "taut_rows"]


def test_older_checkpoints_are_given_up(bench: EmbeddedBench) -> None:
    sink, rebuild = opened(bench)
    intent = rebuild.stage(sink, new_intent(2))
    sink.commit(intent.transaction, Fence(1))
    view = f"{bench.options.database}.shop__orders_at"
    assert len(bench.reader.rows(f"SELECT * FROM {view}(checkpoint = 2)")) == 3
    with pytest.raises(SinkError, match="no longer kept"):
        bench.reader.rows(f"SELECT * FROM {view}(checkpoint = 1)")
    with pytest.raises(SinkError) as gone:
        sink.audit(ORDERS, CheckpointNumber(1))
    assert gone.value.error_class == "SINK_CHECKPOINT_GONE"
    assert sink.audit(LINES, CheckpointNumber(1))


def test_a_table_that_is_built_anew_gets_a_publication_above_lost_ones(bench: EmbeddedBench) -> None:
    sink, rebuild = opened(bench)
    database = bench.options.database
    # The pointer is an older copy: rows of these numbers were there before.
    bench.reader.run(f"INSERT INTO {database}.taut_replaced VALUES ('{ORDERS}', 50)")
    intent = rebuild.stage(sink, new_intent(2))
    sink.commit(intent.transaction, Fence(1))
    newest = f"SELECT toString(max(publication)) FROM {database}.taut_published"
    assert int(bench.reader.rows(newest)[0][0]) > 50
    assert rebuild.shown() == rebuild.NEWER


TYPES: dict[spark.DataType, str] = {
    spark.BooleanType(): "true",
    spark.ByteType(): "-128",
    spark.ShortType(): "-32768",
    spark.IntegerType(): "-2147483648",
    spark.LongType(): "9223372036854775807",
    spark.FloatType(): "0.5",
    spark.DoubleType(): "1e300",
    spark.DecimalType(5, 2): "'123.45'",
    spark.DecimalType(7, 2): "'12345.67'",
    spark.DecimalType(38, 10): "'1.5'",
    spark.StringType(): "'word'",
    spark.DateType(): "'2026-03-01'",
    spark.TimestampType(): "'2026-03-01 12:00:00'",
    spark.ArrayType(spark.LongType()): "[1, 2]",
}


def test_one_view_shows_rows_of_any_two_types(bench: EmbeddedBench) -> None:
    for older, newer in permutations(TYPES, 2):
        columns = [mirrored_column("mirror", ORDERS, spark.StructField("x", kind)) for kind in (older, newer)]
        ((_, before, after),) = common_columns(columns[:1], columns[1:])
        first, second = (
            f"SELECT CAST({TYPES[kind]} AS {column.type.sql}) AS x"
            for kind, column in zip((older, newer), columns, strict=True)
        )
        shown = bench.reader.rows(
            f"SELECT toString(x) FROM (SELECT {before} AS x FROM ({first}) UNION ALL "
            f"SELECT {after} AS x FROM ({second}))"
        )
        alone = [bench.reader.rows(f"SELECT toString(x) FROM ({query})")[0] for query in (first, second)]
        assert sorted(shown) == sorted(alone), (older, newer)
