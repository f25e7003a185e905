"""Asking a MetaService: over HTTP, or in process when all there is is a store. Both answer the same values.

`Client` has more than commands need: whoever reads tables by other means asks it for versions and pins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.api.datasets import DatasetSummary, Lineage, dataset_summaries, lineage_of
from tautochrone.metaservice.api.flip import StartedJob, Versions
from tautochrone.metaservice.api.jobs import Job, jobs_of
from tautochrone.metaservice.api.pins import CreatedPin, Pin, pins_of
from tautochrone.metaservice.api.tokens import WriteToken
from tautochrone.metaservice.api.write_tokens import write_token
from tautochrone.metaservice.http.problems import Problem
from tautochrone.metaservice.http.request_names import parsed_name
from tautochrone.model.closing import Closing
from tautochrone.redaction import keep_secret

__all__ = ["TOKEN_VARIABLE", "Client", "InProcess", "Service", "is_http", "open_service"]

TOKEN_VARIABLE = "TAUTOCHRONE_META_TOKEN"
_TIMEOUT_S = 30.0

_Answer = TypeVar("_Answer")


class Service(Protocol):
    """What commands ask."""

    def datasets(self) -> list[DatasetSummary]:
        """Every dataset, by name."""

    def lineage(self, table: str) -> Lineage:
        """Up and down from a table.

        Raises:
            TautochroneError: `DATASET_NOT_FOUND`.
        """

    def jobs(self) -> list[Job]:
        """All jobs, by name."""

    def pins(self) -> list[Pin]:
        """The live pins; what ends first comes first."""

    def write_token(self) -> str:
        """A write token: reads with it as `after` show what the sources hold now."""

    def close(self) -> None:
        """Close connections."""


def is_http(url: str) -> bool:
    """Does the URL mean a service, not a database?"""
    return url.lower().startswith(("http://", "https://"))


def open_service(url: str, token: str | None = None) -> Service:
    """The service at an http(s) URL, with `token` or that of `TAUTOCHRONE_META_TOKEN`; or a store in process.

    Raises:
        MetaError: the store cannot be opened.
    """
    if is_http(url):
        return Client(url, token or os.environ.get(TOKEN_VARIABLE))
    return InProcess(MetaStore.open(url))


class InProcess:
    """A store that nobody serves."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def datasets(self) -> list[DatasetSummary]:
        return dataset_summaries(self._store)

    def lineage(self, table: str) -> Lineage:
        return lineage_of(self._store, parsed_name(table))

    def jobs(self) -> list[Job]:
        return jobs_of(self._store)

    def pins(self) -> list[Pin]:
        return pins_of(self._store)

    def write_token(self) -> str:
        return write_token(self._store)

    def close(self) -> None:
        self._store.close()


class Client(Closing):
    """A MetaService over HTTP. Safe to share between threads.

    Every method raises the error that the service answered as a `MetaError` of the same class, or
    `META_SERVICE_UNREACHABLE` (retryable) when there was no answer.

    Args:
        url: `http://host:7117`.
        token: shown with each request.
        timeout_s: for each answer.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        headers = {}
        if token:
            keep_secret(token)
            headers["Authorization"] = f"Bearer {token}"
        # A redirect could carry the token elsewhere; the service sends none that matters.
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, transport=httpx.HTTPTransport(retries=2)
        )

    def datasets(self) -> list[DatasetSummary]:
        return self._ask(list[DatasetSummary], "GET", "/api/v1/datasets")

    def lineage(self, table: str) -> Lineage:
        return self._ask(Lineage, "GET", f"/api/v1/lineage/{quote(table, safe='')}")

    def jobs(self) -> list[Job]:
        return self._ask(list[Job], "GET", "/api/v1/jobs")

    def pins(self) -> list[Pin]:
        return self._ask(list[Pin], "GET", "/api/v1/pins")

    def write_token(self) -> str:
        return self._ask(WriteToken, "POST", "/api/v1/tokens").token

    def versions(
        self,
        tables: Iterable[str] = (),
        consistency: str = "strong",
        checkpoint: int | None = None,
        *,
        after: str | None = None,
        wait_ms: int = 0,
    ) -> Versions:
        """The versions of tables (`catalog.database.table`; none: all), without a pin.

        Args:
            after: a write token: what was written before it is in, or the error is `READ_NOT_YET`.
            wait_ms: so long the service waits for it; keep it below the client's `timeout_s`.
        """
        body = {"tables": list(tables), "checkpoint": checkpoint, "after": after, "wait_ms": wait_ms}
        return self._ask(Versions, "POST", f"/version/{quote(consistency, safe='')}", body)

    def pin(self, owner: str, tables: Iterable[str] = (), **request: Any) -> CreatedPin:
        """Choose a read point and pin it; `request`: `consistency`, `checkpoint`, `lease_ms`, `after`,
        `wait_ms`."""
        body = {"owner": owner, "tables": list(tables), **request}
        return self._ask(CreatedPin, "POST", "/api/v1/pins", body)

    def renew_pin(self, pin: str, lease_ms: int) -> None:
        self._send("POST", f"/api/v1/pins/{quote(pin, safe='')}/renew", {"lease_ms": lease_ms})

    def release_pin(self, pin: str) -> None:
        self._send("DELETE", f"/api/v1/pins/{quote(pin, safe='')}")

    def register(self, job: str, *, sources: Iterable[str] = (), sinks: Iterable[str] = ()) -> None:
        """Announce what the job will read and write (FLIP-276); seen when it starts."""
        for role, tables in (("source", sources), ("sink", sinks)):
            for table in tables:
                name = parsed_name(table)
                parts = (job, name.catalog, ".".join(name.namespace), name.table)
                self._send("POST", f"/register/{role}/" + "/".join(quote(part, safe="") for part in parts))

    def start(self, job: str) -> StartedJob:
        """The job runs now."""
        return self._ask(StartedJob, "POST", f"/start/{quote(job, safe='')}")

    def unregister(self, job: str, fence: int | None = None) -> None:
        """The job ended; with the fence of its start a newer run is not harmed."""
        self._send(
            "POST", f"/unregister/{quote(job, safe='')}" + ("" if fence is None else f"?fence={fence}")
        )

    def close(self) -> None:
        self._http.close()

    def _ask(self, kind: type[_Answer], method: str, path: str, body: Any = None) -> _Answer:
        answer = self._send(method, path, body)
        try:
            return TypeAdapter(kind).validate_json(answer.content)
        except ValidationError as error:
            raise _not_ours(answer) from error

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise MetaError(
                "META_SERVICE_UNREACHABLE",
                f"The MetaService at {self._http.base_url} does not answer: {error or type(error).__name__}",
                hint="`taut serve` starts it; the setting is meta.url.",
                retryable=True,
            ) from error
        if answer.is_success:
            return answer
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            raise _not_ours(answer) from None
        raise MetaError(
            problem.error_class,
            problem.detail,
            hint=problem.hint,
            sqlstate=problem.sqlstate,
            retryable=problem.retryable,
            parameters=problem.parameters,
        )


def _not_ours(answer: httpx.Response) -> MetaError:
    return MetaError(
        "META_SERVICE_UNKNOWN",
        f"What answers at {answer.url.copy_with(query=None)} (status {answer.status_code}) is no MetaService "
        "of this version",
        hint="the setting meta.url; the same version of Tautochrone on both sides",
    )
