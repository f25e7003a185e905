"""A build: the datasets of a plan that change, computed beside the deployed ones, until main gets them or
they are dropped.

The rows of each are a version of its own table, on a branch that only its name leads to. So nothing has to be
moved or copied when the build is applied, and a built version is read as any other version of a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from tautochrone.errors import CheckpointUnavailableError, ConflictError, LakeError, MetaError
from tautochrone.model.lake import CommitMetadata, Committed, Fork, Rows, TableDefinition
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.project_plan import ColumnChange, ColumnChangeKind, DefinitionChange
from tautochrone.model.reason import Reason

__all__ = [
    "BRANCH_PREFIX",
    "INVARIANT_PREFIX",
    "BuildState",
    "BuildableTable",
    "BuiltState",
    "BuiltTable",
    "ProjectBuild",
    "RowComparison",
    "RowSample",
    "ViewOfBuild",
    "branch_of",
    "build_of",
    "gone_error",
    "is_build_id",
    "require_checked",
    "require_of_job",
    "require_same_base",
    "revoked_base_error",
    "unfinished_error",
    "unknown_error",
]

BRANCH_PREFIX = "tautochrone-plan-"
"""Before the id of a build in the name of its branch."""

INVARIANT_PREFIX = "invariant "
"""Before the name of an invariant among `definitions`."""

_ID = re.compile(r"[0-9a-f]{8}")
_SIDE_PREFIX = "plan-"


def branch_of(build: str) -> str:
    """The branch on which each table of a build has its rows.

    >>> branch_of("3f2a91c0")
    'tautochrone-plan-3f2a91c0'
    """
    return f"{BRANCH_PREFIX}{build}"


def build_of(text: str) -> str | None:
    """The id of the build that a user names as a side of a comparison; None: it is none.

    >>> build_of("plan-3f2a91c0"), build_of("12")
    ('3f2a91c0', None)
    """
    identity = text.removeprefix(_SIDE_PREFIX)
    return identity if identity != text and is_build_id(identity) else None


def is_build_id(text: str) -> bool:
    """Whether a text has the form of a build's id: eight hexadecimal digits.

    >>> is_build_id("3f2a91c0"), is_build_id("12")
    (True, False)
    """
    return _ID.fullmatch(text) is not None


class BuildState(StrEnum):
    """`BUILDING`: not complete, or its process died. `BUILT`: to be looked at, applied or dropped. `DECIDED`:
    the next checkpoint of its job takes it over. `APPLIED`: one did. `DROPPED`: nothing of it is in the lake.
    """

    BUILDING = "building"
    BUILT = "built"
    DECIDED = "decided"
    APPLIED = "applied"
    DROPPED = "dropped"

    @property
    def is_over(self) -> bool:
        """Whether it is only remembered."""
        return self in (BuildState.APPLIED, BuildState.DROPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltState:
    """A state of a view as its rows were built with it.

    Attributes:
        version: of its table.
        definition: how it is read, as the commits of its table say it.
    """

    version: Version
    definition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTable:
    """One dataset of a build.

    Attributes:
        version: of its table, with the rows that were built.
        definition: fingerprint of the definition that computed them.
        replaces: fingerprint of the definition that the deployed rows had; None: there were none.
        inputs: the version of each input that they were computed from; those of the build among them.
        violations: of its expectations, by name.
        states: of the view, by their tables.
    """

    table: TableName
    version: Version
    definition: str
    replaces: str | None = None
    inputs: Mapping[TableName, Version] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[TableName, BuiltState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSample:
    """A few rows of one side, each value as text that may be cut; None: NULL. `sign`: `+` or `-`."""

    sign: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """How the built rows of a view differ from those that readers get at the base.

    Attributes:
        added, removed: rows; None: they could not be compared, for `problem`.
        changed: keys whose row changed; None: no key was given, or the view lacks it.
        changed_values: in how many rows of a key each column has another value.
        columns_added, columns_removed: names of columns that only one side has.
    """

    added: int | None
    removed: int | None
    changed: int | None = None
    changed_values: Mapping[str, int] = field(default_factory=dict)
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    samples: tuple[RowSample, ...] = ()
    problem: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowComparison:
        """The inverse of `dataclasses.asdict`, also after JSON."""
        samples = tuple(
            RowSample(
                sign=sample["sign"],
                columns=tuple(sample["columns"]),
                rows=tuple(map(tuple, sample["rows"])),
            )
            for sample in value["samples"]
        )
        columns = {name: tuple(value[name]) for name in ("columns_added", "columns_removed")}
        return cls(**{**value, **columns, "samples": samples})


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOfBuild:
    """What people see of a view of a build, besides its rows.

    Attributes:
        change: of its definition; an unchanged one reads what changes.
        reason: why it is built.
        difference, columns: see `DatasetPlan`; a long difference is cut, and ends with `…`.
        cause: what changed where the text did not, half a sentence.
        comparison: None: the rows have not been compared yet, or the process died before.
    """

    table: TableName
    change: DefinitionChange
    reason: Reason
    difference: tuple[str, ...] | None = ()
    cause: str | None = None
    columns: tuple[ColumnChange, ...] = ()
    comparison: RowComparison | None = None

    def as_json(self) -> dict[str, Any]:
        """The view as JSON values."""
        return {
            "table": str(self.table),
            "change": self.change.value,
            "reason": self.reason.to_json(),
            "difference": None if self.difference is None else list(self.difference),
            "cause": self.cause,
            "columns": [asdict(column) for column in self.columns],
            "comparison": None if self.comparison is None else asdict(self.comparison),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ViewOfBuild:
        """The inverse of `as_json`."""
        difference, comparison = value["difference"], value["comparison"]
        return cls(
            table=TableName.parse(value["table"]),
            change=DefinitionChange(value["change"]),
            reason=Reason.from_json(value["reason"]),
            difference=None if difference is None else tuple(difference),
            cause=value["cause"],
            columns=tuple(
                ColumnChange(**{**column, "kind": ColumnChangeKind(column["kind"])})
                for column in value["columns"]
            ),
            comparison=None if comparison is None else RowComparison.from_json(comparison),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectBuild:
    """The changed datasets of a job's plan, as they were built.

    Attributes:
        base: the checkpoint at which they were computed.
        definitions: fingerprints of all datasets and invariants of the job then, by name.
        tables: in the order in which they were built.
        problems: why it cannot be applied: checks that its rows did not pass.
        notes: checks that could not be made, and inputs that had no rows yet.
        created: tables that did not exist before: they are dropped with the build.
        views: what it builds, in this order, for those who look at it.
        created_at_ms: epoch milliseconds.
        ended_at_ms: when it was applied or dropped; epoch milliseconds.
    """

    id: str
    job: str
    base: CheckpointNumber
    state: BuildState = BuildState.BUILDING
    definitions: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[BuiltTable, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    created: tuple[TableName, ...] = ()
    views: tuple[ViewOfBuild, ...] = ()
    created_at_ms: int = 0
    ended_at_ms: int | None = None

    @property
    def label(self) -> str:
        """Its state for people: a build whose rows did not pass its checks is not just `built`."""
        return "checks failed" if self.state is BuildState.BUILT and self.problems else str(self.state)

    @property
    def branch(self) -> str:
        """See `branch_of`."""
        return branch_of(self.id)

    @property
    def versions(self) -> dict[TableName, Version]:
        """The built version of each table."""
        return {built.table: built.version for built in self.tables}

    @property
    def datasets(self) -> frozenset[TableName]:
        """The tables that may have the branch, also of a build that is not complete."""
        names = [name for name in self.definitions if not name.startswith(INVARIANT_PREFIX)]
        return frozenset({*map(TableName.parse, names), *self.versions, *self.created})

    def table(self, name: TableName) -> BuiltTable | None:
        """What was built of a dataset; None: nothing."""
        return next((built for built in self.tables if built.table == name), None)

    def as_json(self) -> dict[str, Any]:
        """What a store keeps besides id, job, state and times."""
        return {
            "base": self.base,
            "definitions": dict(self.definitions),
            "tables": [
                {
                    "table": str(built.table),
                    "version": built.version,
                    "definition": built.definition,
                    "replaces": built.replaces,
                    "inputs": {str(name): version for name, version in built.inputs.items()},
                    "violations": dict(built.violations),
                    "states": {str(name): asdict(state) for name, state in built.states.items()},
                }
                for built in self.tables
            ],
            "problems": list(self.problems),
            "notes": list(self.notes),
            "created": [str(name) for name in self.created],
            "views": [view.as_json() for view in self.views],
        }

    @classmethod
    def from_json(
        cls, identity: str, job: str, state: str, created_at_ms: int, value: Mapping[str, Any]
    ) -> ProjectBuild:
        """The inverse of `as_json`."""
        return cls(
            id=identity,
            job=job,
            state=BuildState(state),
            base=CheckpointNumber(value["base"]),
            definitions=dict(value["definitions"]),
            tables=tuple(
                BuiltTable(
                    table=TableName.parse(fields["table"]),
                    version=Version(fields["version"]),
                    definition=fields["definition"],
                    replaces=fields["replaces"],
                    inputs={TableName.parse(name): Version(v) for name, v in fields["inputs"].items()},
                    violations=dict(fields["violations"]),
                    # What an earlier version recorded has none.
                    states={
                        TableName.parse(name): BuiltState(**state)
                        for name, state in fields.get("states", {}).items()
                    },
                )
                for fields in value["tables"]
            ),
            problems=tuple(value["problems"]),
            notes=tuple(value["notes"]),
            created=tuple(map(TableName.parse, value["created"])),
            # What an earlier version recorded has neither.
            views=tuple(map(ViewOfBuild.from_json, value.get("views", ()))),
            created_at_ms=created_at_ms,
            ended_at_ms=value.get("ended_at_ms"),
        )

    def without_samples(self) -> ProjectBuild:
        """The same without the rows that people see, for who may not read the tables and for lists."""
        return replace(
            self,
            views=tuple(
                view
                if view.comparison is None
                else replace(view, comparison=replace(view.comparison, samples=()))
                for view in self.views
            ),
        )

    def with_table(self, built: BuiltTable) -> ProjectBuild:
        """The same with one more table."""
        return replace(self, tables=(*self.tables, built))


def unfinished_error(build: str) -> MetaError:
    """The refusal to apply what is not built."""
    return MetaError(
        "BUILD_UNFINISHED",
        f"Plan {build} is not built: it is being built, or its process died",
        hint=f"wait for it, or remove it with `taut plan --drop {build}` and build again",
    )


def revoked_base_error(build: str, base: CheckpointNumber) -> CheckpointUnavailableError:
    """The refusal to apply what was built at a checkpoint that a revision took back."""
    return CheckpointUnavailableError(
        "CHECKPOINT_REVOKED",
        f"Plan {build} was built at checkpoint {base}, and a revision took that back",
        hint="build again with `taut plan --build`",
    )


def unknown_error(build: str, known: Sequence[str]) -> MetaError:
    """The refusal of an id that no build has, or one that is over; `known` are the others."""
    return MetaError(
        "BUILD_NOT_FOUND",
        f"There is no built plan {build} in this store: it was dropped or applied, or never built",
        hint="`taut plan --build` builds one and says its id; there are: " + (", ".join(known) or "none"),
    )


def gone_error(build: str, table: TableName) -> LakeError:
    """The refusal to apply what is not in the lake any more."""
    return LakeError(
        "BUILD_GONE",
        f"What plan {build} built of {table} is not in the lake any more",
        hint="build again with `taut plan --build`",
    )


def require_checked(build: ProjectBuild) -> None:
    """Check that a build is complete, and that its rows passed its checks.

    Raises:
        MetaError: `BUILD_UNFINISHED`; `BUILD_CHECKS_FAILED`.
    """
    if build.state is BuildState.BUILDING:
        raise unfinished_error(build.id)
    if build.problems:
        raise MetaError(
            "BUILD_CHECKS_FAILED",
            f"The rows of plan {build.id} did not pass its checks: {'; '.join(build.problems)}",
            hint="correct the definitions and build again",
        )


def require_same_base(build: ProjectBuild, built: BuiltTable, deployed: CommitMetadata | None) -> None:
    """Check that a table has rows of the definition that the built ones were compared with.

    Args:
        deployed: of the table's main.

    Raises:
        ConflictError: `BUILD_BASE_CHANGED`.
    """
    if (None if deployed is None else deployed.definition) != built.replaces:
        raise ConflictError(
            "BUILD_BASE_CHANGED",
            f"{built.table} has rows of another definition than plan {build.id} was compared with: "
            "something else was deployed since",
            hint="build again with `taut plan --build`, and look at the difference from that",
        )


def require_of_job(build: ProjectBuild, job: str) -> None:
    """Check that a build is one of this job.

    Raises:
        MetaError: `BUILD_OF_ANOTHER_JOB`.
    """
    if build.job != job:
        raise MetaError(
            "BUILD_OF_ANOTHER_JOB",
            f"Plan {build.id} is one of job {build.job}, not of {job}",
            hint=f"name the job: --job {build.job}, in its own project",
        )


class BuildableTable(Protocol):
    """A lake table that can have built rows beside main."""

    def build(
        self, definition: TableDefinition, rows: Rows, commit_metadata: CommitMetadata, branch: str
    ) -> Version:
        """Write rows as a version with the columns of `definition`, on a new branch. Main does not move, and
        who runs the job is not disturbed.

        Raises:
            LakeError: `BUILD_COLUMNS_MOVED` (retryable), the table got other columns meanwhile.
            DefinitionError: `UNSUPPORTED_BUILD_LAYOUT`, a partition needs a column that main lacks.
        """

    def built_version(self, branch: str) -> Version | None:
        """The version on the branch; None: there is no such branch."""

    def build_branches(self) -> Sequence[str]:
        """The branches of all builds in the table, sorted."""

    def apply_build(
        self, fork: Fork, definition: TableDefinition, branch: str, commit_metadata: CommitMetadata
    ) -> Committed:
        """Replace the rows of main by those of the branch, and drop it, in one catalog commit that writes and
        reads no row.

        Raises:
            LakeError: `BUILD_GONE`, there is no such branch.
        """

    def columns_with(self, schema: Any) -> str | None:
        """The table's columns with those of `schema` that it lacks, as the JSON of an Iceberg schema; None:
        it has all of them.

        Raises:
            DefinitionError: `INCOMPATIBLE_SCHEMA_CHANGE`.
        """

    def unwritten(self, definition: TableDefinition) -> str:
        """The metadata with which a table of this definition would be created, as JSON. Nothing is written.

        Raises:
            DefinitionError: a column type or a partition that Iceberg cannot hold.
        """

    def drop_build(self, branch: str) -> None:
        """Drop the branch and delete its files. Repeatable."""
