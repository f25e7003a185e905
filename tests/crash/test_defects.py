"""A defect inside a run: it is told with its class and where its trace is, and what is not hurt goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.ingest.flow import FlowQuery
from tautochrone.runtime.loop.run import RunState
from tautochrone.runtime.refresh.task import Refreshed, RefreshTask
from tautochrone.runtime.views.refresh_view import ViewRefresher
from tautochrone.traces import traces_in

from .checks import check_tables
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TABLES = ("names", "totals")


def test_defect_of_a_refresh_and_of_a_flow_leave_traces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, batch = ViewRefresher.refresh, FlowQuery._batch

    def broken_view(self: ViewRefresher, task: RefreshTask) -> Refreshed:
        return {}["gone"] if task.name.table == "totals" else refresh(self, task)

    def broken_batch(self: FlowQuery, rows: Any, batch_id: int) -> None:
        assert self.flow.name != "names", "an inner check"
        batch(self, rows, batch_id)

    world.sources.add()
    with monkeypatch.context() as broken:
        broken.setattr(ViewRefresher, "refresh", broken_view)
        broken.setattr(FlowQuery, "_batch", broken_batch)
        attempt = world.run()
    assert attempt.state is RunState.FAILED, attempt.describe()
    traces = {trace.where: trace for trace in traces_in(world.sources.storage / "logs")}
    assert set(traces) == {"refresh lake.default.totals", "batch of flow names"}, attempt.describe()
    of_view, of_flow = traces["refresh lake.default.totals"], traces["batch of flow names"]
    assert (of_view.error_class, of_flow.error_class) == ("KeyError", "AssertionError")
    assert "in broken_view" in of_view.file.read_text()
    failed = next(e for e in attempt.named("refresh_failed") if e["dataset"] == "lake.default.totals")
    assert "KEY_ERROR" in failed["error"]
    assert str(of_view.file) in failed["error"]
    (flow_failed,) = attempt.named("flow_failed")
    assert str(of_flow.file) in flow_failed["error"]
    world.run().require_completed()
    check_tables(world.sources)
