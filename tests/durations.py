"""What each test costs: a line for each in `.work/durations.tsv` while the tests run, summed up by a command.

python -m tests.durations            # seconds and CPU seconds of each file
python -m tests.durations --depth 1  # of each folder
python -m tests.durations --keep     # also into tests/durations.tsv, by which files are distributed
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

LAST_RUN = Path(".work/durations.tsv")
"""Of the run of tests that began last: test, seconds, CPU seconds, worker."""

BRIEF_S = 0.1
"""A test that is shorter counts with its own process alone: to look for children takes some milliseconds."""

KEPT = Path(__file__).with_suffix(".tsv")
"""The seconds of each file in a whole run, by which the next one distributes files."""


@dataclass(frozen=True)
class Cost:
    """Of a test with its fixtures: seconds, and CPU seconds of its process and those it started."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


class Recorder:
    """In each process that runs tests: attaches the cost of a test to the report of its teardown."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu: dict[int, float] = {}
        self._children: set[int] = set()
        self._own = time.process_time()
        self._brief = 0.0

    def pytest_collection_finish(self) -> None:
        self._cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[STARTED] = time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            seconds = time.monotonic() - item.stash[STARTED]
            cpu_seconds = self._brief_cpu_seconds() if seconds < BRIEF_S else self._cpu_seconds()
            report.user_properties.append(("cost", (seconds, cpu_seconds)))
        return report

    def _brief_cpu_seconds(self) -> float:
        """CPU seconds of this process alone since the last call of this or the other method."""
        own = time.process_time()
        used, self._own = own - self._own, own
        self._brief += used
        return used

    def _cpu_seconds(self) -> float:
        """CPU seconds since the last call, of this process and its children. A child that ended between two
        calls counts by what this process knows of it, and the children of a child not after its end."""
        cpu: dict[int, float] = {}
        children: set[int] = set()
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                times, parent = process.cpu_times(), process.ppid()
            except psutil.Error:
                continue
            cpu[process.pid] = times.user + times.system
            if process.pid == self._process.pid:
                cpu[process.pid] += times.children_user + times.children_system
            elif parent == self._process.pid:
                children.add(process.pid)
        used = sum(seconds - self._cpu.get(pid, 0.0) for pid, seconds in cpu.items())
        # What this process knows of an ended child includes what was counted while the child ran.
        ended = sum(self._cpu[pid] for pid in self._children if pid not in cpu)
        used -= ended + self._brief
        self._cpu, self._children = cpu, children
        self._own, self._brief = time.process_time(), 0.0
        return max(used, 0.0)


STARTED = pytest.StashKey[float]()


class Writer:
    """In the process that collects the reports: a line for each test as it ends."""

    def __init__(self, root: Path) -> None:
        self._path = root / LAST_RUN
        self._mode = "w"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = dict(report.user_properties).get("cost")
        if cost is not None:
            worker = getattr(report, "worker_id", "main")
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open(self._mode) as lines:
                lines.write(f"{report.nodeid}\t{cost[0]:.3f}\t{cost[1]:.3f}\t{worker}\n")
            # Collecting alone leaves the costs of the last run.
            self._mode = "a"


def costs(path: Path, depth: int | None = None) -> dict[str, Cost]:
    """The cost of each file, or of each folder `depth` levels below `tests`, by its path.

    Example: `costs(LAST_RUN, 1)["tests/sql"].seconds`.
    """
    sums: dict[str, Cost] = defaultdict(Cost)
    for line in path.read_text().splitlines():
        test, seconds, cpu_seconds, _worker = line.rsplit("\t", 3)
        file = test.split("::")[0]
        name = file if depth is None else "/".join(file.split("/")[: depth + 1])
        sums[name] += Cost(float(seconds), float(cpu_seconds))
    return dict(sums)


def kept_seconds() -> dict[str, float]:
    """Seconds of each file in the last kept run that had it, by its path."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {file: float(seconds) for file, seconds in (line.split("\t") for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, help="folders below tests to sum up by; files without it")
    parser.add_argument("--keep", action="store_true", help=f"write the seconds of files into {KEPT.name}")
    arguments = parser.parse_args()
    sums = costs(LAST_RUN, arguments.depth)
    for name, cost in sorted(sums.items(), key=lambda item: -item[1].seconds):
        print(f"{cost.seconds:8.1f} s  {cost.cpu_seconds:8.1f} CPU s  {name}")
    total = sum(sums.values(), Cost())
    print(f"{total.seconds:8.1f} s  {total.cpu_seconds:8.1f} CPU s  all")
    if arguments.keep:
        # A run of some files says nothing about the others.
        seconds = kept_seconds() | {file: cost.seconds for file, cost in costs(LAST_RUN).items()}
        files = sorted(file for file in seconds if Path(file).exists())
        KEPT.write_text("".join(f"{file}\t{seconds[file]:.1f}\n" for file in files))


if __name__ == "__main__":
    main()
