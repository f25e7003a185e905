"""The pages with forms that act: queries, previews, revisions, plans. A `Runner` and `Revisions` do it, if
given."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from tautochrone.errors import QueryError, TautochroneError
from tautochrone.meta import Store
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.metaservice.http.access import ROLE, Role
from tautochrone.metaservice.pages.rendering import render
from tautochrone.metaservice.pages.safety import checked_form, csrf_token, protect
from tautochrone.metaservice.plans import approve
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.definitions import LakeColumn
from tautochrone.model.names import CheckpointNumber, TableName, is_clock
from tautochrone.model.project_build import BuildState
from tautochrone.model.query import Answer, QueryRunner
from tautochrone.model.query import Query as QueryRequest
from tautochrone.model.revision import RevisionPlan
from tautochrone.rest_catalog.metadata import MetadataSource
from tautochrone.runtime.revision.plan import RevisionRequest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Forms", "Revisions", "Runner", "add_forms", "csv_of"]


_CSV_ROWS = 10_000
"""So many rows of a download are Python values at a time."""
_PLAIN_SCALE = 6
"""Decimals with so many digits behind the point are never written with an exponent."""


class Runner(QueryRunner, Protocol):
    """Runs queries that only read."""

    @property
    def started(self) -> bool:
        """Whether Spark runs already; if not, the first query starts it."""

    def run(self, sql: str, consistency: Consistency, checkpoint: int | None, limit: int) -> Answer:
        """At most `limit` rows of a query, at one checkpoint or at the newest version of each table.

        Raises:
            QueryError: the query is wrong, would write (`QUERY_NOT_READ_ONLY`) or took too long.
            CheckpointUnavailableError: no such checkpoint.
        """


class Revisions(Protocol):
    """Plans and executes revisions."""

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        """What the revision would do; changes nothing.

        Raises:
            TautochroneError: it is not possible.
        """

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        """Execute the accepted plan. Returns the revision's id when all tables are taken back.

        Raises:
            TautochroneError: nothing was taken back.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What the forms use: `runner` for queries and previews. `unavailable_reason` says why there is none."""

    runner: Runner | None = None
    revisions: Revisions | None = None
    unavailable_reason: str = ""


_QUERY_ROWS, _PREVIEW_ROWS, _RESOLVED = 200, 20, 50
_REMEMBERED, _BROWSERS, _LONGEST_REMEMBERED = 20, 500, 10_000

Form = Annotated[Mapping[str, str], Depends(checked_form)]


def add_forms(router: APIRouter, store: Store, forms: Forms, lake: MetadataSource | None = None) -> None:
    """The alarms, built plans, the query box, previews and the revision form.

    Args:
        lake: the tables that a plan is checked against before it is decided; None: none is decided here.
    """
    _add_alarms(router, store)
    _add_plans(router, store, lake, shows_rows=forms.runner is not None)
    _add_query(router, store, forms)
    _add_revision(router, store, forms)


def _add_alarms(router: APIRouter, store: Store) -> None:
    def page(request: Request, **values: Any) -> Response:
        shown = {"error": None, "by": ""} | values
        return render(
            request,
            "alarms.html",
            **shown,
            alarms=store.alarms.current(),
            resolved=store.alarms.resolved(_RESOLVED),
            may=request.scope.get(ROLE) != Role.READ,
        )

    @router.get("/alarms")
    def alarms(request: Request) -> Response:
        return page(request)

    @router.post("/alarms")
    def acknowledge(request: Request, form: Form) -> Response:
        number, by = form.get("id", ""), form.get("by", "").strip()[:200]
        try:
            if not by:
                raise QueryError("QUERY_EMPTY", "An acknowledgement needs a name: who looks after the alarm?")
            if not (number.isascii() and number.isdigit() and len(number) <= 18):
                raise QueryError("ALARM_NOT_FOUND", f"{number[:40]!r} is no alarm's number")
            store.alarms.acknowledge(int(number), by)
        except TautochroneError as error:
            return page(request, error=error, by=by)
        return page(request, by=by)


def _add_plans(router: APIRouter, store: Store, lake: MetadataSource | None, *, shows_rows: bool) -> None:
    def page(request: Request, identity: str, error: TautochroneError | None = None) -> Response:
        build = store.builds.look_up(identity)
        running = any(job.alive for job in store.jobs.states() if job.name == build.job)
        return render(
            request,
            "plan.html",
            # Who may not query a table does not see its rows here either.
            build=build if shows_rows else build.without_samples(),
            has_hidden_rows=not shows_rows and build != build.without_samples(),
            error=error,
            may_decide=build.state is BuildState.BUILT and not build.problems and not running,
            running=running,
            knows_lake=lake is not None,
            may=request.scope.get(ROLE) != Role.READ,
        )

    @router.get("/plans")
    def plans(request: Request) -> Response:
        return render(request, "plans.html", builds=store.builds.remembered())

    @router.get("/plan")
    def plan(request: Request, id: Annotated[str, Query(max_length=36)]) -> Response:  # noqa: A002
        return page(request, id)

    @router.post("/plan")
    def decide(request: Request, form: Form) -> Response:
        identity = form.get("id", "")[:36]
        try:
            if "confirm" not in form:
                raise QueryError(
                    "PLAN_NOT_CONFIRMED",
                    "The plan was not confirmed: nothing was decided",
                    hint="look at the differences, set the tick before the button, and send the form again",
                )
            approve(store, lake, identity)
        except TautochroneError as error:
            return page(request, identity, error)
        return page(request, identity)


def _add_query(router: APIRouter, store: Store, forms: Forms) -> None:
    runner, history = forms.runner, _QueryHistory()

    def page(request: Request, **values: Any) -> Response:
        form = {"sql": "", "consistency": "strong", "checkpoint": "", "answer": None, "error": None}
        published = [line for line in store.history.timeline() if line.state == "published"]
        shown = form | values
        read_at = str(shown["checkpoint"])
        return render(
            request,
            "query.html",
            **shown,
            published=published,
            # A link may name one that is older than those in the list.
            other=read_at if read_at and all(str(line.number) != read_at for line in published) else None,
            schema=_schema(store) if runner is not None else {},
            history=history.of(request),
            available=runner is not None,
            started=runner is not None and runner.started,
            unavailable_reason=forms.unavailable_reason,
        )

    @router.get("/query")
    def query(
        request: Request,
        sql: Annotated[str, Query(max_length=100_000)] = "",
        checkpoint: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    ) -> Response:
        return page(request, sql=sql, checkpoint="" if checkpoint is None else checkpoint)

    @router.post("/query")
    def run(request: Request, form: Form) -> Response:
        fields = {key: form.get(key, "") for key in ("sql", "consistency", "checkpoint")}
        runner = _required_runner(forms)
        try:
            history.add(request, fields["sql"])
            if "download" in form:
                return _download(runner, fields)
            answer = _run_query(
                runner, fields["sql"], fields["consistency"], fields["checkpoint"], _QUERY_ROWS
            )
        except TautochroneError as error:
            # The form keeps its content.
            return page(request, **fields, error=error)
        return page(request, **fields, answer=answer)

    @router.post("/preview")
    def preview(request: Request, form: Form) -> Response:
        name = form.get("name", "")
        tables = [status.dataset for status in store.datasets.statuses() if str(status.dataset) == name]
        if not tables:
            raise QueryError("DATASET_NOT_FOUND", f"No job of this store writes {name}")
        sql = f"SELECT * FROM {tables[0].sql} LIMIT {_PREVIEW_ROWS}"
        answer = _run_query(
            _required_runner(forms), sql, Consistency.STRONG, form.get("checkpoint", ""), _PREVIEW_ROWS
        )
        is_fragment = "hx-request" in request.headers
        return render(
            request, "_answer.html" if is_fragment else "preview.html", answer=answer, table=tables[0]
        )


class _QueryHistory:
    """The newest queries of each browser, in memory: texts of queries may be confidential.

    A browser is known by the cookie that its forms prove, which no script and no other site can read.
    """

    def __init__(self) -> None:
        self._queries: OrderedDict[str, list[str]] = OrderedDict()
        self._lock = Lock()

    def add(self, request: Request, sql: str) -> None:
        text = sql.strip()
        if not text or len(text) > _LONGEST_REMEMBERED:
            return
        browser = self._browser(request)
        with self._lock:
            others = [known for known in self._queries.pop(browser, []) if known != text]
            self._queries[browser] = [text, *others][:_REMEMBERED]
            while len(self._queries) > _BROWSERS:
                self._queries.popitem(last=False)

    def of(self, request: Request) -> list[str]:
        """The newest first."""
        with self._lock:
            return list(self._queries.get(self._browser(request), ()))

    @staticmethod
    def _browser(request: Request) -> str:
        return hashlib.sha256(csrf_token(request).encode()).hexdigest()


def _schema(store: Store) -> dict[TableName, tuple[LakeColumn, ...]]:
    """The tables that can be queried, each with its columns; without columns where its job has not said."""
    names = [entry.name for entry in store.datasets.registered() if entry.kind in VERSIONED_KINDS]
    unknown: dict[TableName, tuple[LakeColumn, ...]] = dict.fromkeys(names, ())
    return unknown | store.datasets.columns()


def _download(runner: Runner, fields: Mapping[str, str]) -> Response:
    """The whole result of a query as CSV; see `csv_of`."""
    _require_query(fields["sql"], fields["consistency"])
    answer = runner.arrow(
        QueryRequest(
            sql=fields["sql"],
            consistency=Consistency(fields["consistency"]),
            checkpoint=_checkpoint_number(fields["checkpoint"]),
        )
    )
    at = "weak" if answer.checkpoint is None else f"checkpoint-{answer.checkpoint}"
    headers = {"Content-Disposition": f'attachment; filename="query-{at}.csv"'}
    return protect(Response(csv_of(answer.rows), media_type="text/csv; charset=utf-8", headers=headers))


def csv_of(rows: pa.Table) -> bytes:
    """An Arrow table as CSV with a header line. NULL is an empty field, an empty text is quoted.

    Lists and structs are JSON, maps lists of pairs, bytes hexadecimal digits; intervals are as Python writes
    them.
    """
    import pyarrow as pa
    from pyarrow import csv

    is_text = [not _is_written_by_arrow(kind) for kind in rows.schema.types]
    # Two columns may have the same name, so columns are known by their position.
    schema = pa.schema(
        [
            pa.field(field.name, pa.string() if as_text else field.type)
            for field, as_text in zip(rows.schema, is_text, strict=True)
        ]
    )
    sink = pa.BufferOutputStream()
    with csv.CSVWriter(sink, schema) as writer:
        for batch in rows.to_batches(_CSV_ROWS):
            columns = [
                pa.array([_csv_text(value) for value in column.to_pylist()], pa.string())
                if as_text
                else column
                for column, as_text in zip(batch.columns, is_text, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(sink.getvalue())


def _is_written_by_arrow(kind: pa.DataType) -> bool:
    """Whether Arrow writes the values of a type as CSV, and as this project does. It writes decimals of many
    digits behind the point with an exponent, `0E-8`."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return bool(0 <= kind.scale <= _PLAIN_SCALE)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return pa.types.is_primitive(kind) and not (pa.types.is_duration(kind) or pa.types.is_interval(kind))


