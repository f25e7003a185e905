"""The flights of 2013 through a running pipeline: `make demo`.

A replay writes files, `taut run --continuous` reads them into tables, and meanwhile this process
runs one query over five tables at one checkpoint. When the run has read everything, every view is compared
with its recomputation. Then the run is stopped, a chart is drawn by ClickHouse's SQL from a mirror at the
same checkpoint, and readers of Delta and Hudi read one of the tables at it. Exit code 0 means success.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from examples.flights.checks import TIE_OUT, tie_out
from examples.flights.child import Run, verify
from examples.flights.clickhouse import BY_HOUR, chart, url_of
from examples.flights.foreign_readers import DEPARTURES, published
from examples.flights.replay import write_reference

import tautochrone
from tautochrone.app.remote import RemoteReader
from tautochrone.errors import MetaError, QueryError
from tautochrone.model.query import Query, QueryAnswer

__all__ = ["Demo", "arguments_of", "main"]

PROJECT = Path(__file__).resolve().parent
WORK = PROJECT.parents[1] / ".work" / "demo"
VIEWS = 7
SECONDS_PER_DAY = 86_400
ASK_EVERY_SECONDS = 5
ANSWER_WITHIN_MS = 60_000
FIRST_CHECKPOINT_SECONDS = 300
"""Long enough for a loaded machine; a run that ends is noticed at once."""
WORST = "SELECT origin, dest, arrived, mean_arrival_delay FROM worst_routes WHERE place = 1"


@dataclass(frozen=True, slots=True)
class LastAnswers:
    """What the lake has at the checkpoint that shows everything: rows of `BY_HOUR` and of `DEPARTURES`."""

    checkpoint: int
    by_hour: list[tuple[Any, ...]]
    departures: Counter[tuple[Any, ...]]


@dataclass
class Demo:
    """One demonstration in its work folder, and what went wrong in it."""

    work: Path
    days: int
    seconds: int
    kill: bool
    problems: list[str] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def spec(self) -> Path:
        return self.work / "project" / "spark-pipeline.yml"

    @property
    def log(self) -> Path:
        return self.work / "taut.log"

    @property
    def input(self) -> Path:
        return self.work / "input"

    @property
    def clickhouse(self) -> Path:
        return self.work / "clickhouse"

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {line}", flush=True)

    def problem(self, line: str) -> None:
        self.problems.append(line)
        self.say(f"PROBLEM     {line}")

    def prepare(self) -> None:
        """Create a new work folder with a copy of the project and its storage."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(
            PROJECT / "transformations",
            self.spec.parent / "transformations",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        mirrored = PROJECT / "to_clickhouse"
        shutil.copy(mirrored / "departures.sql", self.spec.parent / "transformations")
        shutil.copy(mirrored / "tautochrone.toml", self.spec.parent)
        spec = yaml.safe_load((PROJECT / "spark-pipeline.yml").read_text())
        spec["storage"] = (self.work / "storage").as_uri()
        self.spec.write_text(yaml.safe_dump(spec, sort_keys=False))
        # Streams need their folders before the first file.
        write_reference(self.input)
        os.environ["FLIGHTS_INPUT"] = str(self.input)
        os.environ["FLIGHTS_CLICKHOUSE"] = url_of(self.clickhouse)

    def sent(self) -> int:
        """How many reports the replay sent, once it is over."""
        return sum(_lines(file) for file in (self.input / "events").glob("*.json"))

    def start_replay(self) -> subprocess.Popen[bytes]:
        speed = self.days * SECONDS_PER_DAY / self.seconds
        command = [sys.executable, "-m", "examples.flights.replay", "--into", str(self.input)]
        command += ["--days", str(self.days), "--speed", str(speed)]
        self.say(f"replay      {self.days} days of 2013 in {self.seconds} s")
        return subprocess.Popen(command, cwd=PROJECT.parents[1], stdout=subprocess.DEVNULL)

    def start_run(self, *more: str) -> Run:
        return Run(["--spec", str(self.spec), *more], self.log, self.say)

    def ask_the_run(self, checkpoint: int | None) -> None:
        """Ask the process that runs, whose Spark answers: no other one starts."""
        try:
            with tautochrone.connect(self.spec, own_spark=False) as reader:
                self.check(reader.sql(TIE_OUT, checkpoint=checkpoint).to_pylist(), checkpoint)
        except (MetaError, QueryError) as error:
            # It was killed, it has expired the checkpoint meanwhile, or it is too busy for this question.
            self.say(f"query       {error.error_class}")

    def ask_for_everything(self, run: Run) -> LastAnswers | None:
        """Wait until a checkpoint of the run shows all that was sent, and ask for what is compared at it.

        Returns:
            None: the run ended before.
        """
        while run.alive:
            try:
                with tautochrone.connect(self.spec, own_spark=False) as reader:
                    query = Query(sql=TIE_OUT, after=reader.write_token(), wait_ms=ANSWER_WITHIN_MS)
                    return self.last_answers(reader, reader.arrow(query))
            except (MetaError, QueryError) as error:
                self.say(f"query       {error.error_class}")
                if not (error.retryable or error.error_class == "QUERY_TIMED_OUT"):
                    self.problem(str(error))
                    return None
                time.sleep(ASK_EVERY_SECONDS)
        return None

    def last_answers(self, reader: RemoteReader, totals: QueryAnswer) -> LastAnswers:
        """What the run answers at the checkpoint that shows everything."""
        number, sent = totals.checkpoint, self.sent()
        reports_read = self.check(totals.rows.to_pylist(), number)
        if reports_read != sent:
            self.problem(f"{sent:,} reports were sent, {reports_read:,} are in the tables")
        self.ask_more(reader)
        for row in reader.sql(WORST, checkpoint=number).to_pylist():
            self.say(
                f"worst route {row['origin']} to {row['dest']}: "
                f"{row['mean_arrival_delay']} minutes over {row['arrived']} flights"
            )
        by_hour, departures = (
            [tuple(row.values()) for row in reader.sql(query, checkpoint=number).to_pylist()]
            for query in (BY_HOUR, DEPARTURES)
        )
        return LastAnswers(number or 0, by_hour, Counter(departures))

    def check(self, rows: Sequence[Mapping[str, Any]], checkpoint: int | None) -> int:
        """Whether five tables agree at one checkpoint; returns the number of reports there."""
        answer = tie_out(rows)
        self.checks += 1
        self.say(f"query       checkpoint {checkpoint}: {answer}")
        if not answer.holds:
            self.problem(f"checkpoint {checkpoint} does not tie out")
        return answer.reports

    def live(self, replay: subprocess.Popen[bytes]) -> LastAnswers | None:
        """Run, query and (with `kill`) kill, until the replay is over; then ask the last questions, compare,
        and stop the run."""
        run = self.start_run("--continuous", "--interval", "5s")
        try:
            if not self.first_checkpoint(run):
                return None
            while run.alive and replay.poll() is None:
                self.ask_the_run(run.checkpoint)
                if self.kill and time.monotonic() - self.started > self.seconds / 2:
                    run = self.restart(run)
                time.sleep(ASK_EVERY_SECONDS)
            answers = self.ask_for_everything(run)
            if run.alive:
                self.verify()
            if not run.alive:
                self.problem(f"the run ended by itself: {run.state or 'no state'}, see {self.log}")
            code = run.stop()
            if code != 0:
                self.problem(f"the run ended with exit code {code}, see {self.log}")
            return answers
        finally:
            run.kill()
            self.count(run)

    def first_checkpoint(self, run: Run) -> bool:
        deadline = time.monotonic() + FIRST_CHECKPOINT_SECONDS
        while run.checkpoint is None and run.alive and time.monotonic() < deadline:
            time.sleep(0.2)
        if run.checkpoint is None:
            when = f"within {FIRST_CHECKPOINT_SECONDS} s" if run.alive else "before the run ended"
            self.problem(f"no checkpoint {when}, see {self.log}")
        return run.checkpoint is not None

    def restart(self, run: Run) -> Run:
        """Kill the run and start it again, once."""
        self.say("kill -9     in the middle of whatever it does, then start again")
        run.kill()
        self.count(run)
        self.kill = False
        new_run = self.start_run("--continuous", "--interval", "5s")
        # What was published stays readable.
        new_run.checkpoint = run.checkpoint
        return new_run

    def count(self, run: Run) -> None:
        """What a run did, once it is over."""
        self.modes += run.modes
        for line in run.fell_back:
            self.problem(line)

    def verify(self) -> None:
        """Let the run compare each view with its recomputation."""
        code, findings = verify(self.spec, self.log)
        for finding in findings:
            equal = "equal" if finding["equal"] else "DIFFERENT"
            name = str(finding["dataset"]).rsplit(".", 1)[-1]
            self.say(f"verify      {name:<22} checkpoint {finding.get('checkpoint')}  {equal}")
        different = [finding for finding in findings if not finding["equal"]]
        if code != 0 or different or len(findings) < VIEWS:
            self.problem(f"verify: exit code {code}, {len(findings)} views, see {self.log}")

    def ask_more(self, reader: RemoteReader) -> None:
        """Further queries of a subclass, at the end."""

    def show_chart(self, in_lake: LastAnswers) -> None:
        """Draw by ClickHouse's SQL, and compare with the numbers of the lake at the same checkpoint."""
        drawn = chart(self.clickhouse)
        self.say(f"clickhouse  checkpoint {drawn.checkpoint}: mean minutes of delay at departure, by hour")
        for hour in drawn.hours:
            self.say(f"            {hour}")
        if drawn.checkpoint != in_lake.checkpoint:
            self.problem(f"ClickHouse shows checkpoint {drawn.checkpoint}, the lake {in_lake.checkpoint}")
        elif in_lake.by_hour == [hour.numbers for hour in drawn.hours]:
            self.say(f"lake        checkpoint {drawn.checkpoint}: the same {len(in_lake.by_hour)} rows")
        else:
            self.problem(f"ClickHouse and the lake differ at checkpoint {drawn.checkpoint}")

    def show_foreign_readers(self, in_lake: LastAnswers) -> None:
        """Read a table as Delta and as Hudi, and compare with the lake at the same checkpoint."""
        number, departures = in_lake.checkpoint, in_lake.departures
        for table in published(self.work / "storage" / "publications", number):
            if table.rows == departures:
                self.say(
                    f"{table.reader:<11} version {table.version} is checkpoint {number}: "
                    f"the same {departures.total()} rows"
                )
            else:
                self.problem(f"{table.reader} and the lake differ at checkpoint {number}")

    def perform(self) -> int:
        """All of it; the exit code."""
        self.prepare()
        replay = self.start_replay()
        try:
            answers = self.live(replay)
            if answers is not None and not self.problems:
                self.show_chart(answers)
                self.show_foreign_readers(answers)
        except KeyboardInterrupt:
            return 130
        finally:
            replay.kill()
            replay.wait()
        return self.summary()

    def summary(self) -> int:
        modes = ", ".join(f"{count} {mode}" for mode, count in self.modes.most_common())
        self.say(f"refreshes   {modes or 'none'}")
        self.say(f"questions   {self.checks} asked, each at one checkpoint")
        for line in self.problems:
            self.say(f"PROBLEM     {line}")
        if not self.checks:
            self.say("PROBLEM     no question was answered")
        success = not self.problems and self.checks > 0
        self.say("everything ties out" if success else "NOT everything held")
        return 0 if success else 1


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def arguments_of(module: str, about: str | None, arguments: list[str] | None) -> argparse.Namespace:
    """The command line of a demonstration: `days`, `seconds`, `kill`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--days", type=int, default=31, help="days of 2013 to replay (31)")
    parser.add_argument("--seconds", type=int, default=30, help="how long the replay takes (30)")
    parser.add_argument("--kill", action="store_true", help="kill -9 the run once and go on")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = arguments_of("examples.flights.demo", __doc__, arguments)
    return Demo(WORK, given.days, given.seconds, given.kill).perform()


if __name__ == "__main__":
    raise SystemExit(main())
