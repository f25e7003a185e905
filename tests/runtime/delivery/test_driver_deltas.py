"""What this process reads of a delta is what Spark reads of it: random tables and changes, to the byte."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from tests.support.change_conformance import spark_jobs

from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model import limits
from tautochrone.model.lake import LakeTable
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery.deltas import CollectedRows, TableDelta, delta_of
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.sinks.clickhouse.rows import batches
from tautochrone.sinks.clickhouse.types import MirroredColumn, column_type
from tautochrone.sinks.json_rows import JsonRows, comparable

pytestmark = pytest.mark.spark

DAYS = [-719_162, -141_428, -1, 0, 20_000, 2_932_896]
"""The first and the last day that Python has, and the last one of the Julian calendar."""
MICROS = [day * 86_400_000_000 + 1 for day in DAYS]
Make = Callable[[random.Random], Any]
SIMPLE: dict[str, tuple[pa.DataType, Make]] = {
    "BOOLEAN": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "INT": (pa.int32(), lambda chance: chance.choice([0, -(2**31), 7])),
    "BIGINT": (pa.int64(), lambda chance: chance.choice([0, -(2**63), 2**63 - 1])),
    "FLOAT": (pa.float32(), lambda chance: chance.choice([0.0, -0.0, float("nan"), float("-inf"), 0.1])),
    "DOUBLE": (pa.float64(), lambda chance: chance.choice([0.0, -0.0, float("nan"), float("inf"), 1e300])),
    "DECIMAL(9, 2)": (pa.decimal128(9, 2), lambda chance: chance.choice(["-1234567.89", "0.00", "1.50"])),
    "DECIMAL(38, 10)": (
        pa.decimal128(38, 10),
        lambda chance: chance.choice(["9" * 28 + ".0000000001", "-1"]),
    ),
    "STRING": (pa.string(), lambda chance: chance.choice(["", "a", "Ä€😀", "x" * 200, 'quo"te\\\n\t'])),
    "BINARY": (pa.binary(), lambda chance: chance.choice([b"", b"\x00\xff", b"text"])),
    "DATE": (pa.date32(), lambda chance: chance.choice(DAYS)),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), lambda chance: chance.choice(MICROS)),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), lambda chance: chance.choice(MICROS)),
}
WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(9, 2)": "DECIMAL(12, 2)"}


@pytest.fixture
def lake(spark: SparkSession) -> IcebergLake:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.deltas")
    return IcebergLake(spark, "lake", DirectEffects())


def random_type(chance: random.Random, depth: int = 0) -> tuple[str, pa.DataType, Make]:
    """As SQL, as Arrow, and a maker of values, of which some are NULL."""
    # Not arrays within arrays: Spark 4.1 writes empty ones without offsets, and pyarrow may crash.
    kinds = ["simple"] * 3 + ["array", "struct", "map"], ["simple"] * 2 + ["struct"], ["simple"]
    kind = chance.choice(kinds[depth])
    if kind == "simple":
        sql = chance.choice(list(SIMPLE))
        arrow, make = SIMPLE[sql]
        return sql, arrow, or_null(make)
    sql, arrow, make = random_type(chance, depth + 1)
    if kind == "array":
        return (
            f"ARRAY<{sql}>",
            pa.list_(arrow),
            or_null(lambda chance: [make(chance) for _ in range(chance.randrange(3))]),
        )
    if kind == "struct":
        return (
            f"STRUCT<a: {sql}, b: INT>",
            pa.struct([("a", arrow), ("b", pa.int32())]),
            or_null(lambda chance: {"a": make(chance), "b": chance.randrange(3)}),
        )
    return (
        f"MAP<STRING, {sql}>",
        pa.map_(pa.string(), arrow),
        or_null(lambda chance: [(key, make(chance)) for key in chance.sample("abc", chance.randrange(3))]),
    )


def or_null(make: Make) -> Make:
    return lambda chance: None if chance.random() < 0.2 else make(chance)


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values of which days and microseconds are numbers, and decimals are texts."""
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_list(kind):
        flat = array([item for value in values for item in value or ()], kind.value_type)
        return pa.ListArray.from_arrays(offsets(values), flat, type=kind)
    if pa.types.is_map(kind):
        entries = [entry for value in values for entry in value or ()]
        keys, items = (array([entry[index] for entry in entries], part) for index, part in
                       enumerate((kind.key_type, kind.item_type)))  # fmt: skip
        return pa.MapArray.from_arrays(offsets(values), keys, items)
    if pa.types.is_struct(kind):
        parts = [array([None if v is None else v[field.name] for v in values], field.type) for field in kind]
        is_null = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def offsets(values: list[Any]) -> pa.Array:
    ends: list[int | None] = []
    total = 0
    for value in values:
        ends.append(None if value is None else total)
        total += len(value or ())
    return pa.array([*ends, total], pa.int32())