def _csv_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=_csv_text)
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def _required_runner(forms: Forms) -> Runner:
    if forms.runner is None:
        raise QueryError(
            "QUERIES_UNAVAILABLE",
            f"There are no queries here. {forms.unavailable_reason}",
            hint="ask with `taut query` in the project",
        )
    return forms.runner


def _run_query(runner: Runner, sql: str, consistency: str, checkpoint: str, limit: int) -> Answer:
    _require_query(sql, consistency)
    return runner.run(sql, Consistency(consistency), _checkpoint_number(checkpoint), limit)


def _require_query(sql: str, consistency: str) -> None:
    if not sql.strip():
        raise QueryError("QUERY_EMPTY", "There is no query to run")
    if consistency not in list(Consistency):
        raise QueryError("QUERY_INSTANT_INVALID", f"{consistency!r} is neither strong nor weak")


def _checkpoint_number(text: str) -> int | None:
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) <= 18):
        raise QueryError("QUERY_INSTANT_INVALID", f"{text[:40]!r} is no checkpoint's number")
    return int(text)


def _add_revision(router: APIRouter, store: Store, forms: Forms) -> None:
    revisions = forms.revisions

    def page(request: Request, **values: Any) -> Response:
        shown: dict[str, Any] = {"names": [], "to": "", "full": False, "read_again": False}
        shown |= {"plan": None, "seen": "", "error": None, "done": None, "changed": False}
        published = [line for line in store.history.timeline() if line.state == "published"]
        return render(
            request,
            "revision.html",
            **shown | values,
            published=published,
            datasets=sorted(_revisable_tables(store)),
            available=revisions is not None,
            unavailable_reason=forms.unavailable_reason,
            # Without access control there is no role, and revisions are allowed.
            may=request.scope.get(ROLE) != Role.READ,
        )

    @router.get("/revision")
    def revision(request: Request, name: str | None = None) -> Response:
        return page(request, names=[name] if name else [])

    @router.post("/revision")
    def revise(request: Request, form: Form) -> Response:
        names = [text.strip() for text in form.get("names", "").splitlines() if text.strip()]
        options = {option: option in form for option in ("full", "read_again")}
        fields: dict[str, Any] = {"names": names, "to": form.get("to", ""), **options}
        if revisions is None:
            raise QueryError(
                "REVISIONS_UNAVAILABLE",
                f"There are no revisions here. {forms.unavailable_reason}",
                hint="use `taut revise` in the project",
            )
        try:
            return page(request, **fields, **_revise(store, revisions, fields, form))
        except TautochroneError as error:
            return page(request, **fields, error=error)


