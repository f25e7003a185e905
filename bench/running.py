"""A pipeline in `run --continuous`, beside which things are measured."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tautochrone.runtime.loop.run import Run
from tautochrone.testing.harness import Happened, Pipeline

__all__ = ["catalog_commits", "continuous", "root", "wait_until"]

_LIMIT_S = 300.0
_ROOT = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table
def events():
    return SparkSession.active().readStream.schema({schema!r}).json(str(INPUT))
"""
_NUMBER = re.compile(r"/(\d+)-[^/]*\.metadata\.json$")


def root(schema: str) -> str:
    """Definitions of the streaming table `events`, whose rows come as JSON files into `input`."""
    return _ROOT.format(schema=schema)


@contextmanager
def continuous(pipeline: Pipeline, interval_ms: int) -> Iterator[Happened]:
    """Runs until the context ends; gives what happens while it happens."""
    with pipeline.opened() as (job, happened):
        execution = Run(job)
        thread = threading.Thread(target=execution.continuously, args=(interval_ms,))
        thread.start()
        try:
            yield happened
        finally:
            execution.stop()
            thread.join()
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(told["error"] for told in happened if "error" in told))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """To a millisecond.

    Raises:
        TimeoutError: it does not come true.
    """
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_LIMIT_S:g} s for {what}")
        time.sleep(0.001)


def catalog_commits(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, int]:
    """By table how many commits lie between two answers of `Pipeline.pointers`, whoever made them.

    A table's metadata files are numbered: each commit of any kind writes the next.
    """
    return {name: _number(place) - _number(before[name]) for name, place in after.items() if name in before}


def _number(place: str) -> int:
    found = _NUMBER.search(place)
    if found is None:
        raise ValueError(f"{place} has no number")
    return int(found[1])
