"""What all end-to-end proofs of incremental views do: change tables, run, recompute, look at the modes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import SparkSession

from tautochrone.runtime.job.selection import select
from tautochrone.runtime.loop.run import Run, RunState
from tautochrone.testing.harness import Happened, Pipeline

STRICT = True
"""Whether views must be incremental, and are defined so."""

PROPERTIES = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')" if STRICT else ""

GOOD = {"no_data", "append", "incremental"}


class Stand:
    """A pipeline, and a session of somebody else that writes into the same catalog."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.outside = self.pipeline.session.newSession()
        for key, value in self.pipeline.session.conf.getAll.items():
            if key.startswith("spark.sql.catalog.lake"):
                self.outside.conf.set(key, value)
        self.built = False
        self._run: Run | None = None
        self._happened = Happened()

    def view(self, name: str, query: str, properties: str = PROPERTIES) -> None:
        """Define a materialized view in a file of its own."""
        text = f"CREATE MATERIALIZED VIEW {name} {properties} AS\n{query};\n"
        (self.pipeline.folder / "definitions").mkdir(exist_ok=True)
        (self.pipeline.folder / "definitions" / f"{name}.sql").write_text(text)

    def sql(self, *statements: str) -> None:
        """Run by the external writer."""
        for statement in statements:
            self.outside.sql(statement).collect()

    def checkpoint(self, allowed: Collection[str] = (), *, restart: bool = True) -> Happened:
        """Bring all views up to date, verify every one, and check how each was refreshed.

        Args:
            allowed: views (last part of the name) that may be `diff` or `full`.
            restart: by a new job, which takes in what streams have; else the last one goes on, as in
                `--continuous`.
        """
        happened = self._restarted() if restart or self._run is None else self._continued(self._run)
        problems = [told["error"] for told in happened if "error" in told]
        assert not problems, problems
        verdicts = self.pipeline.verify()
        assert verdicts
        unknown = [verdict for verdict in verdicts if verdict.equal is None]
        assert not unknown, unknown
        if self.built:
            bad = slow(happened, allowed)
            assert not (STRICT and bad), bad
        self.built = True
        return happened

    def _restarted(self) -> Happened:
        with self.pipeline.opened() as (job, happened):
            self._run, self._happened = Run(job, select(job, (), (), everything=False)), happened
            assert self._run.once() is RunState.COMPLETED, list(happened)
        return Happened(happened)

    def _continued(self, run: Run) -> Happened:
        before = len(self._happened)
        run.again()
        return Happened(self._happened[before:])

    def close(self) -> None:
        self.pipeline.close()


def slow(happened: Happened, allowed: Collection[str] = ()) -> dict[str, list[tuple[str, str, str]]]:
    """Views that were not refreshed at the cost of the change, with the nodes that are to blame."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for told in happened.of("refresh"):
        name = told["dataset"].rsplit(".", 1)[-1]
        nodes = [(n["node"], n["mode"], n["reason"]) for n in told["nodes"] if n["mode"] not in GOOD]
        if told["mode"] not in GOOD:
            nodes.append(("view", told["mode"], told["reason"]))
        if nodes and name not in allowed:
            found[name] = nodes
    return found
