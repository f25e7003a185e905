"""A query with the one result, of several that Spark may give, that a followed view has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from pyspark.sql import DataFrame

from tautochrone.algebra.delta import Differentiator
from tautochrone.algebra.nodes import CutSide, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.model.names import TableName
from tautochrone.spark.execute.engine import Inputs, SparkEngine
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.jvm.catalyst import Catalyst
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["with_total_order"]


def with_total_order(frame: DataFrame, catalog: str) -> DataFrame | None:
    """The rows of a query whose ROW_NUMBER, LAG or LIMIT take tied rows in the order of all columns.

    None if the query has no such place, or cannot be followed.

    Args:
        frame: the query; its tables are read as its session shows them.
        catalog: the lake's.
    """
    view = plan_of(frame, catalog)
    if view.obstacles or not view.breaks_ties:
        return None
    session = frame.sparkSession

    def read(table: TableName, _side: CutSide) -> DataFrame:
        return session.table(table.sql)

    def no_lookup(
        _table: TableName,
        _side: CutSide,
        _request: LookupRequest,
        _wider: Callable[[], LookupRequest | None],
    ) -> None:
        return None

    def no_state(*_: object) -> NoReturn:
        raise AssertionError("a query that is computed as a whole has no states")

    inputs = Inputs(
        read=read,
        delta=lambda _table, _columns: None,
        rows=lambda _table: None,
        stored_rows=lambda _number: None,
        stored=no_state,
        lookup=no_lookup,
    )
    nodes = dict.fromkeys(walk(view.plan))
    scans = tuple(node for node in nodes if isinstance(node, Scan))
    engine = SparkEngine(Catalyst(session), view.attributes, inputs, scans)
    plan = Differentiator(engine, RULES, states=frozenset()).rows_after(view.plan)
    return engine.lowering.frame(plan).toDF(*frame.columns)
