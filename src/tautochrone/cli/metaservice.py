"""`taut lineage`, `jobs`, `pins`, `token` and `transactions`: from a store or from a service over HTTP,
without Spark."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, json_line, show, table
from tautochrone.cli.status import show_last_words
from tautochrone.errors import MetaError
from tautochrone.model.moments import iso_timestamp
from tautochrone.model.near_names import matching_tables, near_names_hint, table_spellings
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, TransactionOperation

if TYPE_CHECKING:
    from tautochrone.meta import Store
    from tautochrone.metaservice.api.alarms import AlarmEntry
    from tautochrone.metaservice.client import Service

__all__ = ["alarms", "jobs", "lineage", "pins", "token", "transactions"]


@contextmanager
def _service(arguments: argparse.Namespace) -> Iterator[Service]:
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import existing_store
    from tautochrone.app.unchanged import since_last_run
    from tautochrone.metaservice.client import LocalService, is_http, open_service

    if arguments.meta:
        service = open_service(arguments.meta)
    else:
        settings = locate(options_of(arguments))[1]
        url = settings.meta_url
        if is_http(url):
            service = open_service(url, settings.meta_token)
        else:
            service = LocalService(existing_store(settings), partial(since_last_run, settings))
    try:
        yield service
    finally:
        service.close()


def lineage(arguments: argparse.Namespace) -> int:
    """Up and down from one table, as trees or as one object."""
    with _service(arguments) as service:
        lineage_of_table = service.lineage(_full_name(service, arguments.name))
    if arguments.json:
        left_out = {"upstream", "inputs"} if arguments.down else set()
        left_out |= {"downstream", "outputs"} if arguments.up else set()
        json_line(lineage_of_table.model_dump(mode="json", exclude=left_out))
        return 0
    up: dict[str, list[str]] = {}
    down: dict[str, list[str]] = {}
    for edge in lineage_of_table.edges:
        up.setdefault(edge.dataset, []).append(edge.input)
        down.setdefault(edge.input, []).append(edge.dataset)
    answer().write(f"{lineage_of_table.table}\n")
    if not arguments.down:
        answer().writelines(_tree(lineage_of_table.table, up, "←"))
    if not arguments.up:
        answer().writelines(_tree(lineage_of_table.table, down, "→"))
    return 0


def token(arguments: argparse.Namespace) -> int:
    """Print a write token."""
    with _service(arguments) as service:
        write_token = service.write_token()
    if arguments.json:
        json_line({"token": write_token})
    else:
        answer().write(f"{write_token}\n")
    return 0


def _full_name(service: Service, text: str) -> str:
    known = [dataset.name for dataset in service.datasets()]
    matches = matching_tables(text, known)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise MetaError(
            "DATASET_AMBIGUOUS", f"{text} can mean {', '.join(matches)}", hint="Give the whole name."
        )
    if text.count(".") >= 2:
        # A table that no job writes has a lineage too.
        return text
    raise MetaError(
        "DATASET_NOT_FOUND",
        f"No dataset is called {text}",
        hint=near_names_hint(
            text, known, "there are", "`taut run` registers datasets", spellings=table_spellings
        ),
    )


def _tree(root: str, edges: Mapping[str, list[str]], arrow: str) -> Iterator[str]:
    """Depth first; a table that was shown before is not followed again."""
    seen: set[str] = set()
    stack = [(name, 1) for name in reversed(edges.get(root, ()))]
    while stack:
        name, depth = stack.pop()
        repeated = name in seen and name in edges
        seen.add(name)
        yield f"{'  ' * depth}{arrow} {name}{' (see above)' if repeated else ''}\n"
        if not repeated:
            stack += [(neighbour, depth + 1) for neighbour in reversed(edges.get(name, ()))]


def jobs(arguments: argparse.Namespace) -> int:
    """Every job."""
    with _service(arguments) as service:
        all_jobs = service.jobs()
    if arguments.json:
        for job in all_jobs:
            json_line(job.model_dump(mode="json"))
        return 0
    table(
        ("job", "pipeline", "state", "last seen", "fence", "newest", "target", "reads", "writes"),
        [
            (
                *(j.name, j.pipeline, str(j.liveness), iso_timestamp(j.heartbeat_ms), j.fence),
                *(j.newest_done, j.target, len(j.sources), len(j.sinks)),
            )
            for j in all_jobs
        ],
        empty="no job is registered",
    )
    for job in all_jobs:
        if job.last_words is not None:
            answer().write(f"\njob {job.name}: {job.last_words.process}\n")
            words = job.last_words
            show_last_words(words.error, words.hint, words.lines, words.command)
    return 0


def alarms(arguments: argparse.Namespace) -> int:
    """The open alarms; or somebody looks after one. Exit status 1: there is one that nobody looks after."""
    if arguments.test:
        return _test_targets(arguments)
    with _service(arguments) as service:
        if arguments.acknowledge is not None:
            service.acknowledge(arguments.acknowledge, arguments.by or getpass.getuser())
        entries = service.alarms(arguments.limit if arguments.resolved else 0)
    if arguments.json:
        for entry in entries:
            json_line(entry.model_dump(mode="json"))
    elif not entries:
        answer().write("no alarms\n")
    else:
        _show_alarms(entries)
    waiting = [entry for entry in entries if entry.resolved_at_ms is None and entry.acknowledged_by is None]
    return 1 if waiting else 0


def _show_alarms(entries: Sequence[AlarmEntry]) -> None:
    table(
        ("id", "level", "rule", "subject", "since", "acknowledged", "over"),
        [
            (
                *(entry.id, str(entry.level), str(entry.rule), entry.subject, iso_timestamp(entry.since_ms)),
                *(entry.acknowledged_by or "", iso_timestamp(entry.resolved_at_ms) or ""),
            )
            for entry in entries
        ],
    )
    for entry in entries:
        if entry.resolved_at_ms is not None:
            continue
        answer().write(f"\n{entry.rule} {entry.subject}: {entry.reason}\n  what to do: {entry.command}\n")
        for target, sent in entry.notified.items():
            if sent.error is not None:
                answer().write(f"  not sent to {target}, {sent.failures} tries: {sent.error}\n")


def _test_targets(arguments: argparse.Namespace) -> int:
    """Send each target of the project's settings a test."""
    from tautochrone.app.alarms import send_test
    from tautochrone.app.locate import locate

    targets = locate(options_of(arguments))[1].alarm_targets
    results = {target.name: send_test(target) for target in targets}
    lines = [{"target": name, "sent": error is None, "error": error} for name, error in results.items()]
    show(lines, ("target", "sent", "error"), as_json=arguments.json, empty="no target is configured")
    return 1 if not results or any(results.values()) else 0


