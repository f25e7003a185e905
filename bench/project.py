"""A pipeline to measure: one job on a warm Spark, one view after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.runtime.loop.run import Run

__all__ = ["Measured", "timed_ms"]


def timed_ms(work: Callable[[], object]) -> float:
    """Wall time of a call in ms."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


class Measured:
    """A project in `folder`, and another session on its catalog.

    Views are refreshed one after the other, so that their times don't overlap.
    """

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        folder.mkdir(parents=True)
        self.pipeline = Pipeline(folder, spark, settings="[run]\nparallelism = 1\n")
        self.outside = self.pipeline.session.newSession()
        for key, value in self.pipeline.session.conf.getAll.items():
            if key.startswith("spark.sql.catalog."):
                self.outside.conf.set(key, value)

    @contextmanager
    def opened(self) -> Iterator[Callable[[], Happened]]:
        """Gives a function that refreshes all views to the newest versions and returns the events. All
        checkpoints are of one run, as with `run --continuous`."""
        with self.pipeline.opened() as (job, happened):
            run = Run(job)
            steps = chain([run.once], repeat(run.again))

            def refresh() -> Happened:
                before = len(happened)
                next(steps)()
                new = Happened(happened[before:])
                problems = [event["error"] for event in new if "error" in event]
                if problems or len(new.checkpoints) != 1:
                    raise RuntimeError("; ".join(problems) or "no checkpoint was made")
                return new

            yield refresh

    def right(self) -> None:
        """Check that every view equals its query."""
        self.pipeline.verify()

    def close(self) -> None:
        self.pipeline.close()
