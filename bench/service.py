"""The MetaService over HTTP, in a process of its own: look-ups of versions, and the topology.

100 tables of 20 jobs in four layers, 15 checkpoints of history. One client, one request after another.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.api.reads import resolve_versions
from tautochrone.metaservice.client import Client
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified

__all__ = ["measure"]

_JOBS, _TABLES_OF_A_JOB, _LAYERS = 20, 5, 4
_CHECKPOINTS = 15
_FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("bench"), duration_ms=10)


def measure(folder: Path, requests: int = 300) -> dict[str, Any]:
    """Milliseconds by kind of request: median, 99th percentile, slowest, and this process's processor time,
    which is all of an answer in process and the client's part over HTTP. Load disturbs it less."""
    path = folder / "service.db"
    for old in folder.glob("service.db*"):
        old.unlink()
    with MetaStore.open(f"sqlite:///{path}") as store:
        names = _fill(store)
        tables = [TableName.parse(name) for name in names]
        in_process = {
            "versions_of_all": _timed(lambda: resolve_versions(store, "strong", tables, None), requests),
            "versions_of_three": _timed(
                lambda: resolve_versions(store, "strong", tables[:3], None), requests
            ),
        }
    with _serving(path, folder) as uri, Client(uri) as client:
        return {
            "tables": len(names),
            "in_process": in_process,
            "versions_of_all": _timed(lambda: client.versions(names), requests),
            "versions_of_three": _timed(lambda: client.versions(names[:3]), requests),
            "weak": _timed(lambda: client.versions(names, "weak"), requests),
            "topology": _timed(client.jobs, requests // 6),
            "lineage": _timed(lambda: client.lineage(names[0]), requests // 6),
            "datasets": _timed(client.datasets, requests // 6),
        }


def _name(job: int, table: int) -> TableName:
    return TableName("lake", ("db",), f"t{job:02}_{table}")


def _fill(store: Store) -> list[str]:
    """Jobs of the first layer ingest; each table of the others reads one of every job in the layer above."""
    width = _JOBS // _LAYERS
    fences = {}
    for job in range(_JOBS):
        above = range((job // width - 1) * width, job // width * width) if job >= width else ()
        entries = [
            DatasetEntry(
                _name(job, table),
                "materialized view" if above else "streaming table",
                "x",
                frozenset(_name(upstream_job, table) for upstream_job in above),
                is_root=not above,
            )
            for table in range(_TABLES_OF_A_JOB)
        ]
        store.jobs.start_run("bench", f"job{job:02}", entries)
        fences[job] = store.jobs.take_over(f"job{job:02}")
    for n in range(_CHECKPOINTS):
        # The first table of each job has a new version, and with it a part of every layer.
        cuts = {
            job: {
                _name(job, table): Version(f"{0 if table else n}-{job}-{table}")
                for table in range(_TABLES_OF_A_JOB)
            }
            for job in range(width)
        }
        for job, versions in cuts.items():
            store.roots.report(f"job{job:02}", fences[job], versions)
        number = store.checkpoints.open("job00", fences[0], NewCheckpoint(cuts[0], n * 1_000)).number
        for job in range(_JOBS):
            target = store.checkpoints.begin_next(f"job{job:02}", fences[job])
            if target is None:
                continue
            for table in range(_TABLES_OF_A_JOB):
                if job >= width:
                    version = Version(f"{0 if table else n}-{job}-{table}")
                    store.checkpoints.record_version(
                        f"job{job:02}", fences[job], number, _name(job, table), version, _FULL
                    )
            store.checkpoints.publish(f"job{job:02}", fences[job], number, n * 1_000 + 500)
    return [str(_name(job, table)) for job in range(_JOBS) for table in range(_TABLES_OF_A_JOB)]


@contextmanager
def _serving(store: Path, folder: Path) -> Iterator[str]:
    log = folder / "service.log"
    command = [sys.executable, "-m", "tautochrone.cli.main", "serve", "--port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--meta", f"sqlite:///{store}"], stderr=stderr, env=dict(os.environ)
        )
    try:
        while (match := re.search(r"serving at (\S+)", log.read_text())) is None:
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        yield match[1]
    finally:
        process.terminate()
        process.wait(20)


def _timed(ask: Callable[[], object], requests: int) -> dict[str, float]:
    for _ in range(20):
        ask()
    times_ms, processor_ms = [], time.process_time()
    for _ in range(requests):
        started = time.perf_counter()
        ask()
        times_ms.append((time.perf_counter() - started) * 1_000)
    processor_ms = (time.process_time() - processor_ms) * 1_000 / requests
    times_ms.sort()
    return {
        "median": round(statistics.median(times_ms), 2),
        "p99": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "slowest": round(times_ms[-1], 2),
        "processor": round(processor_ms, 2),
    }
