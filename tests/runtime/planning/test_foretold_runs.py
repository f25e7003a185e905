"""What a plan foretells is what the next run does: changes of definitions × datasets, run and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.runtime.planning.projects import CHANGES, REFUSED, TOGETHER, write_project
from tests.support.harness import Happened, Pipeline

import tautochrone.testing.sqlite_sink  # noqa: F401
from tautochrone.app.stores import project_store
from tautochrone.errors import TautochroneError
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.project_plan import (
    ColumnChangeKind,
    DangerKind,
    DatasetPlan,
    DefinitionChange,
    FlowStart,
    ProjectPlan,
    SinkAction,
    Treatment,
)
from tautochrone.model.reason import ReasonCode

pytestmark = pytest.mark.spark

_OF_TABLES = frozenset({Treatment.CREATE, Treatment.ALTER, Treatment.CLEAR})
"""What the takeover does: the refresh that follows has a reason of its own. So has one by a new flow."""


def require_same(plan: ProjectPlan, happened: Happened, pipeline: Pipeline) -> None:
    """Modes, reasons, failures, columns, and what the run says of retired datasets and sinks."""
    refreshes = {event["dataset"]: event for event in happened.of("refresh")}
    failed = {event["dataset"]: event for event in happened.of("refresh_failed")}
    for planned in plan.datasets:
        name = str(planned.dataset)
        if planned.refusal is not None and planned.refusal.is_certain:
            assert planned.refusal.error_class in failed[name]["error"], planned
            continue
        _require_same_refresh(planned, refreshes.get(name))
        if planned.change is not DefinitionChange.REMOVED:
            _require_columns(planned, pipeline)
    retired = [str(planned.dataset) for planned in plan.datasets if planned.treatment is Treatment.RETIRE]
    assert [name for event in happened.of("datasets_retired") for name in event["datasets"]] == retired
    assert {event["dataset"]: event["columns"] for event in happened.of("columns_added")} == {
        str(planned.dataset): [c.name for c in planned.columns if c.kind is ColumnChangeKind.ADDED]
        for planned in plan.datasets
        if planned.treatment is Treatment.ALTER
    }
    # A sink may get the newest checkpoint before the run makes its own.
    deliveries = happened.of("sink_delivered")
    for sink in plan.sinks:
        replaced = [event["replaced_reasons"] for event in deliveries if event["sink"] == sink.sink]
        whole = {entry["dataset"] for entries in replaced for entry in entries}
        assert {str(table) for table in sink.sent_whole} == whole, (sink, deliveries)


def _require_same_refresh(planned: DatasetPlan, event: dict[str, Any] | None) -> None:
    mode = RefreshMode.NO_DATA if event is None else RefreshMode(event["mode"])
    foretold = planned.mode or RefreshMode.NO_DATA
    assert mode is foretold or (planned.is_conditional and mode is RefreshMode.NO_DATA), (planned, event)
    is_own = planned.treatment in _OF_TABLES or planned.reason.code is ReasonCode.FLOW_BEGINS
    if event is not None and mode is not RefreshMode.NO_DATA and not is_own:
        assert event["reason_code"] == planned.reason.code, (planned, event)


def _require_columns(planned: DatasetPlan, pipeline: Pipeline) -> None:
    schema = pipeline.job.lake.schema(planned.dataset)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for column in planned.columns:
        gone = column.kind is ColumnChangeKind.REMOVED
        assert types.get(column.name) == (None if gone else column.after or column.before), planned


def by_name(plan: ProjectPlan) -> dict[str, DatasetPlan]:
    return {planned.dataset.table: planned for planned in plan.datasets}


@pytest.mark.parametrize(
    ("rounds", "is_long"),
    [(TOGETHER, False), pytest.param([[name] for name in CHANGES], True, marks=pytest.mark.slow)],
)
def test_runs_do_what_was_planned(pipeline: Pipeline, rounds: Sequence[Sequence[str]], is_long: bool) -> None:
    assert sorted(name for names in rounds for name in names) == sorted(CHANGES)
    write_project(pipeline)
    first = pipeline.plan()
    assert {planned.change for planned in first.datasets} == {DefinitionChange.NEW}
    require_same(first, pipeline.run(), pipeline)
    store = project_store(pipeline.settings)
    pin = store.reads.resolve(owner="an analyst", lease_ms=3_600_000)
    for names in rounds:
        for change in (change for name in names for change in CHANGES[name]):
            change(pipeline)
        plan = pipeline.plan()
        happened = pipeline.run()
        assert happened.state == "COMPLETED", (names, list(happened))
        try:
            require_same(plan, happened, pipeline)
        except AssertionError as error:
            raise AssertionError(names) from error
        assert plan.has_changes is ("cosmetic" not in names), (names, plan)
        for name in names:
            _require_expected(name, plan)
    store.pins.release(pin.pin)
    store.close()
    assert not pipeline.plan().has_changes
    for refused_change, error_class in REFUSED.values():
        refused_change(pipeline)
        plan = pipeline.plan()
        assert [refusal.error_class for refusal in plan.refusals] == [error_class]
        assert plan.dangers[0].kind is DangerKind.RUN_REFUSED
        with pytest.raises(TautochroneError, match=error_class):
            pipeline.run()
    if is_long:
        _rebuild(pipeline)


def _rebuild(pipeline: Pipeline) -> None:
    """What is rebuilt, and a view that changes, is refused by streaming tables until they are rebuilt too."""

    def refused(*full: str) -> set[str]:
        plan = pipeline.plan(full=full)
        require_same(plan, pipeline.run(full=full), pipeline)
        refusals = {name: part.refusal for name, part in by_name(plan).items() if part.refusal is not None}
        assert {refusal.error_class for refusal in refusals.values()} <= {"STREAM_INPUT_CHANGED"}
        assert not any(refusal.ends_run for refusal in refusals.values())
        return {*refusals}

    assert refused("clean") == {"chosen"}
    assert not refused("clean", "chosen")
    pipeline.write(
        "definitions/picked.sql", "CREATE STREAMING TABLE picked AS SELECT amount FROM STREAM big;"
    )
    assert not refused()
    pipeline.write("definitions/big.sql", "CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales;")
    assert refused() == {"picked"}
    assert not refused("picked")


def _require_expected(name: str, plan: ProjectPlan) -> None:
    """What people would say of a change, beside that the run did the same."""
    datasets = by_name(plan)
    changed = {table for table, part in datasets.items() if part.change is not DefinitionChange.UNCHANGED}
    dangers = {danger.kind for danger in plan.dangers}
    if name == "filter_and_udf":
        assert changed >= {"big", "named"}
        assert datasets["big"].difference[-2:] == ("-WHERE amount > 10", "+WHERE amount > 20")
        assert datasets["named"].parts == ("functions",)
        assert datasets["pairs"].causes == (datasets["big"].dataset,)
        assert datasets["totals"].treatment is Treatment.LEAVE
        (pinned,) = plan.pins
        assert pinned.owner == "an analyst"
        assert datasets["big"].dataset in pinned.datasets
    elif name == "flow_renamed":
        assert {(flow.flow, flow.start) for flow in plan.flows} == {
            ("second", FlowStart.BEGINS),
            ("first", FlowStart.LOST),
        }
        assert DangerKind.POSITION_LOST in dangers
    elif name == "expectation_and_invariant":
        assert [(part.invariant, part.change) for part in plan.invariants] == [
            ("positive", DefinitionChange.NEW)
        ]
    elif name == "view_renamed":
        assert datasets["topmost"].renamed_from == datasets["top"].dataset
        assert DangerKind.DATASET_RETIRED in dangers
    elif name == "source_and_sink":
        assert [(sink.sink, sink.action) for sink in plan.sinks] == [("mirror", SinkAction.SEND_ALL)]
        assert datasets["totals"].sinks == ("mirror",)
    elif name == "column_gone":
        assert [c.kind for c in datasets["sales"].columns] == [ColumnChangeKind.KEPT]
    elif name == "view_gone_and_type":
        assert DangerKind.SINK_REBUILT in dangers


def test_what_waits_and_what_a_run_could_not_compute(pipeline: Pipeline) -> None:
    """A new view over a refused table waits, and a text that was recorded and failed is not compared."""
    pipeline.write("in/a.json", '{"id": 1}\n')
    pipeline.write(
        "definitions/base.py",
        f"""
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession

        @dp.table
        def base():
            return SparkSession.active().readStream.schema("id INT").json("{pipeline.folder}/in")
        """,
    )
    pipeline.write("definitions/copied.sql", "CREATE STREAMING TABLE copied AS SELECT * FROM STREAM base;")
    pipeline.write("definitions/v.sql", "CREATE MATERIALIZED VIEW v AS SELECT id FROM base;")
    assert pipeline.run().state == "COMPLETED"
    query = "SELECT CAST(concat('x', id) AS INT) AS id FROM base"
    pipeline.write("definitions/v.sql", f"CREATE MATERIALIZED VIEW v AS {query};")
    assert pipeline.run().failure("v")
    pipeline.write("definitions/new.sql", "CREATE MATERIALIZED VIEW new AS SELECT count(*) AS n FROM copied;")
    datasets = by_name(pipeline.plan(full=["base"]))
    refusal = datasets["copied"].refusal
    assert refusal is not None
    assert refusal.error_class == "STREAM_INPUT_CHANGED"
    new = datasets["new"]
    assert (new.treatment, new.mode) == (Treatment.LEAVE, None)
    assert new.reason.code is ReasonCode.WAITS_FOR_INPUT
    assert (datasets["v"].change, datasets["v"].difference) == (DefinitionChange.CHANGED, None)
    assert "new" not in {
        event["dataset"].rpartition(".")[2] for event in pipeline.run(full=["base"]).of("refresh")
    }
