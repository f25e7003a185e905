"""What all end-to-end tests of incremental views do: change tables, refresh, recompute, check the modes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run, RunState

STRICT = True
"""Whether views must be refreshed incrementally, by their policy and by the checks here."""

PROPERTIES = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')" if STRICT else ""

INCREMENTAL_MODES = {"no_data", "append", "incremental"}


class ViewTestbed:
    """A pipeline, and another session that writes its input tables."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.external_session = self.pipeline.session.newSession()
        for key, value in self.pipeline.session.conf.getAll.items():
            if key.startswith("spark.sql.catalog.lake"):
                self.external_session.conf.set(key, value)
        self.built = False
        self._run: Run | None = None
        self._happened = Happened()

    def view(self, name: str, query: str, properties: str = PROPERTIES) -> None:
        """Define a materialized view in a file of its own."""
        text = f"CREATE MATERIALIZED VIEW {name} {properties} AS\n{query};\n"
        (self.pipeline.folder / "definitions").mkdir(exist_ok=True)
        (self.pipeline.folder / "definitions" / f"{name}.sql").write_text(text)

    def sql(self, *statements: str) -> None:
        """Run statements in the external session."""
        for statement in statements:
            self.external_session.sql(statement).collect()

    def checkpoint(self, allowed: Collection[str] = (), *, restart: bool = True) -> Happened:
        """Refresh all views at a new checkpoint, compare them with plain Spark, and check their modes.

        The first build is not compared: its wrong rows would be found at the second checkpoint.

        Args:
            allowed: views (last part of the name) that may be `diff` or `full`.
            restart: with a new job, which also ingests from streams; otherwise the last one continues, as
                with `--continuous`.
        """
        happened = self._restarted() if restart or self._run is None else self._continued(self._run)
        problems = [event["error"] for event in happened if "error" in event]
        assert not problems, problems
        if self.built:
            verdicts = self.pipeline.verify()
            assert verdicts
            unknown = [verdict for verdict in verdicts if verdict.equal is None]
            assert not unknown, unknown
            problems = views_not_incremental(happened, allowed)
            assert not (STRICT and problems), problems
        self.built = True
        return happened

    def _restarted(self) -> Happened:
        with self.pipeline.opened() as (job, happened):
            self._run, self._happened = Run(job, select(job.topology, (), (), everything=False)), happened
            assert self._run.once() is RunState.COMPLETED, list(happened)
        return Happened(happened)

    def _continued(self, run: Run) -> Happened:
        before = len(self._happened)
        run.again()
        return Happened(self._happened[before:])

    def close(self) -> None:
        self.pipeline.close()


def views_not_incremental(
    happened: Happened, allowed: Collection[str] = ()
) -> dict[str, list[tuple[str, str, str]]]:
    """Views that were not refreshed incrementally, each with the nodes that were not."""
    views: dict[str, list[tuple[str, str, str]]] = {}
    for refresh in happened.of("refresh"):
        name = refresh["dataset"].rsplit(".", 1)[-1]
        nodes = [
            (node["node"], node["mode"], node["reason"])
            for node in refresh["nodes"]
            if node["mode"] not in INCREMENTAL_MODES
        ]
        if refresh["mode"] not in INCREMENTAL_MODES:
            nodes.append(("view", refresh["mode"], refresh["reason"]))
        if nodes and name not in allowed:
            views[name] = nodes
    return views
