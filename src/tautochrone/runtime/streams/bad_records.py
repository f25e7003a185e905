"""Flows that may quarantine bad records: refused before anything runs when they cannot."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SettingsError
from tautochrone.model.source import BadRecords, Unsupported
from tautochrone.project.graph import Graph
from tautochrone.project.settings import FlowBadRecords
from tautochrone.runtime.streams.rate_limits import from_outside, known_flow
from tautochrone.spark.sources.stream_as_batch import record_replay

__all__ = ["check_bad_records"]


def check_bad_records(settings: Mapping[str, FlowBadRecords], graph: Graph) -> None:
    """Refuse a quarantine for flows of which single records cannot be told good or bad.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `QUARANTINE_NOT_SUPPORTED`; with the place of the setting.
    """
    for name, setting in settings.items():
        resolved = known_flow(graph, name, setting.origin)
        if setting.policy is BadRecords.FAIL:
            continue
        assert graph.analysis_session is not None
        reason = "it writes no streaming table from outside"
        if from_outside(graph, resolved):
            replay = record_replay(graph.analysis_session, resolved.flow.evaluate(graph.analysis_session))
            reason = replay.reason if isinstance(replay, Unsupported) else ""
        if reason:
            raise SettingsError(
                "QUARANTINE_NOT_SUPPORTED",
                f"Flow {name} cannot quarantine bad records: {reason}",
                location=setting.origin,
                hint="only a flow that takes one Kafka source row by row can: select, where, explode; do the "
                "rest in a view over its table",
            )