class Table:
    """A table with random columns, rows and statements."""

    def __init__(self, spark: SparkSession, lake: IcebergLake, chance: random.Random) -> None:
        self.spark, self.chance, self.ids, self.names = spark, chance, 0, 0
        self.name = TableName("lake", ("deltas",), f"t_{uuid.uuid4().hex[:8]}")
        self.columns: dict[str, tuple[str, pa.DataType, Make]] = {}
        declared = ["id BIGINT"]
        for number in range(chance.randrange(2, 6)):
            name = chance.choice([f"c{number}", f"c {number}", f"c.{number}"])
            self.columns[name] = random_type(chance)
            declared.append(f"`{name}` {self.columns[name][0]}")
        mode = chance.choice(["merge-on-read", "copy-on-write"])
        modes = ", ".join(f"'write.{statement}.mode' = '{mode}'" for statement in ("delete", "update"))
        partitions = chance.choice(["", " PARTITIONED BY (bucket(2, id))", " PARTITIONED BY (id)"])
        spark.sql(
            f"CREATE TABLE {self.name.sql} ({', '.join(declared)}) USING iceberg{partitions} "
            f"TBLPROPERTIES ('format-version' = '3', {modes})"
        )
        self.lake_table: LakeTable = lake.load(self.name)

    def insert(self) -> None:
        count = self.chance.randrange(1, 8)
        ids = [self.ids + number for number in range(count)]
        self.ids += count
        arrays = [pa.array(ids, pa.int64())]
        for _, kind, make in self.columns.values():
            arrays.append(array([make(self.chance) for _ in ids], kind))
        rows = pa.table(arrays, names=["id", *self.columns])
        schema = self.spark.table(self.name.sql).schema
        self.spark.createDataFrame(rows, schema).writeTo(self.name.sql).append()

    def change(self) -> None:
        sql, parts = self.name.sql, self.chance.randrange(2, 5)
        kind = self.chance.choice(["insert", "insert", "delete", "update", "update", "copy", "evolve"])
        if kind == "insert":
            self.insert()
        elif kind == "delete":
            self.spark.sql(f"DELETE FROM {sql} WHERE id % {parts} = 0")
        elif kind == "update":
            name = self.chance.choice(list(self.columns))
            self.spark.sql(f"UPDATE {sql} SET `{name}` = NULL WHERE id % {parts} = 1")
        elif kind == "copy":
            self.spark.sql(f"INSERT INTO {sql} SELECT * FROM {sql} WHERE id % {parts} = 0")
        else:
            self.evolve(sql)

    def new_name(self) -> str:
        """A name that no column had before."""
        self.names += 1
        return f"n{self.names}"

    def evolve(self, sql: str) -> None:
        name = self.chance.choice(list(self.columns))
        declared, _, make = self.columns[name]
        if declared in WIDER:
            self.spark.sql(f"ALTER TABLE {sql} ALTER COLUMN `{name}` TYPE {WIDER[declared]}")
            arrow = SIMPLE[WIDER[declared]][0] if WIDER[declared] in SIMPLE else pa.decimal128(12, 2)
            self.columns[name] = (WIDER[declared], arrow, make)
        elif self.chance.random() < 0.5:
            new = self.new_name()
            self.spark.sql(f"ALTER TABLE {sql} RENAME COLUMN `{name}` TO `{new}`")
            self.columns = {(new if key == name else key): value for key, value in self.columns.items()}
        else:
            new = self.new_name()
            self.columns[new] = random_type(self.chance)
            self.spark.sql(f"ALTER TABLE {sql} ADD COLUMN `{new}` {self.columns[new][0]}")


def rows_of(delta: TableDelta) -> list[tuple[pa.Table, int]]:
    assert delta.change is not None, delta.reason
    sides = [(delta.change.added, 1), (delta.change.removed, -1)]
    return [(rows.toArrow(), sign) for rows, sign in sides if rows is not None]


def delivered(
    signed_rows: list[tuple[pa.Table, int]], name: TableName, schema: spark_types.StructType
) -> Counter[Any]:
    """The rows as ClickHouse gets them, with their hashes, and as JSON."""
    columns = [
        MirroredColumn(field.name, column_type("s", field.name, field.dataType), "")
        for field in schema.fields
    ]
    json_rows = JsonRows("s", name, schema, ())
    sent: Counter[Any] = Counter()
    for table, sign in signed_rows:
        rows = CollectedRows(table, frame=pytest.fail)
        for batch in batches(rows, columns, 1000, len(rows)):
            arrow = batch.table(columns, sign, 1, 0).drop_columns(["_chunk"])
            sent.update(_bytes(arrow.slice(index, 1)) for index in range(arrow.num_rows))
            sent.update((sign, digest) for digest in batch.hashes)
        sent.update((sign, comparable(row)) for row in json_rows.rows(rows, 1000, len(rows)))
    return sent


def _bytes(row: pa.Table) -> str:
    return str([column.cast(pa.string()).to_pylist() if pa.types.is_primitive(column.type) else
                column.to_pylist() for column in row.columns])  # fmt: skip


