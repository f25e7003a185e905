"""A runner and revisions without Spark that record their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tautochrone.errors import Excerpt, MetaError, QueryError
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.project_build import branch_of
from tautochrone.model.query import Answer, Query, QueryAnswer
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.runtime.revision.plan import RevisionRequest

from .world import HOSTILE, PLAN

__all__ = ["Lake", "Plans", "Rows"]


@dataclass
class Rows:
    """Answers every query with the same rows; a query with `boom` fails as in Spark."""

    queries: list[tuple[str, Consistency, int | None, int]] = field(default_factory=list)

    @property
    def started(self) -> bool:
        return bool(self.queries)

    def arrow(self, query: Query) -> QueryAnswer:
        self.queries.append((query.sql, query.consistency, query.checkpoint, 0))
        if "boom" in query.sql:
            raise QueryError("UNRESOLVED_COLUMN", f"No column {HOSTILE[0]}")
        rows = pa.table(
            {"id": [1, 2], "tags": [["a", '"'], None], "raw": [b"\x00\xff", b""], "t": ["", None]}
        )
        return QueryAnswer(rows=rows, checkpoint=query.checkpoint)

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        self.queries.append((sql, consistency, checkpoint, limit))
        if "boom" in sql:
            excerpt = Excerpt(sql.splitlines()[0], 1, 7, 4)
            raise QueryError("UNRESOLVED_COLUMN", f"No column {HOSTILE[0]}", hint="Look", excerpt=excerpt)
        rows = (("1", HOSTILE[0]), ("2", None), ("3", "plain text"))
        weak = consistency is Consistency.WEAK
        read_at = None if weak else 40 if checkpoint is None else checkpoint
        return Answer(columns=("id", HOSTILE[1]), rows=rows, checkpoint=read_at, more=True)


@dataclass
class Plans:
    """Plans one line for each named table. `drift` changes the next plan."""

    done: list[RevisionRequest] = field(default_factory=list)
    drift: str = ""
    revoked: tuple[int, ...] = (39, 40)

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        if request.read_again:
            raise MetaError("REVISION_NOT_REPLAYABLE", f"{HOSTILE[0]} cannot be replayed", hint="Look")
        lines = tuple(
            RevisedTable(
                table=table,
                action=RevisionAction.ROLL_BACK,
                reason=f"rows and state{self.drift}",
                job="shop",
                version=Version("7"),
            )
            for table in request.named
        )
        revoked = tuple(map(CheckpointNumber, self.revoked))
        return RevisionPlan(to=request.to, tables=lines, revoked=revoked, sinks=("clickhouse.daily",))

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        assert accepted == self.plan(request)
        self.done.append(request)
        return "r-1"


class Lake:
    """Tables with the built version of `PLAN` on its branch, which nothing was deployed into."""

    catalog = "lake"

    def load(self, _table: TableName) -> tuple[str, Mapping[str, Any]]:
        return "", {"refs": {branch_of(PLAN): {"snapshot-id": 7}}, "properties": {}}

    def view(self, _view: TableName, /) -> tuple[str, Mapping[str, Any]] | None:
        return None

    def tables(self, _namespace: tuple[str, ...] | None = None) -> Sequence[TableName]:
        return ()

    def namespaces(self) -> Sequence[tuple[str, ...]]:
        return ()
