"""Ten changes that people make, on an example and on a public project: what is planned and built is what is
applied, and what plain Spark computes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.public_projects import test_names as names_project
from tests.runtime.planning.test_builds import Project
from tests.runtime.planning.test_projects import Definitions

import tautochrone.testing.sqlite_sink  # noqa: F401
from tautochrone.errors import DefinitionError
from tautochrone.model.project_plan import DefinitionChange, ProjectPlan
from tautochrone.runtime.planning.build import survey
from tautochrone.runtime.planning.plan_project import plan_project

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHOP = Path(__file__).parents[3] / "examples/shop/transformations/views.sql"
_SHOP_TABLES = """
from pyspark import pipelines as dp

@dp.table
def shop_customers():
    return spark.readStream.schema("id INT, name STRING, balance DECIMAL(12, 2)").json("@IN@/customers")

@dp.table
def shop_orders():
    return spark.readStream.schema("id BIGINT, customer_id INT, amount DECIMAL(12, 2)").json("@IN@/orders")
"""
NOTED = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import functions as sf

def noted(number):
    return f"{number} rows"

@dp.materialized_view
def noted_rows():
    limit = int(Path("limit.txt").read_text())
    rows = spark.table("@VIEW@").agg(sf.count("*").alias("n"))
    return rows.where(f"n < {limit}").select(sf.udf(noted, "string")("n").alias("note"))
"""


def shop(project: Project) -> None:
    """Its views as they are, over files instead of a captured database."""
    for name, rows in {
        "customers": [{"id": n, "name": f"c{n}", "balance": 10 * n} for n in range(5)],
        "orders": [{"id": n, "customer_id": n % 4, "amount": n} for n in range(9)],
    }.items():
        project.write(f"in/{name}/1.json", "\n".join(map(json.dumps, rows)))
    project.write("definitions/shop.py", _SHOP_TABLES.replace("@IN@", str(project.folder / "in")))
    shutil.copy(SHOP, project.folder / "definitions/views.sql")


def names(project: Project) -> None:
    project.write("in/items/1.csv", "id,kind,price\n1,pen,1.5\n2,pen,2.5\n3,ink,4.0\n")
    for file, text in {"names.sql": names_project.NAMES, "items.py": names_project.ITEMS}.items():
        project.write(f"definitions/{file}", text.replace("@IN@", str(project.folder / "in")))


def _replace(file: str, before: str, after: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        path = project.folder / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    return change


def _cosmetic(project: Project) -> None:
    for path in sorted((project.folder / "definitions").rglob("*.sql")):
        path.write_text(path.read_text().replace("SELECT", "SELECT -- as before\n   "))


def _join_type(project: Project) -> None:
    for path in sorted((project.folder / "definitions").rglob("*.sql")):
        text = path.read_text()
        other = re.sub(r"\bLEFT JOIN\b", "JOIN", text, count=1)
        if other != text:
            path.write_text(other)
            return


def _source(project: Project) -> None:
    project.write("in/more/1.json", '{"id": 1}\n')
    project.write(
        "definitions/more.py",
        "from pyspark import pipelines as dp\n\n@dp.table\ndef more():\n"
        f'    return spark.readStream.schema("id BIGINT").json("{project.folder}/in/more")\n',
    )
    project.write(
        "definitions/more.sql", "CREATE MATERIALIZED VIEW more_ids AS SELECT count(id) AS n FROM more;"
    )


def _sink(project: Project) -> None:
    options = f'options.path = "{project.folder}/mirror.db"'
    project.write("tautochrone.toml", f'[sinks.mirror]\nformat = "toy-sqlite"\n{options}\n')
    project.reload()
    sent = "@dp.materialized_view(table_properties={'tautochrone.sinks': 'mirror'})\ndef noted_rows"
    _replace("definitions/noted.py", "@dp.materialized_view\ndef noted_rows", sent)(project)


def _of_view(change: str, *, is_leaf: bool = False) -> Callable[[Project], None]:
    def write(project: Project) -> None:
        definitions = Definitions(project.folder / "definitions")
        views = definitions.leaves if is_leaf else definitions.views
        definitions.write({views[-1]: change})

    return write


CHANGES: Mapping[str, Callable[[Project], None]] = {
    "cosmetic": _cosmetic,
    "column added": _of_view("column", is_leaf=True),
    "filter changed": _of_view("filter"),
    "join type changed": _join_type,
    "view split": _of_view("split"),
    "source added": _source,
    "function changed": _replace("definitions/noted.py", 'rows"', 'of them"'),
    "file changed": lambda project: project.write("limit.txt", "2").touch(),
    "view renamed": _of_view("renamed", is_leaf=True),
    "sink added": _sink,
}


def make(project: Project) -> tuple[ProjectPlan, str | None]:
    """Build and apply what changed, or run where there is nothing to build. Answers the plan and the id."""
    with project.opened() as (job, _):
        planned = plan_project(job)
        surveyed = survey(job, planned)
    if not surveyed.views:
        assert project.run().state == "COMPLETED"
        return planned, None
    identity, differences = project.build()
    assert differences.keys() == {view.dataset.table for view in surveyed.views}
    done = project.apply(identity)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [event for event in map(json.loads, done.stdout.splitlines()) if "mode" in event]
    moved = {event["dataset"]: event["reason_code"] for event in events if event["mode"] != "no_data"}
    assert moved == {str(view.dataset): "BUILD_APPLIED" for view in surveyed.views}
    applied = json.loads(project.taut("checkpoints", "--json").stdout.splitlines()[0])["checkpoint"]
    for view in surveyed.views:
        line = differences[view.dataset.table]
        if view.change is DefinitionChange.CHANGED and line["added"] is not None:
            base = str(int(surveyed.base.number))
            shown = project.taut("diff", base, str(applied), str(view.dataset), "--json")
            after = json.loads(shown.stdout.splitlines()[0])
            assert (after["added"], after["removed"]) == (line["added"], line["removed"]), view
    return planned, identity


@pytest.mark.parametrize("example", [shop, names])
def test_ten_changes(tmp_path: Path, spark: SparkSession, example: Callable[[Project], None]) -> None:
    project = Project(tmp_path, spark, may_fall_back=True)
    example(project)
    project.write("limit.txt", "100")
    definitions = Definitions(project.folder / "definitions")
    project.write("definitions/noted.py", NOTED.replace("@VIEW@", definitions.leaves[0]))
    assert project.run().state == "COMPLETED"
    for name, change in CHANGES.items():
        change(project)
        try:
            planned, _ = make(project)
            assert planned.has_changes is (name != "cosmetic")
            assert project.run().state == "COMPLETED"
            project.verify()
            assert not project.plan().has_changes
        except (AssertionError, DefinitionError) as error:
            raise AssertionError(name) from error
    project.close()
