"""`taut run` as a process of its own: the first run of the sample project, one new row, and no news, at last
with all tables published as Delta."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

__all__ = ["measure"]

_TAUT = [sys.executable, "-m", "tautochrone.cli.main"]
_POLL_S = 0.05


def measure(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """Seconds, and CPU seconds of Python and Java together.

    Args:
        folder: of the project.
        rounds: runs with one new row, each followed by one without news.
    """
    work = folder / "one-shot"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subprocess.run([*_TAUT, "init", "--name", "sample"], cwd=work, check=True, capture_output=True)
    project = work / "sample"
    first, one_row, no_news = _run(project), [], []
    for number in range(rounds):
        row = f'{{"id": {100 + number}, "product": "tea", "price": 3.50}}\n'
        (project / "orders" / f"more-{number}.json").write_text(row)
        one_row.append(_run(project))
        no_news.append(_run(project))
    with (project / "tautochrone.toml").open("a") as settings:
        settings.write('[lake]\npublish = ["delta"]\n')
    _run(project)
    return {
        "first": first,
        "one_row": _median(one_row),
        "no_news": _median(no_news),
        "no_news_published": _median([_run(project) for _ in range(rounds)]),
    }


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in ("wall_s", "cpu_s")}


def _run(project: Path) -> dict[str, float]:
    started = time.perf_counter()
    with subprocess.Popen(
        [*_TAUT, "run"], cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        spent: dict[int, float] = {}
        while process.poll() is None:
            spent |= _cpu_of(process.pid)
            time.sleep(_POLL_S)
    if process.returncode:
        raise RuntimeError(f"taut run ended with {process.returncode}")
    return {"wall_s": time.perf_counter() - started, "cpu_s": sum(spent.values())}


def _cpu_of(pid: int) -> dict[int, float]:
    """CPU seconds so far of a process and of those below it, by id; none of them once it is over."""
    try:
        process = psutil.Process(pid)
        times = {each.pid: each.cpu_times() for each in (process, *process.children(recursive=True))}
    except psutil.NoSuchProcess:
        return {}
    return {each: spent.user + spent.system for each, spent in times.items()}
