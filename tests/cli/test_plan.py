"""`taut plan` as text, JSON and Markdown, and its exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import tautochrone.app.locate
import tautochrone.app.plan
from tautochrone.cli.diff import show_differences
from tautochrone.cli.main import main
from tautochrone.errors import DefinitionError
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.project_plan import (
    ColumnChange,
    ColumnChangeKind,
    DatasetPlan,
    DefinitionChange,
    FlowPlan,
    FlowStart,
    ProjectPlan,
    Refusal,
    SinkAction,
    SinkPlan,
    Treatment,
)
from tautochrone.model.reason import Reason, ReasonCode, unclassified

TOTALS, TOP, OLD = (TableName("lake", ("shop",), name) for name in ("totals", "top", "old"))
CHANGED = ProjectPlan(
    job="shop",
    checkpoint=CheckpointNumber(7),
    datasets=(
        DatasetPlan(
            dataset=TOTALS,
            kind=DatasetKind.MATERIALIZED_VIEW,
            change=DefinitionChange.CHANGED,
            treatment=Treatment.BUILD,
            mode=RefreshMode.FULL,
            reason=Reason.of(ReasonCode.DEFINITION_CHANGED, parts=["query"]),
            difference=(" SELECT kind", "-WHERE a > 1", "+WHERE a > 2"),
            columns=(
                ColumnChange(name="n", kind=ColumnChangeKind.ADDED, after="bigint"),
                ColumnChange(name="m", kind=ColumnChangeKind.RETYPED, before="int", after="bigint"),
            ),
            rows=52,
            duration_ms=1800,
            sinks=("mirror",),
            location="a.sql:1",
        ),
        DatasetPlan(
            dataset=TOP,
            kind=DatasetKind.MATERIALIZED_VIEW,
            change=DefinitionChange.UNCHANGED,
            treatment=Treatment.COMPARE,
            mode=RefreshMode.DIFF,
            is_conditional=True,
            reason=Reason.of(ReasonCode.FEW_INPUT_ROWS),
            causes=(TOTALS,),
        ),
        DatasetPlan(
            dataset=OLD,
            kind=DatasetKind.MATERIALIZED_VIEW,
            change=DefinitionChange.REMOVED,
            treatment=Treatment.RETIRE,
            reason=Reason.of(ReasonCode.DATASET_NOT_DEFINED),
        ),
    ),
    flows=(
        FlowPlan(
            flow="orders_1",
            dataset=TOTALS,
            start=FlowStart.LOST,
            reason=Reason.of(ReasonCode.FLOW_POSITION_LOST, table=str(TOTALS)),
        ),
    ),
    sinks=(
        SinkPlan(
            sink="mirror",
            format="clickhouse",
            change=DefinitionChange.UNCHANGED,
            action=SinkAction.SEND_ALL,
            reason=Reason.of(ReasonCode.SINK_SENT_WHOLE, tables=str(TOTALS)),
            sent_whole={
                TOTALS: Reason.of(ReasonCode.CHANGES_UNKNOWN, error_class="HISTORY_LOST", text="replaced")
            },
        ),
    ),
)
REFUSED = ProjectPlan(
    job="shop",
    datasets=(
        DatasetPlan(
            dataset=TOTALS,
            kind=DatasetKind.STREAMING_TABLE,
            change=DefinitionChange.CHANGED,
            treatment=Treatment.REFUSE,
            reason=Reason.of(ReasonCode.RUN_WILL_REFUSE, error_class="INCOMPATIBLE_SCHEMA_CHANGE"),
            refusal=Refusal(
                error_class="INCOMPATIBLE_SCHEMA_CHANGE", text="it cannot", hint="rebuild it", ends_run=True
            ),
        ),
    ),
)

UNCERTAIN = ProjectPlan(
    job="shop",
    datasets=(
        DatasetPlan(
            dataset=TOTALS,
            kind=DatasetKind.STREAMING_TABLE,
            change=DefinitionChange.UNCHANGED,
            treatment=Treatment.LEAVE,
            reason=Reason.of(ReasonCode.DEFINITION_UNCHANGED),
            refusal=Refusal(error_class="STREAM_INPUT_CHANGED", text="it was overwritten", is_certain=False),
        ),
    ),
)


def run(monkeypatch: pytest.MonkeyPatch, planned: ProjectPlan | Exception, *arguments: str) -> int:
    def plan(*_: object, **__: object) -> ProjectPlan:
        if isinstance(planned, Exception):
            raise planned
        return planned

    located = None, SimpleNamespace(sinks_off=None)
    monkeypatch.setattr(tautochrone.app.locate, "locate", lambda _: located)
    monkeypatch.setattr(tautochrone.app.plan, "plan", plan)
    return main(["plan", *arguments])


def test_text_says_dangers_first(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch, CHANGED) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [
        "! dataset retired",
        "! position lost",
        "! sink rebuilt",
    ]
    text = "\n".join(lines)
    assert "build (full)" in text
    assert "compare (diff)?" in text
    assert "its inputs hold few rows; shop.totals may change" in text
    assert "column +n bigint" in text
    assert "column ~m int → bigint" in text
    assert "+WHERE a > 2" in text
    assert "goes to: mirror" in text


def test_what_stays_and_what_was_renamed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    stays, renamed = (
        DatasetPlan(
            dataset=name,
            kind=DatasetKind.MATERIALIZED_VIEW,
            change=change,
            treatment=treatment,
            reason=Reason.of(reason),
            renamed_from=former,
        )
        for name, change, treatment, reason, former in (
            (
                TOTALS,
                DefinitionChange.UNCHANGED,
                Treatment.LEAVE,
                ReasonCode.DEFINITION_UNCHANGED,
                None,
            ),
            (TOP, DefinitionChange.NEW, Treatment.BUILD, ReasonCode.FIRST_BUILD, OLD),
        )
    )
    assert run(monkeypatch, ProjectPlan(job="shop", datasets=(stays, renamed))) == 0
    text = capsys.readouterr().out
    assert "  `taut rename old top` before the run keeps its rows\n" in text
    assert text.endswith("\n1 more dataset stays as it is\n")


def test_json_has_codes(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch, CHANGED, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["has_changes"]
    assert [danger["kind"] for danger in value["dangers"]] == [
        "dataset retired",
        "position lost",
        "sink rebuilt",
    ]
    totals = value["datasets"][0]
    assert (totals["dataset"], totals["treatment"], totals["mode"]) == ("lake.shop.totals", "build", "full")
    assert totals["reason"]["code"] == "DEFINITION_CHANGED"
    assert value["sinks"][0]["sent_whole"]["lake.shop.totals"]["code"] == "CHANGES_UNKNOWN"


def test_markdown_folds_differences(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch, CHANGED, "--markdown") == 0
    text = capsys.readouterr().out
    assert "| `shop.totals` | changed | build (full) | 52 | 1.8 s |" in text
    assert "<details><summary>shop.totals</summary>" in text
    assert "\n-WHERE a > 1\n+WHERE a > 2\n" in text


@pytest.mark.parametrize(
    ("planned", "status"),
    [
        (ProjectPlan(job="shop"), 0),
        (CHANGED, 1),
        (DefinitionError("CIRCULAR", "they read each other"), 2),
        (REFUSED, 3),
        (UNCERTAIN, 1),
    ],
)
def test_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, planned: ProjectPlan | Exception, status: int
) -> None:
    assert run(monkeypatch, planned, "--exit-code") == status
    capsys.readouterr()


def test_reasons_why_all_rows_of_a_build_were_compared(capsys: Any) -> None:
    def line(name: str, columns: list[str]) -> dict[str, Any]:
        nothing = dict.fromkeys(("changed", "changed_values", "problem"))
        rows = {"added": 1, "removed": 0, "columns_added": columns, "columns_removed": [], "samples": {}}
        return {"table": name, **rows, **nothing, "reason": unclassified(f"reason of {name}")}

    show_differences([line("a", ["n"]), line("b", []), line("c", ["n"])], [], of_build=True)
    out = capsys.readouterr().out
    assert [name for name in "abc" if f"reason of {name}" in out] == ["b"]
    assert "all rows of 2 tables were compared: what is built with other columns" in out


def test_what_may_be_refused_is_a_danger(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch, UNCERTAIN) == 0
    first = capsys.readouterr().out.splitlines()[0]
    text = "if rows of an input turn out to be others: [STREAM_INPUT_CHANGED] it was overwritten"
    assert first == f"! dataset refused: lake.shop.totals: {text}"


def test_without_the_option_only_errors_are_failures(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch, REFUSED) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("! run refused: lake.shop.totals: [INCOMPATIBLE_SCHEMA_CHANGE] it cannot\n")
    assert "    hint: rebuild it\n" in shown
    assert run(monkeypatch, DefinitionError("CIRCULAR", "they read each other")) == 1


@pytest.mark.parametrize(
    ("difference", "said"),
    [(None, "is not known"), ((), "its text is the same: a Python function that runs in it")],
)
def test_a_difference_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    difference: tuple[str, ...] | None,
    said: str,
) -> None:
    changed = replace(CHANGED.datasets[0], difference=difference, parts=("functions",))
    assert run(monkeypatch, replace(CHANGED, datasets=(changed,))) == 0
    assert said in capsys.readouterr().out
