"""The exit status of `taut verify` tells a script whether anything was compared; answers of `taut query`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

import tautochrone.app.launch
import tautochrone.app.open
import tautochrone.app.verifications
import tautochrone.project.sinks
import tautochrone.reader
import tautochrone.runtime.delivery.audit
import tautochrone.runtime.job.topology
import tautochrone.runtime.views.verify
from tautochrone.cli.main import main
from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.verdict import Verdict
from tautochrone.runtime.delivery.audit import SinkVerdict

ORDERS, SALES = (TableName("lake", ("shop",), name) for name in ("orders", "sales"))


class OpenProject:
    """Two datasets, in no lake."""

    base = lake = None
    settings = SimpleNamespace(sinks=())

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> OpenProject:
        return self

    def __exit__(self, *_: object) -> None: ...

    def analysed(self) -> tuple[object, object]:
        return None, SimpleNamespace(order=(ORDERS, SALES))

    def store(self) -> None: ...

    def open_read_point_server(self, _store: object) -> None: ...


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    declared = (SimpleNamespace(name="mirror"),)
    by_text = {"orders": ORDERS, "sales": SALES}
    monkeypatch.setattr(tautochrone.app.verifications, "verification_by_run", lambda *_: nullcontext())
    located = (None, OpenProject.settings)
    monkeypatch.setattr(tautochrone.app.launch, "locate_and_launch", lambda *_, **__: located)
    monkeypatch.setattr(tautochrone.app.open, "Project", OpenProject)
    monkeypatch.setattr(tautochrone.project.sinks, "sink_declarations", lambda *_: declared)
    monkeypatch.setattr(
        tautochrone.runtime.job.topology, "find_all", lambda _, names: [by_text[name] for name in names]
    )
    return monkeypatch


def view(name: TableName, equal: bool | None) -> Verdict:
    return Verdict(dataset=name, checkpoint=CheckpointNumber(2), equal=equal, missing=0, unexpected=0)


@pytest.mark.parametrize(
    ("answers", "names", "status"),
    [
        ({ORDERS: True, SALES: True}, [], 0),
        ({ORDERS: True, SALES: None}, [], 0),
        ({ORDERS: None, SALES: False}, [], 1),
        ({ORDERS: None, SALES: None}, [], 3),
        ({}, [], 3),
        ({ORDERS: True, SALES: None}, ["orders", "sales"], 3),
        ({SALES: True}, ["orders", "sales"], 3),
        ({SALES: False}, ["orders", "sales"], 1),
        ({SALES: True}, ["sales"], 0),
    ],
)
def test_views(
    project: pytest.MonkeyPatch, answers: dict[TableName, bool | None], names: list[str], status: int
) -> None:
    verdicts = [view(name, equal) for name, equal in answers.items()]
    project.setattr(tautochrone.runtime.views.verify, "verify", lambda *_: verdicts)
    assert main(["verify", *names]) == status


def test_a_view_without_a_checkpoint(project: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = replace(view(SALES, None), checkpoint=None, reason="it was never built")
    project.setattr(tautochrone.runtime.views.verify, "verify", lambda *_: [verdict])
    assert main(["verify"]) == 3
    assert f"{SALES}  no checkpoint  not comparable  (it was never built)\n" in capsys.readouterr().out


def in_sink(name: TableName, *, differs: bool = False, unknown: bool = False, checkpoint: int = 2) -> Any:
    return SinkVerdict(
        sink="mirror",
        dataset=name,
        checkpoint=CheckpointNumber(checkpoint),
        lake_rows=1,
        sink_rows=1,
        parts=("p",) if differs else (),
        unknown_parts=("q",) if unknown else (),
    )


@pytest.mark.parametrize(
    ("verdicts", "arguments", "status"),
    [
        ([in_sink(ORDERS), in_sink(SALES)], [], 0),
        ([in_sink(ORDERS), in_sink(SALES)], ["--checkpoint", "2"], 0),
        ([in_sink(ORDERS), in_sink(SALES, differs=True)], ["--checkpoint", "1"], 1),
        ([in_sink(ORDERS), in_sink(SALES)], ["--checkpoint", "1"], 3),
        ([in_sink(ORDERS, checkpoint=1), in_sink(SALES)], ["--checkpoint", "1"], 3),
        ([in_sink(ORDERS, unknown=True), in_sink(SALES, unknown=True)], [], 3),
        ([in_sink(ORDERS)], ["orders", "sales"], 3),
        ([], [], 3),
    ],
)
def test_sinks(
    project: pytest.MonkeyPatch, verdicts: list[SinkVerdict], arguments: list[str], status: int
) -> None:
    project.setattr(tautochrone.runtime.delivery.audit, "verify_sink", lambda *_: verdicts)
    assert main(["verify", *arguments, "--sink", "mirror"]) == status


def test_a_sink_that_shows_nothing_yet_is_not_compared(
    project: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shows_nothing(*_: object) -> Iterator[SinkVerdict]:
        raise SinkError("SINK_SHOWS_NOTHING", "Sink mirror shows no checkpoint yet", hint="Run it.")
        yield

    project.setattr(tautochrone.runtime.delivery.audit, "verify_sink", shows_nothing)
    assert main(["verify", "--sink", "mirror"]) == 3
    assert "nothing was compared: Sink mirror shows no checkpoint yet. Run it." in capsys.readouterr().err


def test_what_was_named_and_not_compared_is_told(
    project: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project.chdir(tmp_path)
    project.setattr(tautochrone.runtime.views.verify, "verify", lambda *_: [view(SALES, True)])
    assert main(["verify", "sales", "orders"]) == 3
    assert "lake.shop.orders was not compared: it is not a view" in capsys.readouterr().err


SALES_VIEW = """
CREATE MATERIALIZED VIEW sales AS
SELECT product, count(*) AS sold FROM VALUES ('tea'), ('tea'), ('coffee') AS orders(product) GROUP BY product;
"""


def test_a_query_is_answered_or_its_failure_shown(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the tests' own Spark."""
    pipeline.write("definitions/sales.sql", SALES_VIEW)
    assert pipeline.run().state == "COMPLETED"
    monkeypatch.setattr(tautochrone.reader, "start_session", lambda *_: pipeline.session)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    spec = str(pipeline.folder / "spark-pipeline.yml")
    capsys.readouterr()
    query = "SELECT max(product) AS top, sum(sold) AS n FROM sales"
    assert main(["query", query, "--format", "csv", "--checkpoint", "1", "--spec", spec]) == 0
    assert capsys.readouterr().out == "top,n\ntea,3\n"
    assert main(["query", "SELECT sold,\n  1/(sold - sold) FROM sales", "--spec", spec]) == 1
    failed = capsys.readouterr()
    assert failed.out == ""
    assert failed.err.startswith("[DIVIDE_BY_ZERO]")
    assert failed.err.splitlines()[1:3] == [
        "    2 |   1/(sold - sold) FROM sales",
        "      |   ^^^^^^^^^^^^^^^",
    ]
