"""`taut dry-run` with refreshes: policies, warnings, the plan of a view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

import tautochrone.testing.sqlite_sink  # noqa: F401
from tautochrone.app import open as opening
from tautochrone.cli.main import _parser, handler_of
from tautochrone.cli.project import dry_run
from tautochrone.errors import DefinitionError, SinkError, TautochroneError
from tautochrone.redaction import MASK, keep_secret

pytestmark = pytest.mark.spark

DEFINITIONS = """
CREATE MATERIALIZED VIEW orders AS SELECT id AS k, id * 2 AS amount FROM range(9);

CREATE MATERIALIZED VIEW totals TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')
AS SELECT k, count(*) AS n, sum(amount) AS total FROM orders GROUP BY k;

CREATE MATERIALIZED VIEW dice TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')
AS SELECT k, rand() AS r FROM orders;

CREATE MATERIALIZED VIEW ranked TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental_strict')
AS SELECT k, lead(k) OVER (ORDER BY k) AS r FROM orders;

CREATE MATERIALIZED VIEW whole TBLPROPERTIES ('tautochrone.refresh-policy' = 'full')
AS SELECT k FROM orders
"""


class Taut:
    """Runs `taut dry-run` on the tests' own Spark."""

    def __init__(self, folder: Path, spark: SparkSession, capsys: Any, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.capsys = folder, capsys
        (folder / "d").mkdir()
        (folder / "d/a.sql").write_text(DEFINITIONS)
        (folder / "spark-pipeline.yml").write_text(
            "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: d/**\n"
        )
        patch.setattr(opening, "start_session", lambda *_: spark.newSession())
        patch.setattr(SparkSession, "stop", lambda _self: None)

    def __call__(self, *arguments: str) -> tuple[str, str]:
        spec = str(self.folder / "spark-pipeline.yml")
        assert dry_run(_parser().parse_args(["dry-run", "--spec", spec, *arguments])) == 0
        shown = self.capsys.readouterr()
        return shown.out, shown.err


@pytest.fixture
def taut(tmp_path: Path, spark: SparkSession, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Taut:
    return Taut(tmp_path, spark, capsys, monkeypatch)


def test_policies_and_what_strict_will_refuse(taut: Taut) -> None:
    """Nothing is written."""
    before = sorted(taut.folder.rglob("*"))
    out, err = taut("--json")
    assert sorted(taut.folder.rglob("*")) == before
    entries = {entry["dataset"].rsplit(".", 1)[1]: entry for entry in map(json.loads, out.splitlines())}
    assert {name: entry["policy"] for name, entry in entries.items()} == {
        "orders": "auto",
        "totals": "incremental_strict",
        "dice": "incremental_strict",
        "ranked": "incremental_strict",
        "whole": "full",
    }
    assert entries["totals"]["warning"] is None
    assert "rand() returns other values each time" in entries["dice"]["warning"]
    assert entries["dice"]["warning"].startswith("[REFRESH_NOT_INCREMENTAL]")
    assert entries["dice"]["warning"].endswith("d/a.sql:7")
    assert "window without PARTITION BY" in entries["ranked"]["warning"]
    assert "warning" not in entries["orders"]
    assert err.count("warning: [REFRESH_NOT_INCREMENTAL]") == 2


def test_persisted_views_are_listed(taut: Taut) -> None:
    (taut.folder / "d/b.sql").write_text("CREATE VIEW renamed AS SELECT k AS kind FROM orders;\n")
    out, _ = taut("--json")
    view = json.loads(out.splitlines()[-1])
    assert (view["dataset"], view["kind"], view["policy"]) == ("lake.default.renamed", "view", None)
    assert view["reads"] == ["lake.default.orders"]
    assert view["location"].endswith("d/b.sql:1")


def test_mirrored_tables_are_listed_and_checked(taut: Taut) -> None:
    (taut.folder / "d/a.sql").write_text(
        "CREATE MATERIALIZED VIEW orders TBLPROPERTIES ('tautochrone.sinks' = 'shop') AS SELECT 1 AS k;\n"
        "CREATE MATERIALIZED VIEW lines TBLPROPERTIES ('tautochrone.sinks' = 'shop') AS SELECT 1 AS id"
    )
    settings = '[sinks.shop]\nformat = "mariadb"\noptions = { url = "mariadb://u@h/mirror" }\n'
    (taut.folder / "tautochrone.toml").write_text(settings + 'key = ["id"]\nkeys = { orders = ["k"] }\n')
    out, _ = taut("--json")
    mirrors = [entry for entry in map(json.loads, out.splitlines()) if entry["kind"] == "mirror"]
    assert [(entry["dataset"], entry["shown_as"], entry["key"], entry["mode"]) for entry in mirrors] == [
        ("lake.default.lines", "mirror.lines", ["id"], "changes"),
        ("lake.default.orders", "mirror.orders", ["k"], "changes"),
    ]
    out, _ = taut()
    assert out.splitlines()[-1].split() == [
        "shop",
        "mariadb",
        "default.orders",
        "mirror.orders",
        "k",
        "changes",
    ]
    (taut.folder / "tautochrone.toml").write_text(settings + 'key = ["id"]\n')
    with pytest.raises(SinkError, match="orders has no column id"):
        taut()


def test_the_projects_policy_is_the_default(taut: Taut) -> None:
    (taut.folder / "tautochrone.toml").write_text('[refresh]\npolicy = "incremental_strict"\n')
    out, _ = taut("--json")
    assert json.loads(out.splitlines()[0])["policy"] == "incremental_strict"


def test_explain_prints_the_tree(taut: Taut) -> None:
    out, err = taut("--explain", "totals")
    head, _, *tree = out.splitlines()
    assert head == "lake.default.totals  policy incremental_strict  mode incremental"
    (aggregate,) = [line for line in tree if line.lstrip().startswith("aggregate")]
    assert "by 1 key - incremental: merged into groups" in aggregate
    # The key, the number of rows, the count, and for the sum a sum and a count.
    assert aggregate.endswith("; state: 5 columns")
    assert tree[-1].strip() == "scan lake.default.orders"
    assert err == ""


def test_explain_masks_a_secret_in_an_expression(taut: Taut) -> None:
    keep_secret("hush-hush")
    text = "CREATE MATERIALIZED VIEW hidden AS SELECT k FROM orders WHERE CAST(k AS STRING) <> 'hush-hush';\n"
    (taut.folder / "d/b.sql").write_text(text)
    out, err = taut("--explain", "hidden")
    assert MASK in out
    assert "hush" not in out + err


def test_explain_gives_reasons_for_diff_and_full(taut: Taut) -> None:
    out, err = taut("--explain", "dice")
    assert out.splitlines()[:2] == [
        "lake.default.dice  policy incremental_strict  mode diff",
        "because rand() returns other values each time",
    ]
    assert err.startswith("warning: [REFRESH_NOT_INCREMENTAL]")
    out, err = taut("--explain", "whole", "--json")
    explanation = json.loads(out)
    assert (explanation["policy"], explanation["mode"], explanation["warning"]) == ("full", "full", None)
    assert explanation["tree"][-1].strip() == "scan lake.default.orders"


def test_names_that_cannot_be_explained(taut: Taut) -> None:
    with pytest.raises(DefinitionError, match=r"DATASET_NOT_FOUND") as caught:
        taut("--explain", "totls")
    assert caught.value.hint == "did you mean totals?"
    (taut.folder / "d/b.sql").write_text("CREATE TEMPORARY VIEW some AS SELECT * FROM orders")
    with pytest.raises(TautochroneError, match=r"NOTHING_TO_EXPLAIN.*some is a temporary view"):
        taut("--explain", "some")


STREAM = """
from pyspark import pipelines as dp

@dp.table
def sales():
    return spark.readStream.schema("id BIGINT, amount INT").json("@IN@")
"""


def test_what_the_next_run_does_and_refuses_is_said(
    pipeline: Pipeline, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pipeline.folder / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1, "amount": 2}\n')
    text = STREAM.replace("@IN@", str(folder))
    pipeline.write("definitions/sales.py", text)
    view = "CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS amount FROM sales"
    pipeline.write("definitions/total.sql", view)
    assert pipeline.run().state == "COMPLETED"
    monkeypatch.setattr(opening, "start_session", lambda *_: pipeline.session)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)

    def taut(command: str, *arguments: str) -> tuple[int, str, str]:
        spec = str(pipeline.folder / "spark-pipeline.yml")
        options = _parser().parse_args([command, "--spec", spec, *arguments])
        status = handler_of(command)(options)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    assert taut("plan", "--exit-code")[:2] == (0, "no change since checkpoint 1: 2 datasets\n")
    pipeline.write("definitions/total.sql", view + " WHERE amount > 0")
    out = taut("dry-run", "--explain", "total")[1]
    assert "next run  full: the definition changed: its query\n" in out
    status, out, _ = taut("plan", "--exit-code")
    assert status == 1
    assert "+WHERE amount > 0" in out
    pipeline.write("definitions/sales.py", text.replace('INT"', 'STRING"'))
    status, _, err = taut("dry-run")
    assert status == 1
    assert err.startswith("[INCOMPATIBLE_SCHEMA_CHANGE] lake.default.sales cannot take its new columns")
    assert "definitions/sales.py:" in err
    assert "  hint: rebuild it with --full-refresh sales" in err
    status, out, _ = taut("plan", "--exit-code")
    assert status == 3
    assert out.startswith("! run refused: lake.default.sales: [INCOMPATIBLE_SCHEMA_CHANGE]")
    status, out, _ = taut("plan", "--exit-code", "--full-refresh", "sales")
    assert status == 1
    assert "clear" in out


def test_sinks_of_settings_are_listed_and_their_keys_checked(taut: Taut) -> None:
    options = '[sinks.mirror.options]\npath = "mirror.db"\n'
    mirror = '[sinks.mirror]\nformat = "toy-sqlite"\n'
    (taut.folder / "tautochrone.toml").write_text(mirror + options)
    text = DEFINITIONS.replace(
        "VIEW orders AS", "VIEW orders TBLPROPERTIES ('tautochrone.sinks' = 'mirror') AS"
    )
    (taut.folder / "d/a.sql").write_text(text)
    out, _ = taut("--json")
    sink, mirrored = map(json.loads, out.splitlines()[-2:])
    assert (sink["dataset"], sink["kind"], sink["format"]) == ("mirror", "sink", "toy-sqlite")
    assert sink["reads"] == ["lake.default.orders"]
    assert (mirrored["dataset"], mirrored["kind"], mirrored["sink"]) == (
        "lake.default.orders",
        "mirror",
        "mirror",
    )
    (taut.folder / "tautochrone.toml").write_text(f'{mirror}key = ["nr"]\n{options}')
    with pytest.raises(TautochroneError, match=r"SINK_COLUMN_MISSING.*orders has no column nr"):
        taut()
