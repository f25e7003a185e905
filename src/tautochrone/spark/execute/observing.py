"""Numbers that Spark counts while it reads rows for something else."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Observation

__all__ = ["observed_counts"]

_WAITS = 100


def observed_counts(observation: Observation, width: int, *, was_read: bool) -> Sequence[int] | None:
    """So many counts of an observation, which Spark says a moment after its rows were read; None where it
    does not.

    Without `was_read` it may be that Spark knew of no rows and read nothing.
    """
    for _ in range(_WAITS if was_read else 1):
        # It waits for 0.1 s itself. `getOrEmpty` fails on a row that is not there yet.
        row = observation._jo.getRowOrEmpty()  # type: ignore[union-attr]  # noqa: SLF001
        if row.isDefined():
            counts = row.get()
            return (
                [int(counts.getLong(number)) for number in range(width)] if counts.length() == width else None
            )
    return None