def pins(arguments: argparse.Namespace) -> int:
    """Every live pin."""
    with _service(arguments) as service:
        live_pins = service.pins()
    if arguments.json:
        for pin in live_pins:
            json_line(pin.model_dump(mode="json"))
        return 0
    table(
        ("pin", "checkpoint", "owner", "until", "tables"),
        [(p.id, p.checkpoint, p.owner, iso_timestamp(p.expires_at_ms), len(p.versions)) for p in live_pins],
        empty="no checkpoint is pinned",
    )
    return 0


def transactions(arguments: argparse.Namespace) -> int:
    """List, show or settle transactions."""
    with _store(arguments) as store:
        if arguments.action == "list":
            state = None if arguments.state is None else TransactionState(arguments.state)
            records = store.transactions.find(
                arguments.owner, state, attention=arguments.attention, limit=arguments.limit
            )
        else:
            if arguments.action != "show":
                store.transactions.settle(arguments.id, TransactionOperation(arguments.action))
            record = store.transactions.get(arguments.id)
            if record is None:
                raise MetaError(
                    "TRANSACTION_NOT_FOUND", f"No transaction has the id {arguments.id}", sqlstate="25000"
                )
            records = (record,)
        lines = [_transaction_line(record) for record in records]
        if arguments.action == "show":
            lines[0]["chunks"] = [asdict(chunk) for chunk in store.transactions.chunks(arguments.id)]
    columns = ("id", "state", "owner", "participant", "failures", "needs_attention", "changed_at", "error")
    show(lines, columns, as_json=arguments.json, empty="no transaction")
    if arguments.action == "show" and not arguments.json:
        chunks = [list(chunk.values()) for chunk in lines[0]["chunks"]]  # type: ignore[attr-defined]
        table(("chunk", "table", "rows", "hash", "partition", "server"), chunks)
    return 0


def _store(arguments: argparse.Namespace) -> Store:
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import existing_store, is_service, open_store
    from tautochrone.meta import MetaStore

    if arguments.meta:
        is_database = not is_service(arguments.meta)
        return MetaStore.open(arguments.meta, migrate=False) if is_database else open_store(arguments.meta)
    return existing_store(locate(options_of(arguments))[1])


def _transaction_line(record: CoordinatedTransaction) -> dict[str, object]:
    return {**asdict(record), "state": str(record.state), "changed_at": iso_timestamp(record.changed_at_ms)}
