"""What observers ask the store: what is new since they last looked, and how long data took. Writes nothing.

Delays are taken from three times that the store keeps: when a cut was taken, when a dataset had its version
for it, and how long its refresh ran. It must never know who observes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import func, select

from tautochrone.meta import tables as t
from tautochrone.meta.history import as_record
from tautochrone.meta.repository import Repository, parse
from tautochrone.meta.topology import made_from
from tautochrone.model.checkpoint import CheckpointState, RefreshRecord
from tautochrone.model.clock import is_clock
from tautochrone.model.names import CheckpointNumber, TableName

__all__ = ["Delay", "EdgeDelay", "Watch"]

_R, _C, _D = t.refreshes.c, t.checkpoints.c, t.datasets.c


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDelay:
    """From the moment when `input` was ready at the checkpoint until the dataset was, in milliseconds.

    An input that was refreshed for the checkpoint is ready when that ended; every other one (a root, or
    a table that did not change) at the cut.
    """

    input: TableName
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """How long the newest refresh of a dataset that changed something let its readers wait.

    `end_to_end_ms` counts from the cut of `checkpoint` until the dataset had its version for it,
    `refresh_ms` is the part in which it was computed. How long rows waited in the source before the
    cut is not in it: the store does not know.
    """

    dataset: TableName
    checkpoint: CheckpointNumber
    end_to_end_ms: int
    refresh_ms: int
    edges: tuple[EdgeDelay, ...]


class Watch(Repository):
    """The observers' side of the store."""

    def newest_refresh(self) -> int:
        """The id of the newest row of the history; 0 for none."""
        with self._read() as connection:
            return connection.execute(select(func.max(_R.id))).scalar() or 0

    def refreshes_after(self, last: int, limit: int) -> tuple[tuple[int, RefreshRecord], ...]:
        """The next rows of the history after the one with id `last`, oldest first, with their ids."""
        query = select(t.refreshes).where(_R.id > last).order_by(_R.id).limit(limit)
        with self._read() as connection:
            return tuple((row.id, as_record(row)) for row in connection.execute(query))

    def checkpoint_states(
        self, above: int, besides: Iterable[int] = ()
    ) -> tuple[tuple[CheckpointNumber, CheckpointState], ...]:
        """The states of all checkpoints above a number, and of some others, by number."""
        query = select(_C.number, _C.state).where((_C.number > above) | _C.number.in_(list(besides)))
        with self._read() as connection:
            rows = connection.execute(query.order_by(_C.number))
            return tuple((CheckpointNumber(row.number), CheckpointState(row.state)) for row in rows)

    def delays(self) -> tuple[Delay, ...]:
        """The newest known delay of every dataset that was ever refreshed and is not retired, by name."""
        with self._read() as connection:
            inputs = made_from(connection)
            alive = select(_D.name).where(_D.retired.is_(False))
            done = _R.version.is_not(None)
            newest = select(func.max(_R.id)).where(done, _R.dataset.in_(alive)).group_by(_R.dataset)
            rows = connection.execute(
                select(_R.dataset, _R.checkpoint, _R.duration_ms, _R.finished_at_ms, _C.cut_at_ms)
                .join(t.checkpoints, _C.number == _R.checkpoint)
                .where(_R.id.in_(newest))
                .order_by(_R.dataset)
            ).all()
            numbers = {row.checkpoint for row in rows}
            ready = {
                (row.dataset, row.checkpoint): row.finished_at_ms
                for row in connection.execute(
                    select(_R.dataset, _R.checkpoint, _R.finished_at_ms)
                    .where(_R.checkpoint.in_(numbers), done)
                    .order_by(_R.id)
                )
            }
        return tuple(
            Delay(
                dataset=parse(row.dataset),
                checkpoint=CheckpointNumber(row.checkpoint),
                end_to_end_ms=max(0, row.finished_at_ms - row.cut_at_ms),
                refresh_ms=row.duration_ms,
                edges=tuple(
                    EdgeDelay(
                        input=parse(source),
                        delay_ms=max(
                            0, row.finished_at_ms - ready.get((source, row.checkpoint), row.cut_at_ms)
                        ),
                    )
                    for source in sorted(inputs.get(row.dataset, ()))
                    if not is_clock(parse(source))
                ),
            )
            for row in rows
        )
