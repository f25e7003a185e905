"""Where the rows are that a view loses, whatever is in them."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import TableName
from tautochrone.runtime.views.incremental import _assigned_positions, find_rows
from tautochrone.spark.execute.key_lookups import key_values
from tautochrone.spark.execute.materialize import first_row

VIEW = TableName("lake", ("sales",), "totals")
MATCH: Any = Row("__taut_row", "__taut_copies", "__taut_exact", FILE_COLUMN, POSITION_COLUMN)
EXTREMES = {
    "timestamp": ("TIMESTAMP'0001-01-01 00:00:00'", "TIMESTAMP'9999-12-31 23:59:59.999999'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'+10000-01-01 00:00:00'"),
    "date": ("DATE'0001-01-01'", "DATE'9999-12-31'", "DATE'9999-12-31' + 1", "DATE'0001-01-01' - 400"),
    "double": ("DOUBLE('NaN')", "DOUBLE('-Infinity')", "-0.0D", "4.9E-324D"),
    "decimal(38,0)": (f"{'9' * 38}BD", f"-{'9' * 38}BD"),
    "decimal(38,38)": (f"0.{'9' * 38}BD",),
    "binary": ("X''", "X'00FF'"),
    "string": ("''", r"'\\ \' ${x}'", "CAST(X'FF' AS STRING)", "CAST(X'FE' AS STRING)"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "boolean": ("true", "false"),
    "interval day to second": ("INTERVAL '-106751991 04:00:54.775808' DAY TO SECOND",),
}


@pytest.mark.spark
@pytest.mark.parametrize("kind", EXTREMES)
def test_rows_of_any_value_are_located(spark: SparkSession, kind: str) -> None:
    values = [f"CAST({value} AS {kind})" for value in (*EXTREMES[kind], "NULL")]
    rows = " UNION ALL ".join(
        f"SELECT {value} AS x, 'f' AS {FILE_COLUMN}, {number}L AS {POSITION_COLUMN}"
        for number, value in enumerate(values)
    )
    stored = spark.sql(rows)
    deletes = stored.where(f"{POSITION_COLUMN} > 0").select("x")
    expected = list(range(1, len(values)))
    for few, stored_rows in ((True, 10), (True, 10_000_000), (False, None)):
        positions = find_rows(stored, VIEW, deletes, stored_rows=stored_rows, few=few)
        assert sorted(positions.by_file.get("f", ())) == expected
    assert first_row(stored.where("x IS NOT NULL").select("x")) is not None
    for column in key_values(stored, ["x"]).values():
        assert stored.where(column.condition("x", or_null=True)).count() == len(values)


def test_as_many_rows_are_matched_as_can_be() -> None:
    generator = random.Random(7)
    for _ in range(300):
        copies = [generator.randint(1, 2) for _ in range(generator.randint(1, 4))]
        near = [set(generator.sample(range(5), generator.randint(0, 4))) for _ in copies]
        matches = [
            MATCH(row, copies[row], generator.random() < 0.3, "f", position)
            for row, positions in enumerate(near)
            for position in sorted(positions)
        ]
        assigned = _assigned_positions(matches).get("f", [])
        assert len(set(assigned)) == len(assigned) == _most(copies, near)


def _most(copies: list[int], near: list[set[int]]) -> int:
    """The size of the largest matching, by trying all."""
    choices = [[None, *positions] for row, positions in enumerate(near) for _ in range(copies[row])]
    taken = ([position for position in choice if position is not None] for choice in product(*choices))
    return max((len(positions) for positions in taken if len({*positions}) == len(positions)), default=0)
