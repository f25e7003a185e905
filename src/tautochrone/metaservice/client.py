"""A client for the MetaService over HTTP, and the same calls on a store in this process.

    with Client("http://127.0.0.1:7117", token) as client:
        pin = client.pin("nightly report", ["lake.db.orders"], lease_ms=600_000)
        snapshots = {version.table: int(version.version) for version in pin.versions}
        ...  # read these snapshots with any engine
        client.release_pin(pin.id)

Problems of the service are `MetaError`s with the class that the service answered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.api.alarms import AlarmEntry, alarms_of
from tautochrone.metaservice.api.datasets import DatasetSummary, Lineage, dataset_summaries, lineage_of
from tautochrone.metaservice.api.jobs import Job, SinceLastRun, StartedJob, jobs_of
from tautochrone.metaservice.api.reads import CreatedPin, Pin, Versions, WriteToken, pins_of
from tautochrone.metaservice.http.problems import Problem
from tautochrone.metaservice.http.validation import parse_table_name
from tautochrone.metaservice.write_tokens import write_token
from tautochrone.model.closeable import Closeable
from tautochrone.redaction import keep_secret

__all__ = [
    "TOKEN_VARIABLE",
    "Client",
    "LocalService",
    "Service",
    "error_of_answer",
    "is_http",
    "open_service",
    "unknown_service_error",
    "unreachable_service_error",
]

TOKEN_VARIABLE = "TAUTOCHRONE_META_TOKEN"
_TIMEOUT_S = 30.0

_Result = TypeVar("_Result")


class Service(Protocol):
    """The calls that commands need."""

    def datasets(self) -> list[DatasetSummary]:
        """The status of every dataset, by name."""

    def lineage(self, table: str) -> Lineage:
        """Upstream and downstream of a table.

        Args:
            table: `catalog.database.table`.

        Raises:
            TautochroneError: `DATASET_NOT_FOUND`.
        """

    def jobs(self) -> list[Job]:
        """All jobs, by name."""

    def pins(self) -> list[Pin]:
        """The live pins, by the end of their lease."""

    def alarms(self, resolved: int = 0) -> list[AlarmEntry]:
        """The open alarms, the critical ones first, and then so many that are over."""

    def acknowledge(self, alarm: int, by: str) -> None:
        """Say who looks after an open alarm.

        Raises:
            MetaError: `ALARM_NOT_FOUND`.
        """

    def write_token(self) -> str:
        """A write token: reads with it as `after` show what the sources hold now."""

    def close(self) -> None:
        """Close connections."""


def is_http(url: str) -> bool:
    """Whether the URL is of a service, and not of a database."""
    return url.lower().startswith(("http://", "https://"))


def open_service(url: str, token: str | None = None) -> Service:
    """The service at an http(s) URL, or the store at a database URL.

    Args:
        token: the bearer token for a service; None: the value of `TAUTOCHRONE_META_TOKEN`.

    Raises:
        MetaError: the store cannot be opened; `META_STORE_MISSING`, `META_STORE_OTHER_RELEASE`.
    """
    if is_http(url):
        return Client(url, token or os.environ.get(TOKEN_VARIABLE))
    return LocalService(MetaStore.open(url, migrate=False))


class LocalService:
    """The calls on a store in this process."""

    def __init__(self, store: Store, since_last_run: SinceLastRun = lambda _job: None) -> None:
        self._store, self._since_last_run = store, since_last_run

    def datasets(self) -> list[DatasetSummary]:
        return dataset_summaries(self._store)

    def lineage(self, table: str) -> Lineage:
        return lineage_of(self._store, parse_table_name(table))

    def jobs(self) -> list[Job]:
        return jobs_of(self._store, self._since_last_run)

    def pins(self) -> list[Pin]:
        return pins_of(self._store)

    def alarms(self, resolved: int = 0) -> list[AlarmEntry]:
        self._store.alarms.evaluate()
        return alarms_of(self._store, resolved)

    def acknowledge(self, alarm: int, by: str) -> None:
        self._store.alarms.acknowledge(alarm, by)

    def write_token(self) -> str:
        return write_token(self._store)

    def close(self) -> None:
        self._store.close()


class Client(Closeable):
    """A MetaService over HTTP. Safe to share between threads.

    Tables are named `catalog.database.table`; times and leases are milliseconds.

    Every method may raise:
        MetaError: the class that the service answered, such as `TOKEN_MISSING` or `JOB_NOT_FOUND`;
            `META_SERVICE_UNREACHABLE` (retryable): no answer; `META_SERVICE_UNKNOWN`: what answers is not a
            MetaService of this version.

    Args:
        url: `http://host:7117`.
        token: the bearer token of each request.
        timeout_s: how many seconds to wait for each answer.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        headers = {}
        if token:
            keep_secret(token)
            headers["Authorization"] = f"Bearer {token}"
        # Without TLS the machine's certificates, which take 30 ms to load, are not needed.
        transport = httpx.HTTPTransport(retries=2, verify=not url.lower().startswith("http://"))
        # Redirects are not followed, because they could send the token to another host.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)

    def datasets(self) -> list[DatasetSummary]:
        return self._request(list[DatasetSummary], "GET", "/api/v1/datasets")

    def lineage(self, table: str) -> Lineage:
        return self._request(Lineage, "GET", f"/api/v1/lineage/{quote(table, safe='')}")

    def jobs(self) -> list[Job]:
        return self._request(list[Job], "GET", "/api/v1/jobs")

    def pins(self) -> list[Pin]:
        return self._request(list[Pin], "GET", "/api/v1/pins")

    def alarms(self, resolved: int = 0) -> list[AlarmEntry]:
        return self._request(list[AlarmEntry], "GET", f"/api/v1/alarms?resolved={resolved}")

    def acknowledge(self, alarm: int, by: str) -> None:
        self._send("POST", f"/api/v1/alarms/{alarm}/acknowledge", {"by": by})

    def write_token(self) -> str:
        return self._request(WriteToken, "POST", "/api/v1/tokens").token

    def versions(
        self,
        tables: Iterable[str] = (),
        consistency: str = "strong",
        checkpoint: int | None = None,
        *,
        after: str | None = None,
        wait_ms: int = 0,
    ) -> Versions:
        """The versions of tables at a read point, without a pin.

            client.versions(["lake.db.orders"]).versions[0].version     # "8032417650921"

        Args:
            tables: none: all tables.
            consistency: `strong`: one checkpoint; `weak`: the newest version of each table.
            checkpoint: a published checkpoint, instead of the newest readable one.
            after: a write token: the versions show everything that the sources held then.
            wait_ms: for how long the service waits for such a checkpoint, a minute at most; keep it below the
                client's `timeout_s`.

        Raises:
            MetaError: `READ_NOT_YET` (retryable): no checkpoint is after the token; `TABLE_NOT_FOUND`;
                `CHECKPOINT_NOT_FOUND`, `_EXPIRED`, `_REVOKED` or `_NOT_PUBLISHED`.
        """
        body = {"tables": list(tables), "checkpoint": checkpoint, "after": after, "wait_ms": wait_ms}
        return self._request(Versions, "POST", f"/version/{quote(consistency, safe='')}", body)

    def pin(self, owner: str, tables: Iterable[str] = (), **request: Any) -> CreatedPin:
        """Pin the versions of tables at a read point, so that they are kept for the lease.

            pin = client.pin("notebook", ["lake.db.orders"], lease_ms=60_000)
            client.renew_pin(pin.id, 60_000)
            client.release_pin(pin.id)

        Args:
            owner: who reads, as text for people.
            tables: none: all tables.
            request: `consistency`, `checkpoint`, `after` and `wait_ms` as for `versions`; `lease_ms`: an hour
                at most with the role read, a day with operate; `only_named`: do not wait for tables that
                share a root with these.

        Raises:
            MetaError: as for `versions`; `LEASE_INVALID`, `TOO_MANY_PINS`.
        """
        body = {"owner": owner, "tables": list(tables), **request}
        return self._request(CreatedPin, "POST", "/api/v1/pins", body)

    def renew_pin(self, pin: str, lease_ms: int) -> None:
        """Extend the lease of a pin to `lease_ms` from now.

        Raises:
            MetaError: `PIN_EXPIRED`, `PIN_NOT_YOURS`, `LEASE_INVALID`.
        """
        self._send("POST", f"/api/v1/pins/{quote(pin, safe='')}/renew", {"lease_ms": lease_ms})

    def release_pin(self, pin: str) -> None:
        """End a pin. Does nothing when it is gone.

        Raises:
            MetaError: `PIN_NOT_YOURS`.
        """
        self._send("DELETE", f"/api/v1/pins/{quote(pin, safe='')}")

    def register(self, job: str, *, sources: Iterable[str] = (), sinks: Iterable[str] = ()) -> None:
        """Announce the tables that a job will read and write (FLIP-276). `start` makes them visible.

            client.register("etl", sources=["lake.db.orders"], sinks=["lake.db.report"])
            fence = client.start("etl").fence
            client.unregister("etl", fence)

        Raises:
            MetaError: `DATASET_OWNED_BY_ANOTHER_JOB`, `TOPOLOGY_CYCLE`, `JOB_NAME_TAKEN`.
        """
        for role, tables in (("source", sources), ("sink", sinks)):
            for table in tables:
                name = parse_table_name(table)
                parts = (job, name.catalog, ".".join(name.namespace), name.table)
                self._send("POST", f"/register/{role}/" + "/".join(quote(part, safe="") for part in parts))

    def start(self, job: str) -> StartedJob:
        """Start the job: its fence, and the checkpoint of its sources to continue from.

        Raises:
            MetaError: `JOB_RUNNING`: another run has it; `JOB_NOT_FOUND`: no sink is registered.
        """
        return self._request(StartedJob, "POST", f"/start/{quote(job, safe='')}")

    def unregister(self, job: str, fence: int | None = None) -> None:
        """End the job. With the fence from `start`, a newer run is not ended.

        Raises:
            MetaError: `JOB_FENCED`: a newer run has the job; `JOB_NOT_FOUND`.
        """
        self._send(
            "POST", f"/unregister/{quote(job, safe='')}" + ("" if fence is None else f"?fence={fence}")
        )

    def close(self) -> None:
        self._http.close()

    def _request(self, result_type: type[_Result], method: str, path: str, body: Any = None) -> _Result:
        answer = self._send(method, path, body)
        try:
            return TypeAdapter(result_type).validate_json(answer.content)
        except ValidationError as error:
            raise unknown_service_error(answer) from error

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise unreachable_service_error(self._http, error) from error
        if answer.is_success:
            return answer
        raise error_of_answer(answer)


def error_of_answer(answer: httpx.Response) -> MetaError | FencedError:
    """The error that a service answered."""
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        return unknown_service_error(answer)
    kind = FencedError if problem.error_class == "TRANSACTION_FENCED" else MetaError
    return kind(
        problem.error_class,
        problem.detail,
        hint=problem.hint,
        sqlstate=problem.sqlstate,
        retryable=problem.retryable,
        parameters=problem.parameters,
    )


def unreachable_service_error(client: httpx.Client, error: httpx.HTTPError) -> MetaError:
    """The error for a service that does not answer."""
    return MetaError(
        "META_SERVICE_UNREACHABLE",
        f"The MetaService at {client.base_url} does not answer: {error or type(error).__name__}",
        hint="`taut serve` starts it; the setting is meta.url.",
        retryable=True,
    )


def unknown_service_error(answer: httpx.Response) -> MetaError:
    """The error for an answer that no MetaService of this version gives."""
    return MetaError(
        "META_SERVICE_UNKNOWN",
        f"What answers at {answer.url.copy_with(query=None)} (status {answer.status_code}) is no MetaService "
        "of this version",
        hint="the setting meta.url; the same version of Tautochrone on both sides",
    )
