"""Which processes of a project answer queries now: a file for each, in the project's storage on this machine.

    <storage>/serving/<instance>.json    {"uri": "http://127.0.0.1:7117", "has_spark": true, "reads": …}

A process that was killed leaves its file. So a client asks the address for its instance before it believes
the file. What the process reads is in the file, too: a process with another lake, store or settings of
queries, such as that of the project that a storage was copied from, would give another answer. A job's own
service answers who knows the key in the file, which only its user may read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx

from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec

__all__ = ["ServingProcess", "announced", "serving_processes"]

_log = logging.getLogger(__name__)

_FOLDER = "serving"
_CONNECT_S, _ANSWER_S = 0.5, 5.0
"""The first request to a job's server makes its pages, which takes a second on a busy machine."""


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """A service of this project.

    Attributes:
        has_spark: its Spark runs already, as that of a continuous run.
        key: what its queries must show, besides a token.
        definitions: a hash of the definitions by which it can verify views; None: it verifies none.
    """

    uri: str
    instance: str
    has_spark: bool
    key: str
    definitions: str | None = None


@contextmanager
def announced(
    spec: PipelineSpec,
    settings: Settings,
    uri: str,
    instance: str,
    *,
    has_spark: bool,
    key: str = "",
    definitions: str | None = None,
) -> Iterator[None]:
    """Let `taut query` of this machine know the service, within the block.

    Args:
        spec, settings: of the project; only a storage on this machine is written to.
        uri: where the service listens, from this machine.
        instance: as its `/healthz` names it.
        has_spark: whether the first query finds a Spark that runs.
        key: what queries must show; empty: nothing.
        definitions: a hash of those by which the service verifies views; None: it verifies none.
    """
    folder = _folder_of(settings.storage)
    if folder is None:
        yield
        return
    file = folder / f"{instance}.json"
    content = {
        "uri": uri,
        "has_spark": has_spark,
        "key": key,
        "definitions": definitions,
        "reads": _what_is_read(spec, settings),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(content))
        new.rename(file)
    except OSError as error:
        # A service may be allowed to read the storage only.
        _log.warning("`taut query` will not find this service by itself: %s", error)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def serving_processes(spec: PipelineSpec, settings: Settings) -> list[ServingProcess]:
    """The services of the project that answer now; those with a Spark come first."""
    folder = _folder_of(settings.storage)
    if folder is None or not folder.is_dir():
        return []
    expected = _what_is_read(spec, settings)
    read = (_read(file, expected) for file in sorted(folder.glob("*.json")))
    there = (process for process in read if process is not None and _answers(process))
    return sorted(there, key=lambda process: not process.has_spark)


def _folder_of(storage: str) -> Path | None:
    return None if "://" in storage else Path(storage).resolve() / _FOLDER


def _what_is_read(spec: PipelineSpec, settings: Settings) -> str:
    """A hash, because a URL may have a password."""
    catalog = settings.catalog
    parts = [
        str(_folder_of(settings.storage)),
        settings.meta_url,
        [catalog.name, sorted(catalog.options.items())],
        spec.database,
        sorted((key, value) for key, value in spec.configuration.items() if key.startswith("spark.sql.")),
        sorted((key, value) for key, value in settings.spark.conf.items() if key.startswith("spark.sql.")),
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()


def _read(file: Path, expected: str | None = None) -> ServingProcess | None:
    """The process of a file; None when it reads something else than `expected`."""
    try:
        content = json.loads(file.read_text())
        if expected not in (None, content["reads"]):
            return None
        return ServingProcess(
            content["uri"], file.stem, content["has_spark"], content["key"], content["definitions"]
        )
    except (OSError, ValueError, LookupError, TypeError):
        # It was removed meanwhile, or is not ours.
        return None


def _answers(process: ServingProcess) -> bool | None:
    """Whether the process is at its address; None: what is there did not answer in time."""
    try:
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        # Plain HTTP on this machine: neither certificates nor a proxy.
        answer = httpx.get(f"{process.uri}/healthz", timeout=timeout, trust_env=False, verify=False)
        return bool(answer.json().get("instance") == process.instance)
    except httpx.TimeoutException:
        return None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, AttributeError):
        return False


def _remove_stale(folder: Path) -> None:
    """Remove the files of processes that were killed."""
    for file in folder.glob("*.json"):
        process = _read(file)
        # One that is busy may still be alive.
        if process is None or _answers(process) is False:
            file.unlink(missing_ok=True)
