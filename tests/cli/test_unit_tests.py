"""`taut test`: what it shows, its exit status, JSON and JUnit XML, and a test that is recorded."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.app import open as opening
from tautochrone.cli.main import main
from tautochrone.cli.unit_tests import _as_json
from tautochrone.errors import DefinitionError, all_at_once
from tautochrone.model.definitions import SourceLocation
from tautochrone.project.unit_test_files import InputName, UnitTest
from tautochrone.runtime.unit_tests.runner import Outcome, TestResult

pytestmark = pytest.mark.spark

VIEWS = """
CREATE MATERIALIZED VIEW sales AS
SELECT product, count(*) AS sold, sum(price) AS revenue, max(at) AS newest FROM orders GROUP BY product
"""
ORDERS = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def orders():
    schema = "id INT, product STRING, price DECIMAL(9,2), at TIMESTAMP, tags ARRAY<STRING>"
    return spark.readStream.schema(schema).json(str(Path(__file__).parents[1] / "orders"))
"""
TESTS = """
unit_tests:
  - name: good
    model: sales
    given: [{input: orders, rows: [{product: tea, price: 1.5}]}]
    expect: {rows: [{product: tea, sold: 1, revenue: 1.50}]}
  - name: bad
    model: sales
    given: [{input: orders, rows: [{product: tea, price: 1}, {product: milk}]}]
    expect: {rows: [{product: tea, sold: 2, revenue: 1}]}
  - name: wrong
    model: sale
    expect: {rows: []}
"""

PLACE = SourceLocation("t.yml", 1)
Taut = Callable[..., int]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Pipeline]:
    pipeline = Pipeline(tmp_path_factory.mktemp("shop"), spark)
    pipeline.write("definitions/views.sql", VIEWS)
    pipeline.write("definitions/orders.py", ORDERS)
    pipeline.write("unit/tests.yml", TESTS)
    pipeline.write(
        "orders/1.json",
        '{"id": 1, "product": "tea", "price": 3.50, "at": "2024-01-01T10:00:00Z", "tags": ["a", null]}\n'
        '{"id": 2, "product": "it\'s \\"null\\"", "price": 4.20}\n'
        '{"id": 3, "product": "tea", "price": 0.10}\n',
    )
    yield pipeline
    pipeline.close()


@pytest.fixture
def taut(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Taut:
    monkeypatch.setattr(opening, "start_session", lambda *_: shop.session)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    return lambda *arguments: main(["test", *arguments, "--spec", str(shop.folder / "spark-pipeline.yml")])


def files_of(folder: Path) -> dict[Path, int]:
    """The files of a project with their sizes, without what Python compiled."""
    files = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.stat().st_size for path in files if path.is_file()}


def test_the_answer_of_taut_test(
    taut: Taut, shop: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit = tmp_path / "results/junit.xml"
    files = files_of(shop.folder)
    assert taut("--junit", str(junit)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASSED  sales  good  (")
    assert lines[1].startswith("FAILED  sales  bad  (")
    assert lines[2:5] == [
        "  rows: 2 differ, 0 as expected (unit/tests.yml:7)",
        "       product  sold     revenue",
        "    ~  tea      [2 → 1]  1.00",
    ]
    assert lines[5] == "    +  milk     1        NULL"
    assert "UNIT_TEST_MODEL_NOT_FOUND" in lines[7]
    assert lines[8] == "    hint: did you mean sales?"
    assert lines[-1] == "1 passed, 1 failed, 1 error"
    suites = ET.parse(junit).getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("3", "1", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suites.iter("testcase")}
    assert cases == {"good": [], "bad": ["failure"], "wrong": ["error"]}
    assert taut("good") == 0
    assert files_of(shop.folder) == files


def test_json_and_names(taut: Taut, capsys: pytest.CaptureFixture[str]) -> None:
    assert taut("sales", "--json") == 1
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert (good["outcome"], good["location"], bad["outcome"]) == ("passed", "unit/tests.yml:3", "failed")
    changed, unexpected = bad["checks"][0]["differences"]
    assert (changed["state"], changed["columns"]) == ("changed", ["sold"])
    assert (changed["expected"]["sold"], changed["actual"]["sold"]) == (2, 1)
    assert (unexpected["state"], unexpected["expected"]) == ("unexpected", None)
    assert (good["errors"], bad["errors"]) == ([], [])
    assert taut("god") == 1
    assert "[UNIT_TEST_NOT_FOUND]" in capsys.readouterr().err


def test_json_has_all_errors_of_a_test() -> None:
    test = UnitTest(name="t", model=InputName(("m",), PLACE), location=PLACE)
    error = all_at_once([DefinitionError("A", "first"), DefinitionError("B", "second", hint="h")])
    line = _as_json(TestResult(test=test, outcome=Outcome.ERROR, error=error))
    assert [(each["error_class"], each["hint"]) for each in line["errors"]] == [("A", None), ("B", "h")]


@pytest.mark.parametrize("options", [("--where", "x = 1"), ("sales", "--record", "sales")])
def test_options_that_exclude_each_other(
    taut: Taut, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert taut(*options) == 1
    assert "[CONFLICTING_OPTIONS]" in capsys.readouterr().err


def test_a_recorded_test_passes(taut: Taut, shop: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run()
    capsys.readouterr()
    assert taut("--record", "sales", "--rows", "2") == 1
    assert "[UNIT_TEST_TOO_MANY_ROWS]" in capsys.readouterr().err
    assert taut("--record", "sales", "--where", "order: id = 1") == 1
    assert "[UNIT_TEST_INPUT_NOT_FOUND]" in capsys.readouterr().err
    assert taut("--record", "sales", "--where", "prodct = 'tea'") == 1
    assert "[UNIT_TEST_CONDITION_UNUSED]" in capsys.readouterr().err
    assert taut("--record", "sales", "--where", "orders: price > 1", "--where", "id < 3") == 0
    text = capsys.readouterr().out
    assert "price: 3.50" in text
    file = shop.folder / "unit/recorded.yml"
    assert taut("--record", "sales", "--output", str(file)) == 0
    assert taut("--record", "sales", "--output", str(file)) == 1
    assert "[OUTPUT_NOT_WRITABLE]" in capsys.readouterr().err
    assert taut("sales at checkpoint 1") == 0
    file.write_text(file.read_text().replace("sold: 2", "sold: 3"))
    assert taut("sales at checkpoint 1") == 1
