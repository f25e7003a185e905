"""What a plan foretells is what the next run does: changes of definitions × datasets, run and compared."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.planning.projects import CHANGES, REFUSED, write_project
from tests.support.harness import Happened, Pipeline

import tautochrone.testing.sqlite_sink  # noqa: F401
from tautochrone.errors import TautochroneError
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.project_plan import (
    ColumnChangeKind,
    DangerKind,
    DatasetPlan,
    DefinitionChange,
    ProjectPlan,
    SinkAction,
    Treatment,
)

pytestmark = pytest.mark.spark

_UNREAD = frozenset({Treatment.CREATE, Treatment.ALTER, Treatment.CLEAR})
"""What the takeover does: the reason of a refresh that follows is its own."""


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
    delivered = {event["sink"]: event["replaced_reasons"] for event in happened.of("sink_delivered")}
    for sink in plan.sinks:
        whole = {entry["dataset"] for entry in delivered.get(sink.sink, [])}
        assert {str(table) for table in sink.sent_whole} == whole, (sink, delivered)


def _require_same_refresh(planned: DatasetPlan, event: dict[str, Any] | None) -> None:
    mode = RefreshMode.NO_DATA if event is None else RefreshMode(event["mode"])
    foretold = planned.mode or RefreshMode.NO_DATA
    assert mode is foretold or (planned.is_conditional and mode is RefreshMode.NO_DATA), (planned, event)
    if event is not None and mode not in (RefreshMode.NO_DATA, None) and planned.treatment not in _UNREAD:
        assert event["reason_code"] == planned.reason.code, (planned, event)


def _require_columns(planned: DatasetPlan, pipeline: Pipeline) -> None:
    schema = pipeline.job.lake.schema(planned.dataset)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for column in planned.columns:
        gone = column.kind is ColumnChangeKind.REMOVED
        assert types.get(column.name) == (None if gone else column.after or column.before), planned


def by_name(plan: ProjectPlan) -> dict[str, DatasetPlan]:
    return {planned.dataset.table: planned for planned in plan.datasets}


def test_runs_do_what_was_planned(pipeline: Pipeline) -> None:
    write_project(pipeline)
    first = pipeline.plan()
    assert {planned.change for planned in first.datasets} == {DefinitionChange.NEW}
    require_same(first, pipeline.run(), pipeline)
    before: ProjectPlan | None = None
    for name, changes in CHANGES.items():
        for change in changes:
            change(pipeline)
        plan = pipeline.plan()
        happened = pipeline.run()
        assert happened.state == "COMPLETED", (name, list(happened))
        try:
            require_same(plan, happened, pipeline)
        except AssertionError as error:
            raise AssertionError(name) from error
        assert plan.has_changes is (name != "cosmetic"), (name, plan)
        before = plan
        _require_expected(name, plan)
    assert before is not None
    assert not pipeline.plan().has_changes
    for change, error_class in REFUSED.values():
        change(pipeline)
        plan = pipeline.plan()
        assert [refusal.error_class for refusal in plan.refusals] == [error_class]
        assert plan.dangers[0].kind is DangerKind.RUN_REFUSED
        with pytest.raises(TautochroneError, match=error_class):
            pipeline.run()
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
    pipeline.write("definitions/big.sql", "CREATE MATERIALIZED VIEW big AS SELECT amount FROM sales;")
    assert refused() == {"picked"}
    assert not refused("picked")


def _require_expected(name: str, plan: ProjectPlan) -> None:
    """What people would say of a change, beside that the run did the same."""
    datasets = by_name(plan)
    changed = {table for table, part in datasets.items() if part.change is not DefinitionChange.UNCHANGED}
    dangers = {danger.kind for danger in plan.dangers}
    if name == "filter_and_udf":
        assert changed == {"big", "named"}
        assert datasets["big"].difference[-2:] == ("-WHERE amount > 10", "+WHERE amount > 20")
        assert datasets["named"].parts == ("functions",)
        assert datasets["pairs"].causes == (datasets["big"].dataset,)
        assert datasets["top"].treatment is Treatment.LEAVE
    elif name == "view_renamed":
        assert datasets["topmost"].renamed_from == datasets["top"].dataset
        assert dangers == {DangerKind.DATASET_RETIRED}
    elif name == "source_and_sink":
        assert [(sink.sink, sink.action) for sink in plan.sinks] == [("mirror", SinkAction.SEND_ALL)]
        assert datasets["totals"].sinks == ("mirror",)
    elif name == "column_gone":
        assert [c.kind for c in datasets["sales"].columns] == [ColumnChangeKind.KEPT]
    elif name == "view_gone_and_type":
        assert DangerKind.SINK_REBUILT in dangers
