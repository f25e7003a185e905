"""Reading through a service: a query is sent as text, its rows come back as Arrow. Needs no Java.

Imports neither Spark nor the service, so that a command that only asks one is quick.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from tautochrone.errors import (
    AccessError,
    CheckpointUnavailableError,
    MetaError,
    QueryError,
    TautochroneError,
)
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.closeable import Closeable
from tautochrone.model.names import TableName
from tautochrone.model.query import ARROW_STREAM, QUERY_KEY, QUERY_METADATA, Query, QueryAnswer
from tautochrone.model.verdict import Verdict, Verification
from tautochrone.redaction import keep_secret

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RemoteReader"]

_TOKEN_VARIABLE = "TAUTOCHRONE_META_TOKEN"
_CONNECT_S, _BETWEEN_PARTS_S = 10.0, 300.0
"""Seconds. A service ends a query after a minute; it may start Spark first, and wait for a checkpoint."""


class RemoteReader(Closeable):
    """Strong and weak reads through a service. Safe to share between threads.

        with tautochrone.connect("http://lake.example:7117") as reader:
            frame = reader.sql("SELECT * FROM totals").to_pandas()

    Args:
        url: of `taut serve`, or of a running job.
        token: the bearer token; None: the value of `TAUTOCHRONE_META_TOKEN`.
        key: of a job's own service: see `app.serving`.
    """

    def __init__(self, url: str, token: str | None = None, *, key: str = "") -> None:
        token = token or os.environ.get(_TOKEN_VARIABLE)
        headers = {QUERY_KEY: key} if key else {}
        if token:
            keep_secret(token)
            headers["Authorization"] = f"Bearer {token}"
        # Without TLS the machine's certificates, which take 30 ms to load, are not needed.
        verify = not url.lower().startswith("http://")
        timeout = httpx.Timeout(_BETWEEN_PARTS_S, connect=_CONNECT_S)
        # Redirects are not followed, because they could send the token to another host.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify)

    def sql(
        self,
        query: str,
        consistency: Consistency | str = Consistency.STRONG,
        checkpoint: int | None = None,
        *,
        only_named: bool = False,
        after: str | None = None,
        wait_ms: int = 0,
    ) -> pa.Table:
        """A query over all its tables at one checkpoint, or at the newest version of each (`weak`).

            reader.sql("SELECT day, n FROM totals").to_pylist()     # [{'day': …, 'n': 3}, …]

        Args:
            query, consistency, checkpoint, only_named, after, wait_ms: as for `Reader.sql`; the service
                waits a minute at most.

        Returns:
            All rows, as a `pyarrow.Table`.

        Raises:
            QueryError: the query is wrong, took longer than a minute, or the service refuses it.
            CheckpointUnavailableError: no checkpoint shows all tables; `READ_NOT_YET` (retryable).
            MetaError: `META_SERVICE_UNREACHABLE` (retryable), `META_SERVICE_UNKNOWN`.
            AccessError: the token is missing or unknown.
        """
        request = Query(
            sql=query,
            consistency=Consistency(consistency),
            checkpoint=checkpoint,
            only_named=only_named,
            after=after,
            wait_ms=wait_ms,
        )
        return self.arrow(request).rows

    def arrow(self, query: Query) -> QueryAnswer:
        """The rows of a query, the checkpoint that was read, and the tables that are behind.

        Raises:
            QueryError, CheckpointUnavailableError, MetaError, AccessError: as `sql`.
        """
        body = {
            "sql": query.sql,
            "consistency": query.consistency,
            "checkpoint": query.checkpoint,
            "only_named": query.only_named,
            "after": query.after,
            "wait_ms": query.wait_ms,
        }
        answer = self._post("/api/v1/query", body)
        if answer.headers.get("Content-Type") != ARROW_STREAM:
            raise self._unknown(answer)
        return _answer_of(answer.content)

    def write_token(self) -> str:
        """A write token, `w` and a number: a read with it as `after` shows what the sources hold now.

        Raises:
            MetaError: as `sql`.
        """
        try:
            return str(self._post("/api/v1/tokens", None).json()["token"])
        except (ValueError, LookupError, TypeError) as error:
            raise MetaError("META_SERVICE_UNKNOWN", f"{self._http.base_url} gave no token") from error

    def verify(self, names: Sequence[str] = (), checkpoint: int | None = None) -> Verification:
        """Let a running job recompute its views; see `model.verdict.Verifier`.

        Raises:
            MetaError: as `sql`; what is no service of a running job answers `HTTP_404`.
            TautochroneError: a name is no dataset, it is no published checkpoint; also from the verdicts.
        """
        request = self._http.build_request(
            "POST",
            "/api/v1/verifications",
            json={"names": list(names), "checkpoint": checkpoint},
            # The next view may take as long as its query does.
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
        )
        try:
            answer = self._http.send(request, stream=True)
            if not answer.is_success:
                answer.read()
                raise self._error_of(answer)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        parts = self._parts(answer)
        named = next(parts)["named"]
        return Verification(
            named=[TableName.parse(name) for name in named],
            verdicts=map(_verdict_of, parts),
            stop=answer.close,
        )

    def _parts(self, answer: httpx.Response) -> Iterator[dict[str, Any]]:
        """The lines of an answer up to its end."""
        try:
            for line in answer.iter_lines():
                part = json.loads(line)
                if "error_class" in part:
                    raise self._error_of_problem(part)
                if "complete" in part:
                    return
                yield part
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        finally:
            answer.close()
        raise MetaError(
            "META_SERVICE_UNREACHABLE",
            f"The run at {self._http.base_url} ended in the middle of its answer",
            hint="`taut verify --own-spark` needs no run",
            retryable=True,
        )

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: Any) -> httpx.Response:
        try:
            answer = self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.is_success:
            return answer
        raise self._error_of(answer)

    def _unreachable(self, error: httpx.HTTPError) -> MetaError:
        return MetaError(
            "META_SERVICE_UNREACHABLE",
            f"The service at {self._http.base_url} does not answer: {error or type(error).__name__}",
            hint="`taut serve` starts it",
            retryable=True,
        )

    def _error_of(self, answer: httpx.Response) -> TautochroneError:
        try:
            return self._error_of_problem(answer.json())
        except (ValueError, LookupError, TypeError):
            return self._unknown(answer)

    def _error_of_problem(self, problem: Mapping[str, Any]) -> TautochroneError:
        error_class, message = str(problem["error_class"]), str(problem["detail"])
        kind: type[TautochroneError] = QueryError
        if error_class.startswith(("CHECKPOINT_", "READ_")):
            kind = CheckpointUnavailableError
        elif error_class.startswith(("TOKEN_", "ROLE_", "HOST_", "CROSS_")):
            kind = AccessError
        elif error_class.startswith(("META_", "HTTP_")):
            kind = MetaError
        return kind(
            error_class,
            message,
            hint=problem.get("hint"),
            sqlstate=problem.get("sqlstate"),
            retryable=bool(problem.get("retryable")),
            parameters=problem.get("parameters") or {},
        )

    def _unknown(self, answer: httpx.Response) -> MetaError:
        return MetaError(
            "META_SERVICE_UNKNOWN",
            f"What answers at {self._http.base_url} (status {answer.status_code}) is no service of this "
            "version",
            hint="the same version of Tautochrone on both sides",
        )


def _verdict_of(part: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**part, "dataset": TableName.parse(part["dataset"])})


def _answer_of(content: bytes) -> QueryAnswer:
    import pyarrow as pa

    with pa.ipc.open_stream(content) as stream:
        rows = stream.read_all()
    metadata = dict(rows.schema.metadata or {})
    instant = json.loads(metadata.pop(QUERY_METADATA))
    return QueryAnswer(
        rows=rows.replace_schema_metadata(metadata or None),
        checkpoint=instant["checkpoint"],
        behind=instant["behind"],
    )