def _revisable_tables(store: Store) -> set[TableName]:
    """The tables that a revision can name: datasets and their inputs, without clocks."""
    entries = store.datasets.registered()
    tables = {entry.name for entry in entries}.union(*(entry.inputs for entry in entries))
    return {name for name in tables if not is_clock(name)}


def _revise(
    store: Store, revisions: Revisions, fields: Mapping[str, Any], form: Mapping[str, str]
) -> dict[str, Any]:
    """Show the plan, or execute it when the form confirms the plan that was shown."""
    if not fields["names"]:
        raise QueryError("QUERY_EMPTY", "A revision needs the tables that were wrong")
    known = {str(name): name for name in _revisable_tables(store)}
    unknown = [name for name in fields["names"] if name not in known]
    if unknown:
        raise QueryError("DATASET_NOT_FOUND", f"No job of this store writes or reads {', '.join(unknown)}")
    to = _checkpoint_number(fields["to"])
    if to is None and not fields["full"]:
        raise QueryError("QUERY_INSTANT_INVALID", "A revision needs the checkpoint to go back to")
    request = RevisionRequest(
        named=tuple(known[name] for name in fields["names"]),
        to=None if to is None else CheckpointNumber(to),
        read_again=fields["read_again"],
        full=fields["full"],
    )
    plan = revisions.plan(request)
    seen = _plan_digest(request, plan)
    confirmed = form.get("seen", "")
    if "confirm" in form and confirmed == seen:
        return {"done": revisions.carry_out(request, plan)}
    return {"plan": plan, "seen": seen, "changed": bool(confirmed) and confirmed != seen}


def _plan_digest(request: RevisionRequest, plan: RevisionPlan) -> str:
    """A hash of the plan that was shown, so that only this plan can be confirmed.

    Without the revoked checkpoints, because a running job publishes more of them.
    """
    shown = (request, plan.to, plan.tables, plan.sinks)
    return hashlib.sha256(repr(shown).encode()).hexdigest()
