"""The rows of a repeated plan's leaves are gathered up to a limit, and only if all leaves may have few."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from tautochrone.algebra.nodes import CutSide, KeySemiJoin, Materialized, ScanAtCut, StateScan, Union
from tautochrone.model import limits
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.execute import engine as engines
from tautochrone.spark.execute import materialize
from tautochrone.spark.execute.engine import Inputs, SparkEngine
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.execute.repeated_plans import RepeatedPlans
from tautochrone.spark.jvm.catalyst import Catalyst, items

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark: SparkSession) -> SparkEngine:
    """Of a large state with two groups by its second column."""
    state = spark.sql("SELECT id AS a, id % 2 AS b FROM range(0, 1000, 1, 1)")
    catalyst = Catalyst(spark)
    attributes = {catalyst.column_id(each): each for each in items(analyzed_plan(state).output())}
    inputs = Mock(spec=Inputs, stored=lambda _number, rows: rows(state) if rows else state)
    inputs.stored_rows.return_value = inputs.rows.return_value = 10**6
    return SparkEngine(catalyst, attributes, inputs, (), plans=RepeatedPlans())


def groups(engine: SparkEngine, spark: SparkSession, condition: str) -> KeySemiJoin:
    """The rows of the groups that meet a condition."""
    columns = tuple(engine.attributes)
    handle, rows = local_relation(spark.sql(f"SELECT * FROM VALUES (0L), (7L) AS t(k) WHERE {condition}"))
    key = engine.fresh()
    output = engine.columns.with_expected_ids(handle.output(), (key,))
    engine.columns.define([key], items(output))
    relation = engine.catalyst.local_relation(output, handle.data())
    keys = Materialized(columns=(key,), handle=relation, rows=rows)
    state = StateScan(columns=columns, operator=Mock(number=1))
    return KeySemiJoin(columns=columns, child=state, keys=keys, on=((columns[1], key),))


def test_rows_of_a_hot_key_are_not_all_collected(
    spark: SparkSession, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, cold = groups(engine, spark, "k = 0"), groups(engine, spark, "k = 7")
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 10)
    collected: list[int] = []
    collect = materialize.collect

    def recorded(frame: Any) -> Any:
        rows = collect(frame)
        collected.append(len(rows))
        return rows

    monkeypatch.setattr(materialize, "collect", recorded)
    assert engine._gathered_by_keys(hot) is None
    assert collected == [11]
    gathered = engine._gathered_by_keys(cold)
    assert gathered is not None
    assert gathered.rows.data().size() == 0


def test_nothing_is_gathered_in_vain(
    spark: SparkSession, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering = Mock(return_value=None)
    monkeypatch.setattr(engines, "few_rows", gathering)
    rows = groups(engine, spark, "k = 0")
    table = ScanAtCut(columns=rows.columns, scan=Mock(), side=CutSide.AFTER)
    assert engine._materialize_repeated(Union(columns=rows.columns, inputs=(rows, table))) is None
    gathering.assert_not_called()
    for _ in range(5):
        assert engine._materialize_repeated(Union(columns=rows.columns, inputs=(rows, rows))) is None
    assert gathering.call_count == 3
