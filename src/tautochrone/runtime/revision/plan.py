"""Which tables a revision takes back, how, and in which order. Pure: it is given what is known of tables.

    the named table ──> everything that is made from it, directly or through others
    corrected where it stands:   it stays, what is made from it goes back and is computed again
    to be read again:            it goes back too, with the positions of its sources

A named table that is computed from others has no source to be corrected: it always goes back itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tautochrone.errors import MetaError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan

__all__ = ["Node", "Request", "Stand", "affected", "plan_revision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A dataset of the topology.

    `streamed` are those of its `inputs` that it reads as a stream, as far as they are known.
    `bad_records_of` is the table whose bad records a quarantine table takes. `own`: the definition is
    in this project.
    """

    table: TableName
    job: str
    kind: str
    inputs: frozenset[TableName]
    streamed: frozenset[TableName] = frozenset()
    bad_records_of: TableName | None = None
    own: bool = True

    @property
    def is_view(self) -> bool:
        return self.kind == DatasetKind.MATERIALIZED_VIEW

    @property
    def is_root(self) -> bool:
        return not self.is_view and not self.streamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What the lake says of a table.

    `lost` is why it cannot be taken back to its version at the checkpoint, None when it can; `changed` is
    what happened to it since then that a stream cannot follow, None when rows were only added.
    """

    lost: str | None = None
    changed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for: the corrected tables, the newest checkpoint that stays, and how.

    `read_again`: named tables that flows write are taken back too. `full`: clear and build from the
    beginning instead of taking back.
    """

    named: tuple[TableName, ...]
    to: CheckpointNumber | None
    read_again: bool = False
    full: bool = False


def affected(request: Request, nodes: Mapping[TableName, Node]) -> tuple[Node, ...]:
    """The datasets that change, each after those that it reads.

    Raises:
        MetaError: `REVISION_NAMES_NOTHING`, nobody writes or reads a named table.
    """
    begun: set[TableName] = set()
    for name in request.named:
        node = nodes.get(name)
        if node is not None and (request.read_again or not node.is_root):
            begun.add(name)
        elif not any(name in other.inputs for other in nodes.values()):
            raise MetaError(
                "REVISION_NAMES_NOTHING",
                f"Nothing is made from {name}, so there is nothing to take back",
                hint="to read its own source again: --read-again" if node else "name a dataset or its input",
            )
    kept = set(request.named) - begun
    found, todo = set(begun), [*request.named]
    while todo:
        name = todo.pop()
        for other in nodes.values():
            holds_bad_records = other.bad_records_of == name and name in found
            if (name in other.inputs or holds_bad_records) and other.table not in found | kept:
                found.add(other.table)
                todo.append(other.table)
    return _ordered(found, nodes)


def plan_revision(
    request: Request,
    nodes: Mapping[TableName, Node],
    at: Mapping[TableName, Version],
    stands: Mapping[TableName, Stand],
    sinks: Mapping[str, Collection[TableName]],
    revoked: Sequence[CheckpointNumber] = (),
    older: Mapping[TableName, CheckpointNumber] = MappingProxyType({}),
) -> RevisionPlan:
    """The plan.

    Args:
        nodes: all datasets of the store, over all jobs.
        at: the versions at the checkpoint that stays; empty without one.
        stands: of all affected tables and of their inputs that stay.
        sinks: what each sink reads.
        revoked: the checkpoints after that one, for people to see.
        older: tables that the checkpoint that stays does not show, with the newest one before that does:
            `at` has their version there.

    Raises:
        MetaError: `REVISION_NAMES_NOTHING`, `REVISION_NOT_REPLAYABLE`.
    """
    changing = affected(request, nodes)
    names = {node.table for node in changing}
    stay = [
        RevisedTable(
            table=name,
            action=RevisionAction.STAY,
            reason="it is the source that was corrected: read as it is now",
            job=nodes[name].job if name in nodes else None,
        )
        for name in request.named
        if name not in names
    ]
    revised = []
    for node in changing:
        one = _cleared(node) if request.full else _taken_back(node, at, stands, older)
        _require_replayable(node, one, names, stands)
        revised.append(one)
    return RevisionPlan(
        to=request.to,
        tables=(*stay, *revised),
        revoked=tuple(revoked),
        sinks=tuple(sorted(name for name, read in sinks.items() if names & set(read))),
    )


def _taken_back(
    node: Node,
    at: Mapping[TableName, Version],
    stands: Mapping[TableName, Stand],
    older: Mapping[TableName, CheckpointNumber],
) -> RevisedTable:
    version = at.get(node.table)
    if version is None:
        return _cleared(node, "it has no version at that checkpoint")
    lost = stands[node.table].lost
    if lost is None:
        reason = "rows and state" if node.is_view else "rows and positions"
        known = older.get(node.table)
        of = "that checkpoint" if known is None else f"checkpoint {known}, the last before that shows it"
        return RevisedTable(
            table=node.table,
            action=RevisionAction.ROLL_BACK,
            reason=f"{reason} of {of}",
            job=node.job,
            version=version,
        )
    if not node.is_view:
        raise _not_replayable(f"{node.table} cannot be taken back: {lost}")
    return _cleared(node, lost)


def _cleared(node: Node, reason: str = "asked for by --full") -> RevisedTable:
    action = RevisionAction.REBUILD if node.is_view else RevisionAction.CLEAR
    return RevisedTable(table=node.table, action=action, reason=reason, job=node.job)


def _require_replayable(
    node: Node, one: RevisedTable, names: Collection[TableName], stands: Mapping[TableName, Stand]
) -> None:
    """Whether the next run can bring the table forward again."""
    if one.action is RevisionAction.CLEAR and not node.own:
        raise _not_replayable(
            f"{node.table} must be cleared, and its definition is in the project of job {node.job}",
            hint="name it there",
        )
    if one.action is not RevisionAction.ROLL_BACK:
        return
    for name in sorted(node.streamed - set(names)):
        changed = stands[name].changed
        if changed is not None:
            raise _not_replayable(f"{node.table} reads {name} as a stream, and {changed}")


def _not_replayable(why: str, hint: str | None = None) -> MetaError:
    return MetaError(
        "REVISION_NOT_REPLAYABLE",
        f"{why}. Nothing was changed",
        hint=hint or "--read-again reads a table's own source again, --full clears and builds anew",
        sqlstate="55000",
    )


def _ordered(found: Collection[TableName], nodes: Mapping[TableName, Node]) -> tuple[Node, ...]:
    """Inputs first, otherwise by name."""
    todo, done = sorted(found), dict[TableName, Node]()
    while todo:
        waiting = set(todo)
        # A cycle of jobs cannot be put in order; the store refuses one, so the first will do.
        free = [name for name in todo if not nodes[name].inputs & (waiting - {name})] or todo[:1]
        done.update((name, nodes[name]) for name in free)
        todo = [name for name in todo if name not in done]
    return tuple(done.values())
