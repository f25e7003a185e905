"""A small SDP project whose every row has an identity: what is lost or doubled is seen.

All values follow from a row's id, so the truth is a set of ids.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.names import TableName, Version

__all__ = ["OUTSIDE", "Sources", "amount", "kind", "write_project"]

OUTSIDE = "lake.shared.outside"
KINDS = 3

_SPEC = """
name: crash
storage: storage
libraries:
  - glob:
      include: transformations/**
"""

_SETTINGS = """
[spark]
master = "local[2]"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""

_INCREMENTAL = """
[refresh]
policy = "incremental"
"""

_MAINTENANCE = f"""{_INCREMENTAL}[maintenance]
keep = "0s"
keep_last = 2
history = "0s"
every = "0s"
budget = "60s"
min_versions = 1
min_files = 2
orphans_every = "1ms"
"""

_IMPORTS = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
INPUT = Path(__file__).resolve().parents[1] / "input"
EVENT = "id BIGINT, kind INT, amount BIGINT"

"""
_ROOTS = {
    "events": """\
dp.create_streaming_table("events", schema=EVENT)


@dp.append_flow(target="events", name="left")
def left():
    return spark.readStream.schema(EVENT).json(f"{INPUT}/left")
""",
    "right": """\
@dp.append_flow(target="events", name="right")
def right():
    return spark.readStream.schema(EVENT).json(f"{INPUT}/right")
""",
    "names": """\
@dp.table
def names():
    rows = spark.readStream.schema("kind INT, name STRING").option("header", "true").csv(f"{INPUT}/names")
    return rows.where("kind >= 0")
""",
}

_STREAM = """\
@dp.table
def clean():
    return spark.readStream.table("events").where("amount % 5 != 0")
"""
_COPY = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table(name="copy_{number}")
def copy():
    rows = spark.readStream.schema("kind INT, name STRING").option("header", "true").csv(f"{{INPUT}}/names")
    return rows.where("kind >= 0")
"""

_VIEWS = {
    "totals": "SELECT kind, count(*) AS n, sum(amount) AS amount FROM events GROUP BY kind",
    "named": "SELECT c.id, n.name FROM clean c JOIN names n ON n.kind = c.kind",
    "balance": "SELECT (SELECT coalesce(sum(n), 0) FROM totals) AS counted, "
    "(SELECT count(*) FROM events) AS present",
}
_BIG = "SELECT id, amount{more} FROM events WHERE {amount} > 50"
_MANY = (
    "SELECT amount % 7 AS rest, count(*) AS n FROM events GROUP BY amount % 7 HAVING count(*) BETWEEN 2 AND 4"
)
_OUTSIDERS = f"SELECT kind, label FROM {OUTSIDE} WHERE kind >= 0"

_MIRROR = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from tautochrone.testing import sqlite_sink  # its import registers the format

spark = SparkSession.active()

dp.create_sink("mirror", sqlite_sink.FORMAT, {{"path": "{path}"}})


@dp.append_flow(target="mirror", name="events_to_mirror")
def events_to_mirror():
    return spark.readStream.table("events")


@dp.materialized_view(table_properties={{"tautochrone.sinks": "mirror"}})
def shown():
    return spark.read.table("events").groupBy("kind").agg({{"amount": "sum", "id": "count"}})
"""


def kind(identity: int) -> int:
    return identity % KINDS


def amount(identity: int) -> int:
    return identity * 37 % 101


def write_project(folder: Path) -> Sources:
    """Write the project with empty inputs; returns its sources."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(_SPEC)
    (folder / "tautochrone.toml").write_text(_SETTINGS)
    for source in ("left", "right", "names"):
        (folder / "input" / source).mkdir(parents=True)
    sources = Sources(folder)
    for name, text in (*_ROOTS.items(), ("clean", _STREAM)):
        sources.define_stream(name, text)
    for name, query in _VIEWS.items():
        sources.define(name, query)
    sources.break_view(False)
    return sources


@dataclass
class Sources:
    """The project's inputs and definitions, and what must come out of them."""

    folder: Path
    events: set[int] = field(default_factory=set)
    names: set[tuple[int, str]] = field(default_factory=set)
    outside: set[tuple[int, str]] = field(default_factory=set)
    columns: int = 0
    copies: int = 0
    _files: int = 0
    _next: int = 1

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def add(self) -> None:
        """New rows in every source that is read."""
        for source in ("left", "right") if self.defines("right") else ("left",):
            ids = list(range(self._next, self._next + 3))
            self._next += 3
            self.events.update(ids)
            lines = [json.dumps({"id": i, "kind": kind(i), "amount": amount(i)}) for i in ids]
            self._drop(source, "json", lines)
        self.add_names()

    def add_names(self) -> None:
        row = (self._files % KINDS, f"name-{self._files}")
        self.names.add(row)
        self._drop("names", "csv", ["kind,name", f"{row[0]},{row[1]}"])

    def add_dropped(self) -> None:
        """Rows that a flow drops: positions move, the table does not."""
        self._drop("names", "csv", ["kind,name", "-1,nobody"])

    def define(self, name: str, query: str) -> None:
        text = f"CREATE MATERIALIZED VIEW {name} AS {query};\n"
        (self.folder / "transformations" / f"{name}.sql").write_text(text)

    def define_stream(self, name: str, text: str) -> None:
        (self.folder / "transformations" / f"{name}.py").write_text(_IMPORTS + text)

    def define_only(self, *names: str) -> None:
        """Beside `events` only these are defined, of which `right` is its second flow: the rest would slow
        a test down."""
        for file in (self.folder / "transformations").iterdir():
            if file.stem not in {*names, "events"}:
                file.unlink()

    def defines(self, name: str) -> bool:
        return any((self.folder / "transformations").glob(f"{name}.*"))

    def widen(self) -> None:
        """Another schema of the append-only view: one more column."""
        self.columns += 1
        self.break_view(False)

    def break_view(self, broken: bool) -> None:
        """Whether the append-only view fails on every row."""
        more = "".join(f", amount * {n} AS times_{n}" for n in range(1, self.columns + 1))
        amount = "CAST(concat('x', amount) AS BIGINT)" if broken else "amount"
        self.define("big", _BIG.format(more=more, amount=amount))

    def add_root(self) -> None:
        """One more streaming table: another copy of the names."""
        self.copies += 1
        self.define_stream(f"copy_{self.copies}", _COPY.format(number=self.copies))

    @property
    def mirror_file(self) -> Path:
        return self.folder / "mirror" / "mirror.db"

    def mirror(self, policy: str | None = None, *, patience: str = "30s") -> None:
        """A sink that gets the new events and a view of them."""
        section = f'[run]\npatience = "{patience}"\n'
        if policy is not None:
            section += f'[sinks.mirror]\npolicy = "{policy}"\nattempts = 1\n'
        (self.folder / "tautochrone.toml").write_text(_SETTINGS + section)
        text = _MIRROR.format(path=self.mirror_file)
        (self.folder / "transformations" / "mirror.py").write_text(text)

    def stop_mirror(self) -> None:
        """No definition names the sink any more."""
        (self.folder / "transformations" / "mirror.py").unlink(missing_ok=True)

    def read_outside(self) -> None:
        """A view that reads a table which somebody else writes."""
        self.define("labels", _OUTSIDERS)

    def follow(self) -> None:
        """Every view follows its changes, with states, and one has groups that come and go."""
        (self.folder / "tautochrone.toml").write_text(_SETTINGS + _INCREMENTAL)
        self.define("many", _MANY)

    def maintain(self) -> None:
        """Keep two checkpoints and what their refreshes need, and nothing else."""
        (self.folder / "tautochrone.toml").write_text(_SETTINGS + _MAINTENANCE)

    def orphan(self) -> Path:
        """What a killed writer leaves in the folder of `events`, and all files of all tables are old."""
        data = self.storage / "warehouse" / "default" / "events" / "data"
        left = data / f"left-{time.time_ns()}.parquet"
        left.write_bytes(b"half a file")
        then = time.time() - 4 * 86_400
        for path in (self.storage / "warehouse").rglob("*.*"):
            os.utime(path, (then, then))
        return left

    def touch(self) -> None:
        """The newest file of a source looks as if it was replaced in place."""
        newest = max((self.folder / "input" / "left").glob("*.json"))
        then = newest.stat().st_mtime + 60
        os.utime(newest, (then, then))

    def wipe_folders(self) -> None:
        shutil.rmtree(self.storage / "_checkpoints")

    def copy_folders(self, to: Path) -> None:
        shutil.copytree(self.storage / "_checkpoints", to)

    def restore_folders(self, copy: Path) -> None:
        self.wipe_folders()
        shutil.copytree(copy, self.storage / "_checkpoints")

    def delete_store(self) -> None:
        for file in self.storage.glob("meta.db*"):
            file.unlink()

    def swap_store(self) -> None:
        """Instead of the store one in which another pipeline published a checkpoint."""
        self.delete_store()
        table = TableName("lake", ("other",), "theirs")
        with MetaStore.open(f"sqlite:///{self.storage}/meta.db") as store:
            store.jobs.start_run(
                "other", "other", [DatasetEntry(table, "streaming table", "t", is_root=True)]
            )
            fence = store.jobs.take_over("other", ingests=[table])
            target = store.checkpoints.open("other", fence, NewCheckpoint({table: Version("1")}, 1))
            store.checkpoints.publish("other", fence, target.number, 1)

    def copy_store(self, to: Path) -> None:
        """A backup of the store, as of now."""
        to.mkdir()
        for file in self.storage.glob("meta.db*"):
            shutil.copy(file, to)

    def restore_store(self, copy: Path) -> None:
        """The backup instead of the store."""
        self.delete_store()
        for file in copy.glob("meta.db*"):
            shutil.copy(file, self.storage)

    def _drop(self, source: str, suffix: str, lines: list[str]) -> None:
        """Whole files only: a file source must never see half of one."""
        self._files += 1
        scratch = self.folder / "input" / f".{self._files}"
        scratch.write_text("\n".join(lines) + "\n")
        os.rename(scratch, self.folder / "input" / source / f"{self._files:06d}.{suffix}")
