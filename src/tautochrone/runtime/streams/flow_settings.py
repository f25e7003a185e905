"""Settings of flows over sources: refused before anything runs where they cannot hold.

They are the limits of batches, which are applied where a flow starts, the quarantine of bad records, and
what a recreated topic means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import SettingsError
from tautochrone.ingest.spark_query import StreamingFlow
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.source import CHANGE_LOG_LIMITS, BadRecords, Unsupported
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.setting_declarations import LIMITS, nearest
from tautochrone.project.settings import BadRecordsSetting, FlowLimits, RecreatedTopicSetting
from tautochrone.runtime.streams.change_logs import change_log_of
from tautochrone.spark.sources.malformed import reads_text_files, why_none_is_set_aside
from tautochrone.spark.sources.registry import limited, rate_limits_by_label, sources_of
from tautochrone.spark.sources.stream_as_batch import flow_replay

__all__ = ["LimitedFlow", "check_bad_records", "check_limits", "check_recreated_topics"]

_SETTING = {option: name for name, option in LIMITS.items()}
_HINT = "; ".join(
    f"{label} take {' or '.join(_SETTING[option] for option in limits.options)}"
    for label, limits in {**rate_limits_by_label(), "change logs": CHANGE_LOG_LIMITS}.items()
)


@dataclass(frozen=True, slots=True)
class LimitedFlow:
    """A flow whose sources are bounded by Spark's options; see `ingest.spark_query.StreamingFlow`."""

    flow: StreamingFlow
    options: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.flow.name

    def evaluate(self, session: SparkSession) -> DataFrame:
        return limited(session, self.flow.evaluate(session), self.options).rows

    def with_flags(self, rows: DataFrame) -> DataFrame:
        return self.flow.with_flags(rows)


def check_limits(limits: Mapping[str, FlowLimits], graph: Graph) -> None:
    """Refuse limits of flows that do not exist, that read no source, or whose sources don't know them.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `RATE_LIMIT_WITHOUT_SOURCE`, `RATE_LIMIT_NOT_SUPPORTED`; with the
            place of the setting.
    """
    for name, setting in limits.items():
        resolved = _known_flow(graph, name, setting.origin)
        if not _is_from_outside(graph, resolved):
            raise SettingsError(
                "RATE_LIMIT_WITHOUT_SOURCE",
                f"Flow {name} reads nothing from outside that could be limited",
                location=setting.origin,
                hint="what reads datasets is refreshed to each checkpoint as a whole",
            )
        sources, supported = _limits_of_sources(graph, resolved, setting.options)
        missing = sorted(_SETTING[option] for option in set(setting.options) - supported)
        if missing:
            read = ", ".join(sorted(sources))
            raise SettingsError(
                "RATE_LIMIT_NOT_SUPPORTED",
                f"Flow {name} reads {read}, which does not know {', '.join(missing)}",
                location=setting.origin,
                hint=_HINT,
            )


def _limits_of_sources(
    graph: Graph, resolved: ResolvedFlow, options: Mapping[str, int]
) -> tuple[Sequence[str], frozenset[str]]:
    """The names of a flow's sources, and which of the options at least one of them accepts."""
    log = change_log_of(graph, resolved)
    if log is not None:
        limits = log.supported_limits()
        return [log.name], frozenset(() if isinstance(limits, Unsupported) else limits.options)
    assert graph.analysis_session is not None
    frame = resolved.flow.evaluate(graph.analysis_session)
    stream = limited(graph.analysis_session, frame, options)
    return stream.sources, stream.applied


