"""Events of a run, for tests of what shows them."""

from __future__ import annotations

from tautochrone.model import events
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.reason import Reason, ReasonCode, unclassified

EVENTS = "lake.default.events"
BY_KEY = "lake.default.by_key"
REFRESH = events.Refresh(
    dataset=BY_KEY,
    checkpoint=1,
    mode=RefreshMode.INCREMENTAL,
    reason=unclassified("cheaper"),
    nodes=(),
    rows_inserted=1203,
    rows_deleted=17,
    duration_ms=800,
    cpu_ms=None,
    estimate_ms=None,
    delta_rows=1220,
    expectations=(),
)
FLOW_FAILED = events.FlowFailed(
    flow="events", dataset=EVENTS, error="[X] gone.", hint="bring it back", again_in_s=4.0
)
FLOW_RESTARTED = events.FlowRestarted(
    flow="events", dataset=EVENTS, attempt=2, reason=Reason.of(ReasonCode.RESTART_WAIT_OVER, wait_s=4)
)


def refresh_failed(error: str, checkpoint: int = 2) -> events.RefreshFailed:
    return events.RefreshFailed(dataset=BY_KEY, checkpoint=checkpoint, error=unclassified(error), hint=None)
