"""A revision as a value: what is taken back, what is computed anew, and how far it has come.

The plan is decided once and stored; whoever finds it half done carries out the rest. So it must say
everything that the steps need, in a form that survives as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["RevisedTable", "Revision", "RevisionAction", "RevisionPlan", "RevisionState", "tag_of"]


def tag_of(revision: str) -> str:
    """The tag under which every table of a revision keeps what it was."""
    return f"taut-revision-{revision}"


class RevisionAction(StrEnum):
    """What becomes of a table.

    `STAY`: it was corrected already, or is read as it is. `ROLL_BACK`: it gets the rows, the state and the
    positions of an older version. `CLEAR`: its rows and positions are dropped, it is read from the beginning.
    `REBUILD`: its rows stay until the next run has computed all of them anew.
    """

    STAY = "stay"
    ROLL_BACK = "roll back"
    CLEAR = "clear"
    REBUILD = "rebuild"


class RevisionState(StrEnum):
    """`DECIDED`: it will be carried out, by whoever finds it. `DONE`: all tables are taken back, the old
    data is there under tags. `CONFIRMED`: the tags are dropped."""

    DECIDED = "decided"
    DONE = "done"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisedTable:
    """One table of a plan. `version` is the one that it is rolled back to. External tables have no `job`."""

    table: TableName
    action: RevisionAction
    reason: str
    job: str | None = None
    version: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPlan:
    """What a revision does, in the order of the data's way.

    `to` is the newest checkpoint that stays; None takes no checkpoint back. `revoked` are the later ones
    as far as they are known: those published until the decision come to them. `sinks` cannot be rolled
    back: those with an adapter get the difference with the next checkpoint, those that Spark writes stop.
    `last` is the highest number that was given when
    it was decided: whatever the lake knows from after `to` up to it is taken back.
    """

    to: CheckpointNumber | None
    tables: tuple[RevisedTable, ...]
    revoked: tuple[CheckpointNumber, ...] = ()
    sinks: tuple[str, ...] = ()
    last: CheckpointNumber | None = None

    @property
    def changed(self) -> tuple[RevisedTable, ...]:
        """The tables that do not stay as they are."""
        return tuple(table for table in self.tables if table.action is not RevisionAction.STAY)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The owners of the tables that change, sorted."""
        return tuple(sorted({table.job for table in self.changed if table.job is not None}))

    def has_same_actions(self, other: RevisionPlan) -> bool:
        """Whether both do the same, although more checkpoints may have been published between them."""
        return (self.to, self.tables, self.sinks) == (other.to, other.tables, other.sinks)

    def as_json(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "tables": [
                {
                    "table": str(table.table),
                    "action": table.action.value,
                    "reason": table.reason,
                    "job": table.job,
                    "version": table.version,
                }
                for table in self.tables
            ],
            "revoked": list(self.revoked),
            "sinks": list(self.sinks),
            "last": self.last,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RevisionPlan:
        """The inverse of `as_json`."""
        return cls(
            to=None if value["to"] is None else CheckpointNumber(value["to"]),
            tables=tuple(
                RevisedTable(
                    table=TableName.parse(fields["table"]),
                    action=RevisionAction(fields["action"]),
                    reason=fields["reason"],
                    job=fields["job"],
                    version=None if fields["version"] is None else Version(fields["version"]),
                )
                for fields in value["tables"]
            ),
            revoked=tuple(CheckpointNumber(number) for number in value["revoked"]),
            sinks=tuple(value["sinks"]),
            last=None if value.get("last") is None else CheckpointNumber(value["last"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A decided revision. `decided_at_ms` is epoch milliseconds."""

    id: str
    state: RevisionState
    plan: RevisionPlan
    decided_at_ms: int
