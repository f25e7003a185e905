"""Random changes of the views of projects like those that people publish: each run does what was planned."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.public_projects.test_medallion import BRONZE, GOLD, ORDERS, SILVER
from tests.runtime.planning.test_foretold_runs import require_same
from tests.support.harness import Pipeline

from tautochrone.model.project_plan import DefinitionChange

pytestmark = pytest.mark.spark

FLIGHTS = Path(__file__).parents[3] / "examples/flights/transformations"
_VIEW = re.compile(
    r"CREATE\s+MATERIALIZED\s+VIEW\s+(?P<name>\w+)(?P<head>.*?)\bAS\s+(?P<query>(SELECT|WITH)\b.*)",
    re.IGNORECASE | re.DOTALL,
)


def medallion(pipeline: Pipeline) -> None:
    folder = pipeline.folder / "in"
    for name in ("orders", "customers"):
        (folder / name).mkdir(parents=True)
    (folder / "orders/a.json").write_text(ORDERS)
    customers = "customer_id,name,city,updated\n1,ann,Oslo,2026-01-01\n2,bob,Rome,2026-01-01\n"
    (folder / "customers/a.csv").write_text(customers)
    pipeline.write("definitions/bronze.py", BRONZE.replace("@IN@", str(folder)))
    pipeline.write("definitions/silver.sql", SILVER)
    pipeline.write("definitions/gold.sql", GOLD)


def flights(pipeline: Pipeline) -> None:
    """So many events that views keep states, and costs decide their modes."""
    folder = pipeline.folder / "in"
    texts = {
        "airlines": "carrier,name\nAA,American\nUA,United\n",
        "airports": "faa,name,lat,lon,alt,tz,dst,tzone\nJFK,Kennedy,1,2,3,4,A,x\n",
        "planes": "tailnum,year\nN1,1999\n",
    }
    for name in ("events", "weather", *texts):
        (folder / name).mkdir(parents=True)
    for name, text in texts.items():
        (folder / name / "1.csv").write_text(text)
    events = [
        {
            "kind": kind,
            "event_time": f"2013-01-01T{number % 24:02}:00:00Z",
            "flight_date": f"2013-01-{1 + number % 28:02}",
            "carrier": "AA" if number % 3 else "UA",
            "flight": number,
            "origin": "JFK",
            "dest": "LAX",
            "scheduled_departure": f"2013-01-{1 + number % 28:02}T10:00:00Z",
            "scheduled_hour": 10,
            "tailnum": "N1",
            "delay_minutes": number % 40,
        }
        for number in range(800)
        for kind in ("scheduled", "departed")
    ]
    (folder / "events/1.json").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "weather/1.json").write_text('{"origin": "JFK"}\n')
    shutil.copytree(FLIGHTS, pipeline.folder / "definitions", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (pipeline.folder / "definitions").glob("*.py"):
        text = re.sub(r"^INPUT = .*$", f"INPUT = {str(folder)!r}", file.read_text(), flags=re.MULTILINE)
        file.write_text(text)


def _wrapped(columns: str, rest: str = "") -> Callable[[str, str, str], str]:
    def wrap(name: str, head: str, query: str) -> str:
        return f"CREATE MATERIALIZED VIEW {name}{head}AS SELECT {columns} FROM ({query}) AS whole {rest}"

    return wrap


def _cosmetic(name: str, head: str, query: str) -> str:
    spaced = re.sub(r"\n", "\n    -- as before\n    ", query)
    return f"CREATE   MATERIALIZED VIEW /* the same */ {name}{head}\nAS {spaced}"


def _split(name: str, head: str, query: str) -> str:
    part = f"CREATE MATERIALIZED VIEW {name}_part AS {query}"
    return f"{part};\nCREATE MATERIALIZED VIEW {name}{head}AS SELECT * FROM {name}_part"


def _renamed(name: str, head: str, query: str) -> str:
    return f"CREATE MATERIALIZED VIEW {name}_renamed{head}AS {query}"


CHANGES: Mapping[str, Callable[[str, str, str], str]] = {
    "cosmetic": _cosmetic,
    "filter": _wrapped("*", "WHERE NOT (1 = 0)"),
    "column": _wrapped("*, 1 AS added"),
    "type": _wrapped("*, CAST(1 AS DECIMAL(9, 2)) AS added"),
    "distinct": _wrapped("DISTINCT *"),
    "split": _split,
    "renamed": _renamed,
    "removed": lambda *_: "",
}
OF_LEAVES = frozenset({"renamed", "removed"})
"""Changes after which nothing can read the view."""


class Definitions:
    """The SQL files of a project as they were written, of which views are changed."""

    def __init__(self, folder: Path) -> None:
        self._texts = {file: re.sub(r"--.*", "", file.read_text()) for file in sorted(folder.rglob("*.sql"))}
        self.views = sorted(match["name"] for match in map(_VIEW.search, self._statements()) if match)
        read = [match["query"] for match in map(_VIEW.search, self._statements()) if match]
        others = [text for text in self._statements() if not _VIEW.search(text)]
        self.leaves = [
            view for view in self.views if not any(re.search(rf"\b{view}\b", q) for q in [*read, *others])
        ]

    def _statements(self) -> list[str]:
        return [part for text in self._texts.values() for part in text.split(";")]

    def write(self, changes: Mapping[str, str]) -> None:
        """Write all files, with these views changed."""
        for file, text in self._texts.items():
            statements = []
            for statement in text.split(";"):
                match = _VIEW.search(statement)
                if match and match["name"] in changes:
                    change = CHANGES[changes[match["name"]]]
                    statements.append(change(match["name"], match["head"], match["query"]))
                else:
                    statements.append(statement)
            file.write_text(";".join(part for part in statements if part.strip()))


def run_random_changes(pipeline: Pipeline, seed: int, rounds: int) -> None:
    definitions, choice = Definitions(pipeline.folder / "definitions"), random.Random(seed)
    assert len(definitions.views) > 3
    pipeline.run()
    for number in range(rounds):
        views = choice.sample(definitions.views, k=min(3, len(definitions.views)))
        changes = {
            view: choice.choice([c for c in CHANGES if view in definitions.leaves or c not in OF_LEAVES])
            for view in views
        }
        definitions.write(changes)
        plan = pipeline.plan()
        try:
            require_same(plan, pipeline.run(), pipeline)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {number}: {changes}") from error
        changed = {part.dataset.table for part in plan.datasets if part.change is DefinitionChange.CHANGED}
        assert not changed & {view for view, change in changes.items() if change == "cosmetic"} or number, (
            changes
        )
        assert not pipeline.plan().has_changes, changes


@pytest.mark.slow
def test_changes_of_a_medallion(pipeline: Pipeline) -> None:
    medallion(pipeline)
    run_random_changes(pipeline, seed=1, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("project", [medallion, flights])
@pytest.mark.parametrize("seed", [2, 3])
def test_many_changes(pipeline: Pipeline, project: Callable[[Pipeline], None], seed: int) -> None:
    project(pipeline)
    run_random_changes(pipeline, seed, rounds=6)
