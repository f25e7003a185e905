"""The newest refreshes of each dataset, by which the next mode is chosen. The store is asked once per run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tautochrone.model.checkpoint import Refresh, RefreshMode, RefreshRecord
from tautochrone.model.names import TableName

__all__ = ["KEPT", "RefreshHistory"]

KEPT = 100
"""So many refreshes of a dataset are looked at, failed ones included."""


class RefreshHistory:
    """The refreshes of a job's datasets: what the store has, and those of this run.

    Nobody else records refreshes of these datasets while the run owns the job.

    Args:
        stored: the newest refreshes of a dataset in the store, newest first, at most the given number.
    """

    def __init__(self, stored: Callable[[TableName, int], Sequence[RefreshRecord]]) -> None:
        self._stored = stored
        self._refreshes: dict[TableName, deque[Refresh]] = {}

    def newest(self, dataset: TableName) -> Sequence[Refresh]:
        """The newest refreshes of a dataset that did not fail, newest first."""
        if dataset not in self._refreshes:
            records = self._stored(dataset, KEPT)
            self._refreshes[dataset] = deque(
                (record.refresh for record in records if record.refresh and not record.error), maxlen=KEPT
            )
        return tuple(self._refreshes[dataset])

    def add(self, dataset: TableName, refresh: Refresh) -> None:
        """Take in a refresh that this run recorded. As in the store, one that changed nothing is left out."""
        if dataset in self._refreshes and refresh.mode is not RefreshMode.NO_DATA:
            self._refreshes[dataset].appendleft(refresh)
