"""The plan alone: which tables, how, in which order, and what is refused. No Spark, no lake."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tautochrone.errors import MetaError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.revision import RevisionAction, RevisionPlan
from tautochrone.runtime.revision.plan import DatasetNode, RevertCheck, RevisionRequest, plan_revision

VIEW, STREAM = DatasetKind.MATERIALIZED_VIEW.value, DatasetKind.STREAMING_TABLE.value
TO = CheckpointNumber(4)


def name(table: str) -> TableName:
    return TableName("lake", ("db",), table)


def node(
    table: str,
    kind: str,
    *inputs: str,
    streams: str = "",
    job: str = "a",
    bad_records_of: str = "",
    own: bool = True,
) -> DatasetNode:
    streamed = frozenset(map(name, streams.split()))
    return DatasetNode(
        table=name(table),
        job=job,
        kind=kind,
        inputs=frozenset(map(name, inputs)) | streamed,
        streamed=streamed,
        bad_records_of=name(bad_records_of) if bad_records_of else None,
        own=own,
    )


NODES = {
    dataset.table: dataset
    for dataset in (
        node("events", STREAM),
        node("events_bad", STREAM, bad_records_of="events"),
        node("names", STREAM),
        node("clean", STREAM, streams="events"),
        node("totals", VIEW, "clean", "outside"),
        node("report", VIEW, "totals", "names", job="b", own=False),
        node("apart", VIEW, "names"),
    )
}
AT = {table: Version(f"v-{table.table}") for table in NODES}
SINKS = {"board": [name("report")], "other": [name("apart")]}


def plan(
    *named: str,
    to: CheckpointNumber | None = TO,
    again: bool = False,
    full: bool = False,
    nodes: dict[TableName, DatasetNode] = NODES,
    at: dict[TableName, Version] = AT,
    older: Mapping[TableName, CheckpointNumber] = MappingProxyType({}),
    **checks: RevertCheck,
) -> RevisionPlan:
    request = RevisionRequest(named=tuple(map(name, named)), to=to, read_again=again, full=full)
    all_checks = {table: RevertCheck() for table in nodes} | {
        name(table): check for table, check in checks.items()
    }
    return plan_revision(request, nodes, at, all_checks, SINKS, [CheckpointNumber(5)], older)


def steps(revision: RevisionPlan) -> list[tuple[str, str]]:
    return [(revised.table.table, str(revised.action)) for revised in revision.tables]


def test_downstream_tables_go_back_in_order_across_jobs() -> None:
    revision = plan("events")
    assert steps(revision) == [
        ("events", "stay"), ("clean", "roll back"), ("totals", "roll back"), ("report", "roll back"),
    ]  # fmt: skip
    assert revision.jobs == ("a", "b")
    assert revision.sinks == ("board",)
    assert revision.changed[0].version == "v-clean"
    assert RevisionPlan.from_json(revision.as_json()) == revision


def test_a_source_that_is_read_again_goes_back_with_its_bad_records() -> None:
    assert steps(plan("events", again=True))[:3] == [
        ("events", "roll back"), ("events_bad", "roll back"), ("clean", "roll back"),
    ]  # fmt: skip


def test_an_external_table_and_two_sources_at_once() -> None:
    assert steps(plan("outside")) == [("outside", "stay"), ("totals", "roll back"), ("report", "roll back")]
    both = plan("outside", "names")
    assert steps(both) == [
        ("outside", "stay"), ("names", "stay"),
        ("apart", "roll back"), ("totals", "roll back"), ("report", "roll back"),
    ]  # fmt: skip
    assert both.sinks == ("board", "other")


def test_what_is_computed_has_no_source_and_goes_back_itself() -> None:
    assert steps(plan("totals")) == [("totals", "roll back"), ("report", "roll back")]
    assert steps(plan("clean"))[0] == ("clean", "roll back")


def test_full_clears_streams_and_rebuilds_views() -> None:
    revision = plan("events", to=None, again=True, full=True)
    assert steps(revision) == [
        ("events", "clear"), ("events_bad", "clear"), ("clean", "clear"),
        ("totals", "rebuild"), ("report", "rebuild"),
    ]  # fmt: skip
    assert revision.to is None


def test_tables_without_usable_history_are_rebuilt_with_reason() -> None:
    before = {table: version for table, version in AT.items() if table != name("clean")}
    revision = plan("events", at=before, totals=RevertCheck(obstacle="it was replaced"))
    assert [(table.action, table.reason) for table in revision.changed[:2]] == [
        (RevisionAction.CLEAR, "it has no version at that checkpoint"),
        (RevisionAction.REBUILD, "it was replaced"),
    ]


@pytest.mark.parametrize(
    ("named", "checks", "words"),
    [
        (
            "events",
            {"events": RevertCheck(changed="it was overwritten")},
            "as a stream, and it was overwritten",
        ),
        ("events", {"clean": RevertCheck(obstacle="it is gone")}, "clean cannot be reverted: it is gone"),
    ],
)
def test_what_could_not_be_replayed_is_refused_before_anything_happens(
    named: str, checks: dict[str, RevertCheck], words: str
) -> None:
    with pytest.raises(MetaError, match=words) as refused:
        plan(named, **checks)
    assert refused.value.error_class == "REVISION_NOT_REPLAYABLE"
    plan(named, full=True, **checks)


def test_a_stream_of_another_project_cannot_be_cleared() -> None:
    nodes = NODES | {name("far"): node("far", STREAM, streams="clean", job="c", own=False)}
    versions = AT | {name("far"): Version("v")}
    assert ("far", "roll back") in steps(plan("events", nodes=nodes, at=versions))
    with pytest.raises(MetaError, match="the project of job c"):
        plan("events", nodes=nodes, at=versions, full=True)


@pytest.mark.parametrize(("named", "hint"), [("nobody", "name a dataset"), ("apart_root", "--read-again")])
def test_a_name_from_which_nothing_is_made(named: str, hint: str) -> None:
    nodes = NODES | {name("apart_root"): node("apart_root", STREAM)}
    with pytest.raises(MetaError) as refused:
        plan(named, nodes=nodes)
    assert refused.value.error_class == "REVISION_NAMES_NOTHING"
    assert hint in str(refused.value.hint)


def test_more_checkpoints_are_no_other_work() -> None:
    first = plan("events")
    later = RevisionPlan(to=first.to, tables=first.tables, sinks=first.sinks, revoked=(CheckpointNumber(9),))
    assert first.has_same_actions(later)
    assert not first.has_same_actions(plan("events", again=True))


def test_missing_table_names_the_checkpoint_it_goes_back_to() -> None:
    revision = plan("names", older={name("apart"): CheckpointNumber(3)})
    reasons = {revised.table.table: revised.reason for revised in revision.changed}
    assert reasons == {
        "apart": "rows and state of checkpoint 3, the last one before it that has them",
        "report": "rows and state of that checkpoint",
    }
