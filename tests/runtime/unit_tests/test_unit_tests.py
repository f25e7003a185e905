"""Unit tests of one project's datasets, over its analysis: given rows, expected rows, changes, refusals."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import SparkSession

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.errors import SparkDiedError
from tautochrone.project.unit_test_files import UnitTest, read_unit_tests
from tautochrone.runtime.unit_tests import runner
from tautochrone.runtime.unit_tests.following import FollowedView
from tautochrone.runtime.unit_tests.runner import Check, Outcome, TestResult, UnitTests

pytestmark = pytest.mark.spark

ORDERS = '''
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
SCHEMA = """id INT, customer STRING, price DECIMAL(9,2), at TIMESTAMP, tags ARRAY<STRING>,
    extra STRUCT<a: INT, `b c`: STRING>, weights MAP<STRING, DOUBLE>, code BINARY, ratio DOUBLE,
    small SMALLINT, day DATE, is_new BOOLEAN"""


@dp.table
def orders():
    return spark.readStream.schema(SCHEMA).json(str(Path(__file__).parent))


@dp.materialized_view
def doubled():
    return spark.table("orders").selectExpr("id", "price * 2 AS price")
'''

VIEWS = """
CREATE MATERIALIZED VIEW customers AS
SELECT CAST(NULL AS STRING) AS name, CAST(NULL AS STRING) AS town WHERE false;

CREATE TEMPORARY VIEW paid AS SELECT *, price * 2 AS double_price FROM orders WHERE price IS NOT NULL;

CREATE MATERIALIZED VIEW totals AS
SELECT customer, count(*) AS n, sum(price) AS total, max(double_price) AS top FROM paid GROUP BY customer;

CREATE MATERIALIZED VIEW by_town (
    CONSTRAINT has_town EXPECT (town IS NOT NULL) ON VIOLATION DROP ROW,
    CONSTRAINT is_positive EXPECT (total > 0) ON VIOLATION FAIL UPDATE
) AS SELECT town, sum(total) AS total FROM totals LEFT JOIN customers ON name = customer GROUP BY town;

CREATE MATERIALIZED VIEW numbers AS SELECT count(*) AS n FROM paid;

CREATE MATERIALIZED VIEW number_of_paid AS SELECT n, 2 * n AS double_n FROM numbers;

CREATE STREAMING TABLE events (v VARIANT) AS SELECT parse_json(customer) AS v FROM STREAM orders;

CREATE MATERIALIZED VIEW readings AS
SELECT v:ok::STRING AS ok, v:price::STRING AS price FROM events;

CREATE MATERIALIZED VIEW copies AS SELECT * FROM orders;

CREATE MATERIALIZED VIEW recent AS SELECT id, current_date() AS today FROM orders
WHERE at > current_timestamp() - INTERVAL 1 HOUR AND id IN (SELECT max(id) FROM orders);

CREATE MATERIALIZED VIEW ranked AS
SELECT id, row_number() OVER (PARTITION BY customer ORDER BY price) AS r FROM orders;

CREATE STREAMING TABLE strict (id INT NOT NULL, n INT) AS SELECT id, id AS n FROM STREAM orders;

CREATE MATERIALIZED VIEW over_strict AS SELECT * FROM strict;

CREATE MATERIALIZED VIEW of_files AS SELECT max(id) AS newest FROM json.`FOLDER/visits`;

CREATE MATERIALIZED VIEW pairs AS SELECT a.id, b.id AS other, count(*) AS n
FROM orders a LEFT JOIN orders b ON a.customer = b.customer AND a.id < b.id GROUP BY a.id, b.id;

CREATE STREAMING TABLE cheap AS SELECT id, price FROM STREAM orders WHERE price < 10;

CREATE STREAMING TABLE counted AS SELECT window(at, '1 hour') AS w, count(*) AS n
FROM STREAM orders WATERMARK at DELAY OF INTERVAL 1 HOUR GROUP BY window(at, '1 hour');

