"""Snapshots as events: what the events give is what a slow comparison of the snapshots gives."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, IntegerType, LongType, MapType, StringType, StructField, StructType

from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.spark.analysis.session_context import tuned_session
from tautochrone.spark.execute.merge_events import ROWS_OF_KEY, event_merge, snapshot_difference

pytestmark = pytest.mark.spark

DATA = StructType(
    [
        StructField("id", IntegerType()),
        StructField("a", IntegerType()),
        StructField("b", MapType(StringType(), IntegerType())),
    ]
)
LOG = StructType(
    [
        *DATA.fields,
        StructField("__taut_sequence", LongType()),
        StructField("__taut_delete", BooleanType()),
        StructField("__taut_truncate", BooleanType()),
    ]
)
Snapshot = dict[int, tuple[Any, Any]]
"""Values by key."""

CHECKS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
MODES = {
    "newest": AutoCdc(keys=("id",), sequence="s"),
    "history": AutoCdc(keys=("id",), sequence="s", scd_type=2),
    "history-of-a": AutoCdc(keys=("id",), sequence="s", scd_type=2, tracked=ColumnChoice(("a",))),
}


def expected_rows(auto_cdc: AutoCdc, snapshots: list[Snapshot]) -> Counter[str]:
    """SCD type 1 and 2 by walking over the snapshots, whose versions are 10, 20, …"""
    if auto_cdc.scd_type == 1:
        return Counter(str([key, *values]) for key, values in snapshots[-1].items())
    closed: list[list[Any]] = []
    current: dict[int, list[Any]] = {}
    for number, snapshot in enumerate(snapshots, 1):
        version = number * 10
        closed += [[*current.pop(key)[:-1], version] for key in current.keys() - snapshot.keys()]
        for key, (a, b) in snapshot.items():
            row = current.get(key)
            if row is not None and (row[1] == a if auto_cdc.tracked is not None else row[1:3] == [a, b]):
                row[1:3] = a, b
                continue
            if row is not None:
                closed.append([*row[:-1], version])
            current[key] = [key, a, b, version, None]
    return Counter(map(str, [*closed, *current.values()]))


def check(spark: SparkSession, auto_cdc: AutoCdc, snapshots: list[Snapshot]) -> None:
    log: list[Any] = []
    columns = auto_cdc.merge_columns(LOG.names, "test")
    for number, snapshot in enumerate(snapshots, 1):
        rows = spark.createDataFrame([(key, *values) for key, values in snapshot.items()], DATA)
        known = spark.createDataFrame(log, LOG)
        events = snapshot_difference(rows, known, LOG, ["id"], sf.lit(number * 10)).collect()
        assert all(event[ROWS_OF_KEY] == (0 if event["__taut_delete"] else 1) for event in events)
        before = snapshots[number - 2] if number > 1 else {}
        keys = before.keys() | snapshot.keys()
        assert {event["id"] for event in events} == {
            key for key in keys if before.get(key) != snapshot.get(key)
        }
        log += [tuple(event)[:-1] for event in events]
    merge = event_merge(auto_cdc, columns, LOG, truncates=False)
    nothing = spark.createDataFrame([], merge.state_schema("run"))
    merged = merge.merge(merge.folded(spark.createDataFrame(log, LOG)), nothing)
    assert Counter(str(list(row)) for row in merged.added.collect()) == expected_rows(auto_cdc, snapshots)


VALUES = st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from([None, {}, {"x": 1}, {"x": None}]))
SNAPSHOTS = st.lists(st.dictionaries(st.integers(0, 12), VALUES), min_size=2, max_size=4)


@pytest.mark.parametrize("mode", ["history-of-a"])
def test_events_of_snapshots_give_their_rows(spark: SparkSession, mode: str) -> None:
    fixed = [
        {1: (0, None), 2: (1, {"x": 1})},
        {1: (0, {}), 3: (None, None)},
        {},
        {2: (1, {"x": 1}), 3: (None, None)},
    ]
    with tuned_session(spark, delta_rows=50, input_rows=50):
        check(spark, MODES[mode], fixed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_events_of_many_snapshots_give_their_rows(spark: SparkSession, mode: str) -> None:
    @settings(CHECKS, max_examples=40)
    @given(SNAPSHOTS)
    def run(snapshots: list[Snapshot]) -> None:
        check(spark, MODES[mode], snapshots)

    with tuned_session(spark, delta_rows=50, input_rows=50):
        run()


def test_keys_that_cannot_be_told_apart_are_counted(spark: SparkSession) -> None:
    known = spark.createDataFrame([(1, 0, None, 10, False, False)], LOG)
    rows = spark.createDataFrame(
        [(1, 0, None), (1, 0, None), (2, 0, None), (2, 1, None), (None, 5, None)], DATA
    )
    events = snapshot_difference(rows, known, LOG, ["id"], sf.lit(20)).collect()
    assert {event["id"]: event[ROWS_OF_KEY] for event in events} == {1: 2, 2: 2, None: 1}


PARTS = (
    "id INT, a STRING, b STRING, c ARRAY<STRING>, d STRUCT<x: STRING, y: STRING>, e MAP<STRING, TIMESTAMP>"
)
EARLY, LATE = map(datetime.fromisoformat, ("2026-01-05T08:00:00.000100", "2026-01-05T08:00:00.000900"))


def test_change_of_where_null_stands_is_an_event(spark: SparkSession) -> None:
    before = [
        (1, "x", None, None, None, None),
        (2, None, None, ["x", None], None, None),
        (3, None, None, None, ("x", None), None),
        (4, None, None, None, None, {"k": EARLY}),
        (5, None, "x", ["x"], (None, "x"), {"k": EARLY}),
    ]
    after = [
        (1, None, "x", None, None, None),
        (2, None, None, ["x"], None, None),
        (3, None, None, None, (None, "x"), None),
        (4, None, None, None, None, {"k": LATE}),
        (5, None, "x", ["x"], (None, "x"), {"k": EARLY}),
    ]
    log = f"{PARTS}, __taut_sequence BIGINT, __taut_delete BOOLEAN, __taut_truncate BOOLEAN"
    known = spark.createDataFrame([(*row, 10, False, False) for row in before], log)
    rows = spark.createDataFrame(after, PARTS)
    events = snapshot_difference(rows, known, known.schema, ["id"], sf.lit(20)).collect()
    assert {event["id"] for event in events} == {1, 2, 3, 4}
