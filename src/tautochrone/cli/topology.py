"""`taut lineage`, `jobs`, `pins`, `token`: from a store or from a service over HTTP, without Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.timestamps import when
from tautochrone.errors import MetaError

if TYPE_CHECKING:
    from tautochrone.metaservice.client import Service

__all__ = ["jobs", "lineage", "pins", "token"]


@contextmanager
def _service(arguments: argparse.Namespace) -> Iterator[Service]:
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import existing_store
    from tautochrone.metaservice.client import InProcess, is_http, open_service

    if arguments.meta:
        found = open_service(arguments.meta)
    else:
        settings = locate(options_of(arguments))[1]
        url = settings.meta_url
        if is_http(url):
            found = open_service(url, settings.meta_token)
        else:
            found = InProcess(existing_store(settings))
    try:
        yield found
    finally:
        found.close()


def lineage(arguments: argparse.Namespace) -> int:
    """Up and down from one table, as trees or as one object."""
    with _service(arguments) as service:
        found = service.lineage(_whole_name(service, arguments.name))
    if arguments.json:
        left_out = {"upstream", "inputs"} if arguments.down else set()
        left_out |= {"downstream", "outputs"} if arguments.up else set()
        json_line(found.model_dump(mode="json", exclude=left_out))
        return 0
    up: dict[str, list[str]] = {}
    down: dict[str, list[str]] = {}
    for edge in found.edges:
        up.setdefault(edge.dataset, []).append(edge.input)
        down.setdefault(edge.input, []).append(edge.dataset)
    sys.stdout.write(f"{found.table}\n")
    if not arguments.down:
        sys.stdout.writelines(_tree(found.table, up, "←"))
    if not arguments.up:
        sys.stdout.writelines(_tree(found.table, down, "→"))
    return 0


def token(arguments: argparse.Namespace) -> int:
    """A write token, alone on its line."""
    with _service(arguments) as service:
        found = service.token()
    if arguments.json:
        json_line({"token": found})
    else:
        sys.stdout.write(f"{found}\n")
    return 0


def _whole_name(service: Service, text: str) -> str:
    if text.count(".") >= 2:
        return text
    wanted = text.lower()
    found = [d.name for d in service.datasets() if f".{d.name.lower()}".endswith(f".{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise MetaError(
            "DATASET_AMBIGUOUS", f"{text} can mean {', '.join(found)}", hint="Give the whole name."
        )
    raise MetaError("DATASET_NOT_FOUND", f"No dataset is called {text}")


def _tree(root: str, edges: Mapping[str, list[str]], arrow: str) -> Iterator[str]:
    """Depth first; what was shown before is not followed again."""
    seen: set[str] = set()
    todo = [(name, 1) for name in reversed(edges.get(root, ()))]
    while todo:
        name, depth = todo.pop()
        again = name in seen and name in edges
        seen.add(name)
        yield f"{'  ' * depth}{arrow} {name}{' (see above)' if again else ''}\n"
        if not again:
            todo += [(further, depth + 1) for further in reversed(edges.get(name, ()))]


def jobs(arguments: argparse.Namespace) -> int:
    """Every job."""
    with _service(arguments) as service:
        found = service.jobs()
    if arguments.json:
        for job in found:
            json_line(job.model_dump(mode="json"))
        return 0
    table(
        ("job", "pipeline", "state", "alive", "fence", "newest", "target", "reads", "writes"),
        [
            (
                *(j.name, j.pipeline, str(j.state), "yes" if j.alive else "no", j.fence),
                *(j.newest_done, j.target, len(j.sources), len(j.sinks)),
            )
            for j in found
        ],
    )
    return 0


def pins(arguments: argparse.Namespace) -> int:
    """Every live pin."""
    with _service(arguments) as service:
        found = service.pins()
    if arguments.json:
        for pin in found:
            json_line(pin.model_dump(mode="json"))
        return 0
    table(
        ("pin", "checkpoint", "owner", "until", "tables"),
        [(p.id, p.checkpoint, p.owner, when(p.expires_at_ms), len(p.versions)) for p in found],
    )
    return 0