CREATE STREAMING TABLE current;
CREATE FLOW merging AS AUTO CDC INTO current FROM STREAM(orders) KEYS (id) SEQUENCE BY at
COLUMNS id, customer, price;
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Callable[[str], list[TestResult]]:
    """Runs the tests of one file; all share one analysis."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "d").mkdir()
    (folder / "d/orders.py").write_text(ORDERS)
    (folder / "d/views.sql").write_text(VIEWS.replace("FOLDER", str(folder)))
    (folder / "visits").mkdir()
    (folder / "visits/1.json").write_text('{"id": 1}')
    (folder / "spark-pipeline.yml").write_text(
        "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: d/**\n"
    )
    spec = str(folder / "spark-pipeline.yml")
    with Project(Options(spec=spec), lambda _: None, base=spark.newSession()) as project:
        _, graph = project.analysed()
        unit_tests = UnitTests(graph, project.base, "lake")
    assert not (folder / "storage").exists()

    def run(text: str) -> list[TestResult]:
        (folder / "tests.yml").write_text(textwrap.dedent(text))
        return list(unit_tests.run(read_unit_tests(folder)))

    return run


Run = Callable[[str], list[TestResult]]


def passes(results: list[TestResult]) -> None:
    for result in results:
        differences = [(c.check, c.difference.rows) for c in result.checks if c.difference]
        assert result.error is None, result.error.render()
        assert not differences, f"{result.test.name}: {differences}"
        assert result.outcome is Outcome.PASSED


def error_of(results: list[TestResult]) -> tuple[str, str]:
    (result,) = results
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.hint
    return result.error.error_class, str(result.error.location)


def test_rows_pass_through_views_and_tables(run: Run) -> None:
    """A model alone, over a view that is given, over a view that is computed, and over a chain of tables."""
    passes(
        run("""
        unit_tests:
          - name: over the table
            model: totals
            given:
              - input: ref('orders')
                rows: [{id: 1, customer: a, price: 1.5}, {id: 2, customer: a, price: 2}, {customer: b}]
            expect: {rows: [{customer: a, n: 2, total: 3.50, top: 4}]}
          - name: over the view
            model: totals
            given:
              - input: paid
                rows: [{customer: c, price: 1, double_price: 7}]
            expect: {rows: [{customer: c, top: 7, total: 1, n: 1}]}
          - name: again over the table
            model: totals
            given: [{input: orders, rows: [{customer: a, price: 1}]}]
            expect: {rows: [{customer: a, top: 2}]}
          - name: alone
            model: by_town
            given:
              - {input: ref('totals'), rows: [{customer: a, total: 4}, {customer: b, total: 5}]}
              - {input: ref('customers'), rows: [{name: a, town: x}, {name: b, town: x}]}
            expect: {rows: [{town: x, total: 9}]}
          - name: from the roots, and without who lives nowhere
            model: by_town
            given:
              - {input: "source('raw', 'orders')", rows: [{customer: a, price: 4}, {customer: b, price: 5}]}
              - {input: customers, rows: [{name: a, town: x}]}
            expect: {rows: [{town: x, total: 4}]}
          - name: nothing is given
            model: by_town
            expect: {rows: []}
          - name: over files
            model: of_files
            given: [{input: visits, rows: [{id: 3}, {id: 7}]}]
            expect: {rows: [{newest: 7}]}
          - name: by a Python function
            model: doubled
            given: [{input: orders, rows: [{id: 1, price: 2}]}]
            expect: {rows: [{id: 1, price: 4}]}
        """)
    )


def test_every_type_arrives_as_it_is_written(run: Run) -> None:
    row = (
        "{id: 7, customer: 'it''s \"${x}\" \\', price: 12.30, at: 2024-03-31T02:30:00Z, tags: [a, null, ''], "
        "extra: {a: 1, b c: x}, weights: {k: .nan, l: -0.0}, code: !!binary AAH/, ratio: 1e300, small: -5, "
        "day: 2024-02-29, is_new: yes}"
    )
    text = """
        unit_tests:
          - name: all
            model: copies
            given: [{{input: orders, rows: [{row}, {{}}]}}]
            expect: {{rows: [{{}}, {row}]}}
          - name: texts
            model: copies
            given:
              - input: orders
                format: csv
                rows: |
                  id,customer,price,tags,extra,weights
                  1,"a
                  b",,"[""x"", ""y""]","{{""a"": 2}}","{{""k"": 0.5}}"
            expect:
              rows:
                - {{id: 1, customer: "a\\nb", tags: [x, y], extra: {{a: 2, b c: null}}, weights: {{k: 0.5}}}}
          - name: query
            model: copies
            given: [{{input: orders, format: sql, rows: "SELECT 1 AS id, true AS is_new;"}}]
            expect: {{format: sql, rows: "WITH t AS (SELECT 1 AS id) SELECT id, 'yes' AS is_new FROM t"}}
          - name: values of a query that keep their digits
            model: copies
            given:
              - input: orders
                format: sql
                rows: |
                  WITH t AS (SELECT id, 0.10 AS price, 0.1F AS ratio, DATE'2024-02-29' AS at FROM range(1, 2))
                  SELECT *, map('k', 1) AS weights, array('a', NULL) AS tags, NULL AS code,
                    named_struct('x', 2D, 'y', 3) AS extra, TIMESTAMP'2024-02-29' AS day, 1 AS is_new,
                    ' 5 ' AS small FROM t
            expect:
              rows:
                - {{id: 1, price: 0.1, at: 2024-02-29, weights: {{k: 1}}, tags: [a, null],
                   extra: {{a: 2, b c: 3}}, day: 2024-02-29, is_new: true, small: 5}}
    """
    passes(run(text.format(row=row)))


def test_variant_values_are_json_and_one_that_is_none_ends_its_test_alone(run: Run) -> None:
    first, second, third = run("""
        unit_tests:
          - name: as YAML spells them
            model: readings
            given:
              - input: events
                rows: [{v: {ok: yes, price: 12345678901234567.890}}, {v: {ok: +1, price: .5}}, {v: 012}]
            expect:
              rows: [{ok: 'true', price: '12345678901234567.89'}, {ok: '1', price: '0.5'}, {ok: null}]
          - name: no JSON
            model: readings
            given: [{input: events, rows: [{v: {ok: .inf}}]}]
            expect: {rows: []}
          - name: text is JSON
            model: readings
            given: [{input: events, rows: [{v: '{"ok": false}'}, {v: [{ok: 1}]}]}]
            expect: {rows: [{ok: 'false'}, {ok: null}]}
    """)
    passes([first, third])
    assert error_of([second]) == ("UNIT_TEST_VALUE_INVALID", "tests.yml:12")


TWO_TESTS = """
    unit_tests:
      - {name: a, model: doubled, expect: {rows: []}}
      - {name: b, model: doubled, expect: {rows: []}}
