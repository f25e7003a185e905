"""Which tables a revision reverts, how, and in which order. Pure: it reads neither store nor lake.

    the named table ──> every table that is computed from it, directly or through others
    corrected in place:   it stays; the tables computed from it are reverted and computed again
    to be read again:     it is reverted too, with the positions of its sources

A named table that is computed from other tables is always reverted itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.errors import MetaError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan

__all__ = ["DatasetNode", "RevertCheck", "RevisionRequest", "affected_datasets", "plan_revision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetNode:
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
class RevertCheck:
    """Whether a table can be reverted to its version at the checkpoint.

    Attributes:
        obstacle: why it cannot; None: it can.
        hint: what to do about the obstacle, where it is not what is said for any.
        changed: what happened to it since then that a stream cannot follow; None: rows were only added.
    """

    obstacle: str | None = None
    hint: str | None = None
    changed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRequest:
    """What a user asks for.

    Attributes:
        named: the corrected tables.
        to: the newest checkpoint that stays.
        read_again: revert named tables that flows write, too.
        full: clear the tables and build them from the beginning instead of reverting them.
    """

    named: tuple[TableName, ...]
    to: CheckpointNumber | None
    read_again: bool = False
    full: bool = False


def affected_datasets(
    request: RevisionRequest, nodes: Mapping[TableName, DatasetNode]
) -> tuple[DatasetNode, ...]:
    """The datasets that change, each after those that it reads.

    Raises:
        MetaError: `REVISION_NAMES_NOTHING`, no dataset is computed from a named table.
    """
    starts: set[TableName] = set()
    for name in request.named:
        node = nodes.get(name)
        if node is not None and (request.read_again or not node.is_root):
            starts.add(name)
        elif not any(name in reader.inputs for reader in nodes.values()):
            raise MetaError(
                "REVISION_NAMES_NOTHING",
                f"No dataset is computed from {name}, so there is nothing to revert",
                hint="to read its own source again: --read-again" if node else "name a dataset or its input",
            )
    stay = set(request.named) - starts
    affected_tables, todo = set(starts), [*request.named]
    while todo:
        name = todo.pop()
        for node in nodes.values():
            holds_bad_records = node.bad_records_of == name and name in affected_tables
            if (name in node.inputs or holds_bad_records) and node.table not in affected_tables | stay:
                affected_tables.add(node.table)
                todo.append(node.table)
    return _in_dependency_order(affected_tables, nodes)


def plan_revision(
    request: RevisionRequest,
    nodes: Mapping[TableName, DatasetNode],
    versions: Mapping[TableName, Version],
    checks: Mapping[TableName, RevertCheck],
    sinks: Mapping[str, Collection[TableName]],
    revoked: Sequence[CheckpointNumber],
    older: Mapping[TableName, CheckpointNumber],
) -> RevisionPlan:
    """Plan a revision.

    Args:
        nodes: all datasets of the store, over all jobs.
        versions: those at the checkpoint that stays; empty without one.
        checks: of all affected tables and their inputs.
        sinks: what each sink reads.
        revoked: the checkpoints after that one, shown to people.
        older: for tables without a version at the checkpoint that stays, the newest earlier checkpoint
            that has one; `versions` has that version.

    Raises:
        MetaError: `REVISION_NAMES_NOTHING`, `REVISION_NOT_REPLAYABLE`.
    """
    changing = affected_datasets(request, nodes)
    names = {node.table for node in changing}
    stay = [
        RevisedTable(
            table=name,
            action=RevisionAction.STAY,
            reason="it was corrected in place: it is read as it is now",
            job=nodes[name].job if name in nodes else None,
        )
        for name in request.named
        if name not in names
    ]
    revised = []
    for node in changing:
        table = _cleared_table(node) if request.full else _reverted_table(node, versions, checks, older)
        _require_replayable(node, table, names, checks)
        revised.append(table)
    return RevisionPlan(
        to=request.to,
        tables=(*stay, *revised),
        revoked=tuple(revoked),
        sinks=tuple(sorted(name for name, read in sinks.items() if names & set(read))),
    )


def _reverted_table(
    node: DatasetNode,
    versions: Mapping[TableName, Version],
    checks: Mapping[TableName, RevertCheck],
    older: Mapping[TableName, CheckpointNumber],
) -> RevisedTable:
    version = versions.get(node.table)
    if version is None:
        return _cleared_table(node, "it has no version at that checkpoint")
    obstacle = checks[node.table].obstacle
    if obstacle is None:
        reason = "rows and state" if node.is_view else "rows and positions"
        number = older.get(node.table)
        checkpoint_text = (
            "that checkpoint"
            if number is None
            else f"checkpoint {number}, the last one before it that has them"
        )
        return RevisedTable(
            table=node.table,
            action=RevisionAction.ROLL_BACK,
            reason=f"{reason} of {checkpoint_text}",
            job=node.job,
            version=version,
        )
    if not node.is_view:
        raise _not_replayable_error(
            f"{node.table} cannot be reverted: {obstacle}", hint=checks[node.table].hint
        )
    return _cleared_table(node, obstacle)


def _cleared_table(node: DatasetNode, reason: str = "asked for by --full") -> RevisedTable:
    action = RevisionAction.REBUILD if node.is_view else RevisionAction.CLEAR
    return RevisedTable(table=node.table, action=action, reason=reason, job=node.job)


def _require_replayable(
    node: DatasetNode,
    revised: RevisedTable,
    names: Collection[TableName],
    checks: Mapping[TableName, RevertCheck],
) -> None:
    """Refuse a table that the next run could not bring up to date again."""
    if revised.action is RevisionAction.CLEAR and not node.own:
        raise _not_replayable_error(
            f"{node.table} must be cleared, and its definition is in the project of job {node.job}",
            hint="revise it there",
        )
    if revised.action is not RevisionAction.ROLL_BACK:
        return
    for name in sorted(node.streamed - set(names)):
        changed = checks[name].changed
        if changed is not None:
            raise _not_replayable_error(f"{node.table} reads {name} as a stream, and {changed}")


def _not_replayable_error(reason: str, hint: str | None = None) -> MetaError:
    return MetaError(
        "REVISION_NOT_REPLAYABLE",
        f"{reason}. Nothing was changed",
        hint=hint
        or "--read-again reads a table's own source again, --full clears the tables and rebuilds them",
        sqlstate="55000",
    )


def _in_dependency_order(
    names: Collection[TableName], nodes: Mapping[TableName, DatasetNode]
) -> tuple[DatasetNode, ...]:
    """Inputs first, otherwise by name."""
    todo, done = sorted(names), dict[TableName, DatasetNode]()
    while todo:
        waiting = set(todo)
        # Some table is always ready, because the store refuses cycles; `todo[:1]` makes the loop end anyway.
        ready = [name for name in todo if not nodes[name].inputs & (waiting - {name})] or todo[:1]
        done.update((name, nodes[name]) for name in ready)
        todo = [name for name in todo if name not in done]
    return tuple(done.values())
