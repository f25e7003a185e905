"""`taut support-bundle`: everything that a bug report needs, in one zip without secrets.

The parts are independent: one that cannot be read is replaced by the reason, so a broken project gives a
bundle too. Rows of tables, definitions and the values of variables are never in it.
"""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from tautochrone.app.health import health_findings
from tautochrone.app.locate import Options, locate, settings_in_force
from tautochrone.app.stores import existing_store
from tautochrone.errors import TautochroneError
from tautochrone.meta import Store
from tautochrone.model.reason import reason_fields
from tautochrone.redaction import redacted, redacted_fields
from tautochrone.traces import logs_of, traces_in

__all__ = ["write_bundle"]

_CHECKPOINTS = 50
_REFRESHES = 20

Line = dict[str, Any]


def write_bundle(options: Options, path: Path) -> dict[str, str | None]:
    """Write the zip, replacing an older one; starts Spark (about 6 s) for the doctor's last checks.

    Returns:
        Each part, and why it is missing (None for those that are not).
    """
    parts: dict[str, Callable[[], Iterable[Line]]] = {
        "versions": _versions,
        "settings": lambda: _settings(options),
        "store": lambda: _of_store(options, _store),
        "datasets": lambda: _of_store(options, _datasets),
        "checkpoints": lambda: _of_store(options, _checkpoints),
        "refreshes": lambda: _of_store(options, _refreshes),
        "traces": lambda: _traces(options),
        "doctor": lambda: map(asdict, health_findings(options)),
    }
    missing: dict[str, str | None] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, part in parts.items():
            missing[name] = None
            try:
                lines = list(part())
            except TautochroneError as error:
                missing[name] = error.render()
                lines = [{"missing": error.render()}]
            except Exception as error:
                # A defect in one part must not cost the other parts.
                missing[name] = redacted(f"{type(error).__name__}: {error}")
                lines = [{"missing": missing[name]}]
            bundle.writestr(f"{name}.jsonl", "".join(map(_text, lines)))
    return missing


def _text(line: Line) -> str:
    """One line of JSON. Secrets that this process knows may be in texts that an older process stored: they
    are redacted as values, before JSON escapes them."""
    plain = json.loads(json.dumps(line, default=_plain))
    return json.dumps(redacted_fields(plain), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return sorted(map(str, value)) if isinstance(value, frozenset) else str(value)


def _versions() -> Iterable[Line]:
    yield {"python": sys.version, "platform": platform.platform()}
    distribution = metadata.distribution("tautochrone")
    yield {"distribution": "tautochrone", "version": distribution.version}
    for requirement in sorted(
        {_name_of(text) for text in distribution.requires or () if "extra ==" not in text}
    ):
        yield {"distribution": requirement, "version": metadata.version(requirement)}


def _name_of(requirement: str) -> str:
    name = requirement
    for sign in " ;[<>=!~(":
        name = name.partition(sign)[0]
    return name


def _settings(options: Options) -> Iterable[Line]:
    for value in settings_in_force(options):
        yield {"setting": value.key, "value": value.text, "origin": value.origin}


def _traces(options: Options) -> Iterable[Line]:
    for trace in traces_in(logs_of(locate(options)[0].storage_path)):
        yield {**asdict(trace), "text": trace.file.read_text(errors="replace")}


def _of_store(options: Options, part: Callable[[Store], Iterable[Line]]) -> list[Line]:
    with existing_store(locate(options)[1]) as store:
        return list(part(store))


def _store(store: Store) -> Iterable[Line]:
    yield {"incarnation": store.incarnation, "schema": store.schema_revision()}


def _datasets(store: Store) -> Iterable[Line]:
    inputs = {entry.name: sorted(map(str, entry.inputs)) for entry in store.datasets.registered()}
    for status in store.datasets.statuses():
        yield {
            **asdict(status),
            "dataset": str(status.dataset),
            "inputs": inputs.get(status.dataset),
            **reason_fields("reason", status.reason),
        }


def _checkpoints(store: Store) -> Iterable[Line]:
    for checkpoint in store.checkpoints.newest(_CHECKPOINTS):
        yield {
            "number": checkpoint.number,
            "state": checkpoint.state,
            "cut_at_ms": checkpoint.cut_at_ms,
            "published_at_ms": checkpoint.published_at_ms,
            "roots": {str(name): version for name, version in checkpoint.roots.items()},
            "failures": {
                str(name): str(reason)
                for name, reason in store.checkpoints.failures_at(checkpoint.number).items()
            },
        }


def _refreshes(store: Store) -> Iterable[Line]:
    for status in store.datasets.statuses():
        for record in store.history.refreshes(status.dataset, _REFRESHES):
            line = {
                **asdict(record),
                "dataset": str(record.dataset),
                **reason_fields("error", record.failure),
            }
            if record.refresh is not None:
                line["refresh"] |= reason_fields("reason", record.refresh.reason)
                for node, shown in zip(record.refresh.nodes, line["refresh"]["nodes"], strict=True):
                    shown |= reason_fields("reason", node.reason)
            yield line