"""


def test_a_defect_ends_one_test_and_the_end_of_spark_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *parts: object) -> None:
            self.is_first = any(isinstance(part, UnitTest) and part.name == "a" for part in parts)

        def check(self) -> None:
            if self.is_first:
                raise KeyError("x")

    monkeypatch.setattr(runner, "_Run", Broken)
    first, second = run(TWO_TESTS)
    assert error_of([first]) == ("INTERNAL_ERROR", "tests.yml:3")
    passes([second])

    def dead() -> None:
        raise SparkDiedError("SPARK_DIED", "it is gone")

    monkeypatch.setattr(runner, "require_live_jvm", dead)
    with pytest.raises(SparkDiedError):
        run(TWO_TESTS)


def test_what_differs(run: Run) -> None:
    (result,) = run("""
        unit_tests:
          - name: t
            model: totals
            given: [{input: orders, rows: [{customer: a, price: 1}, {customer: b, price: 2}]}]
            expect: {rows: [{customer: a, n: 2, total: 1}, {customer: c, n: 9, total: 99}]}
    """)
    assert result.outcome is Outcome.FAILED
    changed, missing, unexpected = result.checks[0].difference.rows
    assert (changed.columns, changed.expected[1], changed.actual[1]) == (("n",), 2, 1)  # type: ignore[index]
    assert (missing.expected[0], missing.actual) == ("c", None)  # type: ignore[index]
    assert (unexpected.expected, unexpected.actual[0]) == (None, "b")  # type: ignore[index]


def test_the_time_of_a_test(run: Run) -> None:
    passes(
        run("""
        unit_tests:
          - name: an hour
            model: recent
            now: 2024-05-05 12:00:00
            given:
              - input: orders
                rows: [{id: 1, at: 2024-05-05 11:30:00}, {id: 2, at: 2024-05-05 11:30:00}]
            expect: {rows: [{id: 2, today: 2024-05-05}]}
            changes: [{input: orders, removed: [{id: 2}]}]
            expect_after: {rows: [{id: 1}]}
        """)
    )


def test_streams_take_their_rows_at_once(run: Run) -> None:
    passes(
        run("""
        unit_tests:
          - name: of a table
            model: cheap
            given: [{input: orders, rows: [{id: 1, price: 9.99}, {id: 2, price: 10}]}]
            expect: {rows: [{id: 1}]}
          - name: of a source
            model: cheap
            given: [{input: source, rows: [{id: 1, price: 9.99}, {id: 2, price: 10}]}]
            expect: {rows: [{id: 1}]}
          - name: merged
            model: current
            given:
              - input: orders
                rows:
                  - {id: 1, customer: b, at: 2024-01-02, price: 5}
                  - {id: 1, customer: a, at: 2024-01-01, price: 4}
                  - {id: 2, customer: a, at: 2024-01-01}
            expect: {rows: [{id: 1, customer: b, price: 5}, {id: 2, customer: a}]}
        """)
    )


def test_a_view_follows_changes(run: Run) -> None:
    results = run("""
        unit_tests:
          - name: groups
            model: totals
            given:
              - input: orders
                rows:
                  - {id: 1, customer: a, price: 1}
                  - {id: 2, customer: a, price: 2}
                  - {id: 3, customer: b, price: 3}
            changes:
              - input: orders
                added: [{id: 4, customer: c, price: 4}, {id: 5, customer: a, price: 9}]
                removed: [{id: 3}, {id: 2}]
            expect: {rows: [{customer: a, total: 3}, {customer: b, total: 3}]}
            expect_after: {rows: [{customer: a, total: 10, top: 18}, {customer: c, total: 4, top: 8}]}
            expect_change:
              added: [{customer: a, total: 10}, {customer: c, total: 4}]
              removed: [{customer: a, total: 3}, {customer: b, total: 3}]
          - name: of a view that is given
            model: totals
            given: [{input: paid, rows: [{customer: a, price: 1}]}]
            changes: [{input: paid, added: [{customer: a, price: 1}]}]
            expect_after: {rows: [{customer: a, n: 2}]}
          - name: of inputs that only the change names
            model: number_of_paid
            changes: [{input: paid, added: [{customer: a, price: 1}]}]
            expect: {rows: [{n: 0, double_n: 0}]}
            expect_after: {rows: [{n: 1, double_n: 2}]}
          - name: of roots
            model: by_town
            given:
              - {input: orders, rows: [{customer: a, price: 1}]}
              - {input: customers, rows: [{name: a, town: x}]}
            changes:
              - {input: customers, added: [{name: a, town: y}], removed: [{name: a, town: x}]}
            expect_change: {added: [{town: y}], removed: [{town: x}]}
          - name: ties
            model: ranked
            given: [{input: orders, rows: [{id: 2, customer: a}, {id: 1, customer: a}]}]
            changes: [{input: orders, added: [{id: 3, customer: a}]}]
            expect_after: {rows: [{r: 1}, {r: 2}, {r: 3}]}
    """)
    passes(results)
    assert all(result.checks[-1].check is Check.FOLLOWED for result in results)


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_are_followed(run: Run, seed: int) -> None:
    random = Random(seed)

    def row() -> str:
        values = random.randrange(6), random.choice(["a", "b", "null"]), random.choice(["1", "2.5", "null"])
        return "{{id: {}, customer: {}, price: {}}}".format(*values)

    given = [row() for _ in range(8)]
    removed, added = random.sample(given, 4), [row() for _ in range(4)]
    tests = [
        f"""
  - name: t
    model: {model}
    given: [{{input: orders, rows: [{", ".join(given)}]}}]
    changes: [{{input: orders, added: [{", ".join(added)}], removed: [{", ".join(removed)}]}}]
    expect: {{rows: []}}"""
        for model in ("totals", "pairs", "ranked")
    ]
    for result in run(f"unit_tests:{''.join(tests)}"):
        assert result.error is None, result.error.render()
        of_rows, followed = result.checks
        # All rows are unexpected, so the view had some.
        assert of_rows.difference
        assert (followed.check, followed.difference.rows) == (Check.FOLLOWED, ())


def test_a_view_that_does_not_follow_a_change_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowedView, "_delta", lambda *_: None)
    (result,) = run("""
        unit_tests:
          - name: t
            model: doubled
            given: [{input: orders, rows: [{id: 1, price: 2}]}]
            changes: [{input: orders, added: [{id: 3, price: 4}]}]
            expect_after: {rows: [{id: 1}, {id: 3}]}
    """)
    assert [(each.check, bool(each.difference)) for each in result.checks] == [
        (Check.ROWS_AFTER, False),
        (Check.FOLLOWED, True),
    ]
    assert result.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("test", "expected", "line"),
    [
        ("{model: nothing}", "UNIT_TEST_MODEL_NOT_FOUND", 3),
        ("{given: [{input: order}]}", "UNIT_TEST_INPUT_NOT_FOUND", 3),
        ("{given: [{input: customers}]}", "UNIT_TEST_INPUT_NOT_FOUND", 3),
        ("{given: [{input: orders}, {input: default.orders}]}", "UNIT_TEST_INPUT_TWICE", 3),
        ("{given: [{input: orders, rows: [{id: 1},\n {idd: 2}]}]}", "UNIT_TEST_COLUMN_NOT_FOUND", 4),
        ("{expect: {rows:\n [{m: 1}]}}", "UNIT_TEST_COLUMN_NOT_FOUND", 4),
        ("{given: [{input: orders, rows: [{id: 1},\n {id: x}]}]}", "UNIT_TEST_VALUE_INVALID", 4),
        ("{given: [{input: orders, rows:\n [{price: 1.234}]}]}", "UNIT_TEST_VALUE_INVALID", 4),
        ("{given: [{input: orders, rows:\n [{extra: {c: 1}}]}]}", "UNIT_TEST_VALUE_INVALID", 4),
        ("{model: over_strict, given: [{input: strict, rows:\n [{n: 1}]}]}", "UNIT_TEST_VALUE_MISSING", 4),
        ("{now: noon}", "UNIT_TEST_VALUE_INVALID", 3),
        (
            "{given: [{input: orders, format: sql, rows: SELECT id FROM nowhere}]}",
            "UNIT_TEST_QUERY_FAILED",
            3,
        ),
        ("{given: [{input: orders, format: sql, rows: DROP TABLE orders}]}", "UNIT_TEST_QUERY_FAILED", 3),
        (
            "{given: [{input: orders, format: sql, rows: SELECT id FROM orders}]}",
            "UNIT_TEST_QUERY_FAILED",
            3,
        ),
        (
            "{expect: {format: sql, rows: SELECT 1 AS n WHERE EXISTS (SELECT * FROM STREAM paid)}}",
            "UNIT_TEST_QUERY_FAILED",
            3,
        ),
        ("{expect: {format: sql, rows:\n SELECT 2.9D AS n}}", "UNIT_TEST_VALUE_INVALID", 4),
        ("{expect: {format: sql, rows:\n SELECT '1.239' AS total}}", "UNIT_TEST_VALUE_INVALID", 4),
        (
            "{given: [{input: orders, format: sql,\n"
            " rows: \"SELECT named_struct('a', 1.5, 'b', '') AS extra\"}]}",
            "UNIT_TEST_VALUE_INVALID",
            4,
        ),
        ("{changes: [{input: orders, removed:\n [{id: 2}]}]}", "UNIT_TEST_ROW_NOT_GIVEN", 4),
        (
            "{model: by_town, given: [{input: orders, rows: [{customer: a, price: 4}]}], changes:\n"
            "    [{input: totals, added: [{total: 1}]}]}",
            "UNIT_TEST_CHANGE_OF_COMPUTED",
            4,
        ),
        (
            "{given: [{input: orders}], changes: [{input:\n paid, added: [{price: 1}]}]}",
            "UNIT_TEST_CHANGE_OF_COMPUTED",
            4,
        ),
        (
            "{model: by_town, changes: [{input: orders, added: []},\n {input: totals, added: []}]}",
            "UNIT_TEST_CHANGE_OF_COMPUTED",
            4,
        ),
        ("{overrides: {vars: {a: 1}}}", "UNIT_TEST_NOT_SUPPORTED", 3),
        ("{given: [{input: this}]}", "UNIT_TEST_NOT_SUPPORTED", 3),
    ],
)
def test_what_is_wrong_with_a_test_is_said_with_its_line(
    run: Run, test: str, expected: str, line: int
) -> None:
    text = f"unit_tests:\n  - <<:\n    - {test}\n    - {{name: t, model: totals, expect: {{rows: []}}}}\n"
    assert error_of(run(text)) == (expected, f"tests.yml:{line}")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("counted", "UNIT_TEST_NOT_SUPPORTED"),
        ("by_town", "EXPECTATION_FAILED"),
        ("strict", "NOT_NULL_ASSERT_VIOLATION"),
    ],
)
def test_what_a_run_would_refuse_or_no_test_can_compute(run: Run, model: str, expected: str) -> None:
    (result,) = run(f"""
        unit_tests:
          - name: t
            model: {model}
            given:
              - {{input: orders, rows: [{{customer: a, price: -1, at: 2024-01-01}}]}}
            expect: {{rows: []}}
    """)
    assert result.error is not None
    assert result.error.error_class == expected