def check_bad_records(settings: Mapping[str, BadRecordsSetting], graph: Graph) -> None:
    """Refuse a quarantine for flows of which single records cannot be told good or bad.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `QUARANTINE_NOT_SUPPORTED`; with the place of the setting.
    """
    for name, setting in settings.items():
        resolved = _known_flow(graph, name, setting.origin)
        if setting.policy is BadRecords.FAIL:
            continue
        is_merged = any(_sets_events_aside(graph.flows.get(each)) for each in (name, f"{name}__merge"))
        reason = None if is_merged else "it writes no streaming table from outside"
        if _is_from_outside(graph, resolved):
            reason = _why_no_record_is_set_aside(graph, resolved, is_merged=is_merged)
        if reason is not None:
            raise SettingsError(
                "QUARANTINE_NOT_SUPPORTED",
                f"Flow {name} cannot quarantine bad records: {reason}",
                location=setting.origin,
                hint="a flow can that reads CSV, JSON or XML files once, or takes one Kafka source row by "
                "row (select, where, explode), and one of AUTO CDC over other sources; do the rest in a view "
                "over its table",
            )


def _why_no_record_is_set_aside(graph: Graph, resolved: ResolvedFlow, *, is_merged: bool) -> str | None:
    """Why no record of a flow's sources can be set aside, as text; None: they can.

    Args:
        is_merged: its events are set aside, so its sources need not have records that may be bad.
    """
    session = graph.analysis_session
    assert session is not None
    rows = resolved.flow.evaluate(session)
    if is_merged and not reads_text_files(rows) and not _reads_records(session, rows):
        return None
    of_files = why_none_is_set_aside(rows)
    if of_files is None:
        return None
    replay = flow_replay(session, rows)
    return f"{replay.reason}; {of_files}" if isinstance(replay, Unsupported) else None


def _reads_records(session: SparkSession, rows: DataFrame) -> bool:
    """Whether a query of streams has a source whose single records can be read again, such as Kafka."""
    return any(not isinstance(source.record_reader(session), Unsupported) for source in sources_of(rows))


def _sets_events_aside(resolved: ResolvedFlow | None) -> bool:
    """Whether it is a flow of AUTO CDC whose events may lack a key or a sequence value."""
    auto_cdc = None if resolved is None else resolved.flow.auto_cdc
    return auto_cdc is not None and not auto_cdc.takes_snapshots


def check_recreated_topics(settings: Mapping[str, RecreatedTopicSetting], graph: Graph) -> None:
    """Refuse the setting for flows that read no topic into a streaming table.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, `RECREATED_TOPIC_WITHOUT_KAFKA`; with the place of the setting.
    """
    for name, setting in settings.items():
        resolved = _known_flow(graph, name, setting.origin)
        assert graph.analysis_session is not None
        if not (_is_from_outside(graph, resolved) and _has_topic_ids(graph.analysis_session, resolved)):
            raise SettingsError(
                "RECREATED_TOPIC_WITHOUT_KAFKA",
                f"Flow {name} reads no Kafka topic into a streaming table",
                location=setting.origin,
                hint="on_recreated_topic is for flows over Kafka; remove it",
            )


def _has_topic_ids(session: SparkSession, resolved: ResolvedFlow) -> bool:
    """Whether one of the flow's sources tells a recreated topic from the one of before."""
    sources = sources_of(resolved.flow.evaluate(session))
    return any(not isinstance(source.topic_ids(session), Unsupported) for source in sources)


def _known_flow(graph: Graph, name: str, origin: str) -> ResolvedFlow:
    """The flow that a setting at `origin` names.

    Raises:
        SettingsError: `UNKNOWN_FLOW`, with the nearest name.
    """
    if name not in graph.flows:
        names = [flow for flow in graph.flows if _is_from_outside(graph, graph.flows[flow])]
        raise SettingsError(
            "UNKNOWN_FLOW",
            f"No flow is called {name}",
            location=origin,
            hint=nearest(name, names, "flows that read from outside"),
        )
    return graph.flows[name]


def _is_from_outside(graph: Graph, resolved: ResolvedFlow) -> bool:
    """Does the flow bring rows from outside the lake into a streaming table?"""
    dataset = graph.definitions.datasets.get(resolved.flow.target)
    into_table = dataset is not None and dataset.kind is DatasetKind.STREAMING_TABLE
    is_read_by_spark = resolved.inputs.external_streams and resolved.flow.snapshots is None
    return into_table and is_read_by_spark and not resolved.inputs.stream
