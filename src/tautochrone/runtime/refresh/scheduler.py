"""The order of refreshes: each dataset after its inputs, independent ones in parallel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason

__all__ = ["refresh_in_order", "upstream_of"]


def refresh_in_order(
    inputs: Mapping[TableName, Collection[TableName]],
    failures: dict[TableName, Reason],
    refresh: Callable[[TableName], Reason | None],
    skip: Callable[[TableName, TableName], Reason],
    parallelism: int,
) -> None:
    """Refresh the keys of `inputs`; returns when all of them were refreshed or skipped.

    Args:
        inputs: for each dataset to refresh, what it reads, whether that is to be refreshed too or not.
        failures: tables without a version at the checkpoint, with the reason. Failed and skipped datasets
            are added.
        refresh: refreshes a dataset, in a thread of its own; answers the failure, or None.
        skip: called for a dataset and the failed input that it needs; answers its failure.
        parallelism: how many refreshes run at a time.
    """
    todo = list(inputs)
    running: dict[Future[Reason | None], TableName] = {}
    with ThreadPoolExecutor(parallelism, thread_name_prefix="refresh") as threads:
        while todo or running:
            unfinished = {*todo, *running.values()}
            for table in [table for table in todo if unfinished.isdisjoint(inputs[table])]:
                todo.remove(table)
                failed = sorted(failures.keys() & set(inputs[table]))
                if failed:
                    failures[table] = skip(table, failed[0])
                else:
                    running[threads.submit(refresh, table)] = table
            if not running:
                continue
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                table, failure = running.pop(future), future.result()
                if failure is not None:
                    failures[table] = failure


def upstream_of(table: TableName, inputs: Mapping[TableName, Collection[TableName]]) -> frozenset[TableName]:
    """All tables that a dataset depends on, directly or through the keys of `inputs`."""
    upstream = set[TableName]()
    todo = list(inputs.get(table, ()))
    while todo:
        name = todo.pop()
        if name not in upstream:
            upstream.add(name)
            todo += inputs.get(name, ())
    return frozenset(upstream)
