"""A project with its sources in its folder, its copies, and what each must contain."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.app.locate import Options, locate
from tautochrone.app.relocation import Relocation
from tautochrone.model.effects import Effects, Step
from tautochrone.runtime.job.effects import DirectEffects

__all__ = ["LONG_AGO_S", "SPEC", "Died", "Dying", "Shop", "fingerprints", "relocate"]

T = TypeVar("T")

SPEC = """\
name: shop
storage: storage
libraries:
  - glob:
      include: definitions/**
"""
_STREAMS = """\
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
ORDERS = Path(__file__).resolve().parents[1] / "new orders"


@dp.table(partition_cols=["kind"])
def orders():
    return spark.readStream.schema("id INT, kind STRING, price DECIMAL(9,2)").json(str(ORDERS))


@dp.table
def cheap():
    return spark.readStream.table("orders").where("price < 3")
"""
# An incremental refresh of `sales` writes deletion vectors.
_VIEWS = """\
CREATE VIEW plain AS SELECT id, kind FROM orders;
CREATE MATERIALIZED VIEW sales TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')
  AS SELECT kind, count(*) AS n, sum(price) AS total FROM orders GROUP BY kind;
"""
_SETTINGS = """\
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""
LONG_AGO_S = 30 * 86_400


class Died(Exception):  # noqa: N818
    """The process is dead: the next durable step raises it again."""


class Dying(DirectEffects):
    """Dies before or after the `nth` time that a step is taken."""

    def __init__(self, step: Step, *, before: bool, nth: int = 1) -> None:
        self._step, self._before, self._left = step, before, nth
        self.died = False

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if self.died:
            raise Died
        self._left -= step is self._step
        self.died = self._left == 0 and step is self._step
        if self.died and self._before:
            raise Died
        result = super().perform(step, subject, action)
        if self.died:
            raise Died
        return result


@dataclass
class Shop:
    """One folder with the project; `ids` are the orders in it."""

    pipeline: Pipeline
    ids: list[int] = field(default_factory=list)

    @classmethod
    def new(cls, folder: Path, spark: SparkSession) -> Shop:
        shop = cls(Pipeline(folder, spark, spec=SPEC, settings=_SETTINGS))
        shop.pipeline.write("definitions/streams.py", _STREAMS)
        shop.pipeline.write("definitions/views.sql", _VIEWS)
        return shop

    @classmethod
    def at(cls, folder: Path, spark: SparkSession, ids: list[int]) -> Shop:
        """A project that was copied or moved to `folder`."""
        return cls(Pipeline(folder, spark, spec=SPEC, settings=_SETTINGS), list(ids))

    @property
    def folder(self) -> Path:
        return self.pipeline.folder

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def add(self, *ids: int, age_s: int = 0) -> None:
        """One more file of orders, last written `age_s` ago."""
        self.ids += ids
        lines = [json.dumps({"id": n, "kind": "ab"[n % 2], "price": n % 5 + 0.5}) for n in ids]
        file = self.folder / "new orders" / f"{ids[0]:05d}.json"
        file.parent.mkdir(exist_ok=True)
        scratch = self.folder / f".{file.name}"
        scratch.write_text("\n".join(lines) + "\n")
        then = time.time() - age_s
        os.utime(scratch, (then, then))
        scratch.rename(file)

    def run(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", happened
        return happened

    def check(self) -> None:
        """Every order exists once, and views equal their queries."""
        query = self.pipeline.query
        assert [row[0] for row in query("SELECT id FROM orders")] == sorted(self.ids)
        assert [row[0] for row in query("SELECT id FROM cheap")] == [n for n in sorted(self.ids) if n % 5 < 3]
        counts = dict(query("SELECT kind, n FROM sales"))
        assert sum(counts.values()) == len(self.ids)
        assert {verdict.equal for verdict in self.pipeline.verify()} == {True}

    def copy_to(self, folder: Path) -> None:
        """Like `cp -r`: copied files get new modification times."""
        shutil.copytree(self.folder, folder, copy_function=shutil.copyfile)


def relocate(folder: Path, effects: Effects | None = None, **options: Any) -> Happened | None:
    """Like `taut relocate`; None when there was nothing to do."""
    spec, settings = locate(Options(spec=str(folder / "spark-pipeline.yml")))
    happened = Happened()

    relocation = Relocation(spec, settings, effects or DirectEffects(), happened.take, **options)
    if not relocation.survey():
        return None
    relocation.relocate()
    return happened


def fingerprints(folder: Path) -> dict[str, str]:
    """Every file below a folder with a hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
