"""Which processes of a project answer queries now: a file for each, in the project's storage on this machine.

    <storage>/serving/<instance>.json    {"uri": "http://127.0.0.1:7117", "has_spark": true, "storage": …}

A process that was killed leaves its file. So a client asks the address for its instance before it believes
the file. A copied storage has files that name the folder that they came from; they count only there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["ServingProcess", "announced", "serving_processes"]

_log = logging.getLogger(__name__)

_FOLDER = "serving"
_CONNECT_S, _ANSWER_S = 0.5, 5.0
"""The first request to a job's server makes its pages, which takes a second on a busy machine."""


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """A service of this project. `has_spark`: its Spark runs already, as that of a continuous run."""

    uri: str
    instance: str
    has_spark: bool


@contextmanager
def announced(storage: str, uri: str, instance: str, *, has_spark: bool) -> Iterator[None]:
    """Let `taut query` of this machine know the service, within the block.

    Args:
        storage: the project's storage; only a folder of this machine is written to.
        uri: where the service listens, from this machine.
        instance: as its `/healthz` names it.
        has_spark: whether the first query finds a Spark that runs.
    """
    folder = _folder_of(storage)
    if folder is None:
        yield
        return
    file = folder / f"{instance}.json"
    content = {"uri": uri, "has_spark": has_spark, "storage": str(folder.parent)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        new = file.with_suffix(".new")
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


def serving_processes(storage: str) -> list[ServingProcess]:
    """The services of the project with this storage that answer now; those with a Spark come first."""
    folder = _folder_of(storage)
    if folder is None or not folder.is_dir():
        return []
    read = (_read(file, folder) for file in sorted(folder.glob("*.json")))
    there = (process for process in read if process is not None and _is_there(process))
    return sorted(there, key=lambda process: not process.has_spark)


def _folder_of(storage: str) -> Path | None:
    return None if "://" in storage else Path(storage).resolve() / _FOLDER


def _read(file: Path, folder: Path) -> ServingProcess | None:
    try:
        content = json.loads(file.read_text())
        if content["storage"] != str(folder.parent):
            return None
        return ServingProcess(uri=content["uri"], instance=file.stem, has_spark=content["has_spark"])
    except (OSError, ValueError, LookupError, TypeError):
        # It was removed meanwhile, or is not ours.
        return None


def _is_there(process: ServingProcess) -> bool:
    try:
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        # Plain HTTP on this machine: neither certificates nor a proxy.
        answer = httpx.get(f"{process.uri}/healthz", timeout=timeout, trust_env=False, verify=False)
        return bool(answer.json().get("instance") == process.instance)
    except (httpx.HTTPError, ValueError, AttributeError):
        return False


def _remove_stale(folder: Path) -> None:
    """Remove the files of processes that were killed."""
    for file in folder.glob("*.json"):
        process = _read(file, folder)
        if process is None or not _is_there(process):
            file.unlink(missing_ok=True)
