"""A project whose datasets come and go, and what is left of one anywhere: catalog, files, folders, store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from sqlalchemy import create_engine, inspect, text
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Happened, Pipeline

from tautochrone.errors import CommitOutcomeUnknownError
from tautochrone.model.names import TableName
from tautochrone.runtime.job.job import Job

__all__ = ["World", "table"]

HEAD = """
    from pyspark import pipelines as dp

    STRICT = {{"tautochrone.refresh-policy": "incremental_strict"}}

    @dp.table
    def other():
        return spark.readStream.schema("id long, word string").json({folder!r})
"""
EVENTS = """
    @dp.table
    def {name}():
        return spark.readStream.schema("id long, word string").json({folder!r})
"""
TOTALS = """
    @dp.materialized_view(table_properties=STRICT)
    def {name}():
        return spark.sql("SELECT word, count(*) AS n, sum(id) AS s FROM {source} GROUP BY word")
"""


def table(name: str) -> TableName:
    return TableName("lake", ("default",), name)


class World:
    """`other` stays; `events` is a stream of files, `totals` a view with a state over it."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self.folder = pipeline, folder
        self.rows = 0
        self.add()

    def add(self) -> None:
        """Two more rows come."""
        rows = [{"id": self.rows + i, "word": f"w{(self.rows + i) % 3}"} for i in range(2)]
        self.pipeline.write(f"in/{self.rows}.json", "\n".join(map(json.dumps, rows)))
        self.rows += 2

    def define(self, *datasets: str) -> None:
        """The project has these, besides `other`: names, or `view<-source` for a view of totals."""
        folder = str(self.folder / "in")
        parts = [HEAD.format(folder=folder)]
        for each in datasets:
            name, arrow, source = each.partition("<-")
            parts.append(
                TOTALS.format(name=name, source=source) if arrow else EVENTS.format(name=name, folder=folder)
            )
        self.pipeline.write("definitions/p.py", "".join(parts))
        self.pipeline.reload()

    def run(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", [event for event in happened if "error" in event]
        return happened

    def attempt(self, act: Callable[[Job], object], strike: Strike | None = None) -> StrikingEffects:
        """One process, which dies by the strike."""
        effects = StrikingEffects(strike)
        with self.pipeline.opened(effects) as (job, _):
            try:
                act(job)
            except (Crash, CommitOutcomeUnknownError):
                assert strike is not None
        assert strike is None or effects.struck, f"{strike} was not reached: {effects.seen}"
        return effects

    def lose_store(self) -> None:
        """The store is gone: the next run fills a new one from the lake."""
        self.pipeline.close()
        self.pipeline._reader = None
        store = Path(self.pipeline.settings.meta_url.removeprefix("sqlite:///"))
        for file in store.parent.glob(f"{store.name}*"):
            file.unlink()

    def left_of(self, *names: str, files_stay: bool = False) -> list[str]:
        """Where a dataset is named or has files. With `files_stay` those of its table do not count."""
        left = [str(each) for each in self.tables() if _names(each.table, names)]
        left += [
            str(path)
            for path in (self.folder / "storage").rglob("*")
            if _names(path.name, names) and not (files_stay and "warehouse" in path.parts)
        ]
        return left + self.rows_of(str(table(name)) for name in names)

    def tables(self) -> Iterable[TableName]:
        with self.pipeline.opened() as (job, _):
            return job.lake.tables()

    def rows_of(self, names: Iterable[str]) -> list[str]:
        """The rows of the store that have one of the names in any column, as texts."""
        engine = create_engine(self.pipeline.settings.meta_url)
        shown_names, rows = [*names], []
        try:
            with engine.connect() as connection:
                for each in inspect(engine).get_table_names():
                    for row in connection.execute(text(f'SELECT * FROM "{each}"')):
                        shown = f"{each}: {row}"
                        rows += [
                            shown for name in shown_names if f"'{name}'" in shown or f'"{name}"' in shown
                        ]
        finally:
            engine.dispose()
        return rows


def _names(text_of_path: str, names: Iterable[str]) -> bool:
    return any(text_of_path == name or f"default__{name}__" in text_of_path for name in names)