def check(spark: SparkSession, table: LakeTable, old: Version, new: Version) -> TableDelta:
    """The delta that this process reads, compared with Spark's."""
    jobs = spark_jobs(spark)
    with pytest.MonkeyPatch.context() as patch:
        # Deliveries send whole what has lost columns; here it is read.
        patch.setattr(type(table), "columns_lost", lambda *_: [])
        collected = delta_of(table, spark, old, new)
        if collected.left_to_spark is None:
            assert spark_jobs(spark) == jobs
        patch.setattr(limits, "MAX_DRIVER_LOOKUP_FILES", 0)
        by_spark = delta_of(table, spark, old, new)
    # Rows have the newest columns, whatever the columns of their version were.
    schema = spark.table(table.name.sql).schema
    here = rows_of(collected)
    assert delivered(here, table.name, schema) == delivered(rows_of(by_spark), table.name, schema)
    expected = [(field.name, field.type) for field in to_arrow_schema(schema)]
    for rows, _ in here:
        assert [(field.name, field.type) for field in rows.schema] == expected
    return collected


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 30), marks=pytest.mark.slow)])
def test_random_deltas_are_those_of_spark(spark: SparkSession, lake: IcebergLake, seed: int | range) -> None:
    left: Counter[ReasonCode] = Counter()
    read_here = 0
    for number in [seed] if isinstance(seed, int) else seed:
        table = Table(spark, lake, random.Random(number))
        table.insert()
        versions = [table.lake_table.current_version()]
        for _ in range(6):
            table.change()
            versions.append(table.lake_table.current_version())
        for old, new in [*pairwise(versions), (versions[0], versions[-1]), (versions[2], versions[5])]:
            delta = check(spark, table.lake_table, old, new)
            if delta.left_to_spark is None:
                read_here += 1
            else:
                left[delta.left_to_spark.code] += 1
        spark.sql(f"DROP TABLE {table.name.sql}")
    assert read_here > 4 * left.total(), left


def test_what_this_process_does_not_read_is_left_to_spark(
    spark: SparkSession, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, lake, random.Random(1))
    table.insert()
    first = table.lake_table.current_version()
    for _ in range(2):
        table.insert()
    last = table.lake_table.current_version()
    for name, limit, code in (
        ("MAX_DRIVER_ROWS", 1, ReasonCode.MANY_ROWS_CHANGED),
        ("MAX_DRIVER_LOOKUP_FILES", 1, ReasonCode.CHANGE_IN_MANY_FILES),
        ("MAX_DRIVER_LOOKUP_BYTES", 10, ReasonCode.CHANGE_IN_LARGE_FILES),
        ("MAX_ARROW_BYTES", 10, ReasonCode.CHANGED_ROWS_LARGE),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, limit)
            delta = delta_of(table.lake_table, spark, first, last)
        assert delta.left_to_spark is not None
        assert delta.left_to_spark.code is code
    assert delta_of(table.lake_table, spark, first, last).left_to_spark is None
    spark.sql(f"ALTER TABLE {table.name.sql} SET TBLPROPERTIES ('write.format.default' = 'orc')")
    table.insert()
    delta = check(spark, table.lake_table, first, table.lake_table.current_version())
    assert delta.left_to_spark is not None
    assert delta.left_to_spark.code is ReasonCode.FILE_FORMAT_OF_SPARK


def test_a_version_keeps_the_columns_that_it_had(spark: SparkSession, lake: IcebergLake) -> None:
    name = TableName("lake", ("default",), "spelled")

    def version(statement: str, row: str) -> Version:
        spark.sql(statement.format(name.sql))
        spark.sql(f"INSERT INTO {name.sql} VALUES {row}")
        return lake.load(name).current_version()

    first = version("CREATE TABLE {} (Id INT, word STRING, n INT) USING iceberg", "(1, 'a', 1)")
    added = version("ALTER TABLE {} ADD COLUMN more INT", "(2, 'b', 2, 2)")
    renamed = version("ALTER TABLE {} RENAME COLUMN Id TO number", "(3, 'c', 3, 3)")
    spark.sql(f"ALTER TABLE {name.sql} DROP COLUMN word")
    again = version("ALTER TABLE {} ADD COLUMN word STRING", "(4, 4, 4, 'd')")
    table = lake.load(name)
    names = [table.schema_at(at).fieldNames() for at in (first, added, renamed, again)]
    assert names == [
        ["Id", "word", "n"],
        ["Id", "word", "n", "more"],
        ["number", "word", "n", "more"],
        ["number", "n", "more", "word"],
    ]
    assert [table.read(spark, at).columns for at in (first, added, renamed, again)] == names
    # `word` is another column by now, with NULL in the older rows.
    assert table.columns_lost(first, added) == ["Id", "word"]
    assert table.columns_lost(added, renamed) == ["word"]
    assert table.columns_lost(renamed, again) == ["word"]
    assert table.columns_lost(again, again) == []
    delta = delta_of(table, spark, first, added)
    assert delta.reason == Reason.of(ReasonCode.COLUMNS_CHANGED_SINCE, columns="Id, word")
    assert delta.rows.columns == names[1]
    spark.sql(f"DROP TABLE {name.sql}")
