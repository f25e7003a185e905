"""A decided revision that only another pipeline's project can finish is left to it, and that is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tautochrone.model.events import Event, RevisionLeft
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.revision import RevisedTable, Revision, RevisionAction, RevisionPlan, RevisionState
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.revision.revise import complete_pending

OURS, THEIRS = (TableName("lake", ("db",), name) for name in ("ours", "theirs"))


def left(action: RevisionAction, *, exists: bool) -> list[dict[str, Any]]:
    """What a run of our job tells; anything that it would write fails, for its store can only be asked."""
    changed = (
        RevisedTable(table=OURS, action=RevisionAction.REBUILD, reason="x", job="mine"),
        RevisedTable(table=THEIRS, action=action, reason="x", job="other"),
    )
    plan = RevisionPlan(to=None, tables=changed)
    decided = Revision(id="r1", state=RevisionState.DECIDED, plan=plan, decided_at_ms=1)
    emitted: list[Event] = []
    job = SimpleNamespace(
        name="mine",
        spec=SimpleNamespace(name="shop"),
        store=SimpleNamespace(
            jobs=SimpleNamespace(
                states=lambda: [
                    SimpleNamespace(name="mine", pipeline="shop"),
                    SimpleNamespace(name="other", pipeline="else"),
                ]
            ),
            revisions=SimpleNamespace(find=lambda _states: [decided]),
        ),
        lake=SimpleNamespace(exists=lambda _table: exists),
        emit=emitted.append,
    )
    assert complete_pending(cast(Job, job)) == []
    return emitted


def test_a_table_that_only_its_own_project_can_clear() -> None:
    (event,) = left(RevisionAction.CLEAR, exists=True)
    reason = Reason.of(ReasonCode.LEFT_TO_PROJECT_OF_JOB)
    assert event == RevisionLeft(revision="r1", dataset=str(THEIRS), job="other", reason=reason)


def test_a_table_that_is_in_another_lake() -> None:
    (event,) = left(RevisionAction.ROLL_BACK, exists=False)
    assert isinstance(event, RevisionLeft)
    assert event.dataset == str(THEIRS)
