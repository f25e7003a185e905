"""`taut transactions`: what programs left, and the commands that settle it. Without Spark."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from tautochrone.app.locate import locate
from tautochrone.app.stores import existing_store, open_store
from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.timestamps import iso_timestamp
from tautochrone.errors import MetaError
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, TransactionOperation

if TYPE_CHECKING:
    from tautochrone.meta import Store

__all__ = ["transactions"]

_COLUMNS = ("id", "state", "owner", "participant", "failures", "needs_attention", "changed_at", "error")


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
        lines = [_line(record) for record in records]
        if arguments.action == "show":
            lines[0]["chunks"] = [asdict(chunk) for chunk in store.transactions.chunks(arguments.id)]
    if arguments.json:
        for line in lines:
            json_line(line)
    else:
        table(_COLUMNS, [[line[column] for column in _COLUMNS] for line in lines])
        if arguments.action == "show":
            chunks = [list(chunk.values()) for chunk in lines[0]["chunks"]]  # type: ignore[attr-defined]
            table(("chunk", "table", "rows", "hash", "partition", "server"), chunks)
    return 0


def _store(arguments: argparse.Namespace) -> Store:
    if arguments.meta:
        return open_store(arguments.meta)
    return existing_store(locate(options_of(arguments))[1])


def _line(record: CoordinatedTransaction) -> dict[str, object]:
    return {**asdict(record), "state": str(record.state), "changed_at": iso_timestamp(record.changed_at_ms)}
