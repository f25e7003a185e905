"""Which rows a recorded test has, and why one is not recorded; Spark is not started."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from tautochrone.errors import DefinitionError, QueryError
from tautochrone.model.names import FILE_PATH, FILE_STAMP, TableName
from tautochrone.project.unit_test_files import UnitTest
from tautochrone.runtime.unit_tests import recording
from tautochrone.runtime.unit_tests.recording import Condition
from tautochrone.runtime.unit_tests.runner import Outcome, TestResult

MODEL, ORDERS, TOWNS = (TableName("lake", ("default",), name) for name in ("sales", "orders", "towns"))
NAMES = {ORDERS: "orders", TOWNS: "towns"}
COLUMNS = {ORDERS.sql: ["id", "product", FILE_PATH, FILE_STAMP], TOWNS.sql: ["id", "town"]}
TEXT = "unit_tests:\n- {name: t, model: sales, expect: {rows: []}}\n"


class Rows:
    """Rows with columns and conditions, each of which begins with the name of its column."""

    def __init__(self, columns: list[str], met: tuple[str, ...] = ()) -> None:
        self.columns, self.met = columns, met

    def where(self, condition: str) -> Rows:
        if condition.split()[0] not in self.columns:
            raise AnalysisException("[UNRESOLVED_COLUMN.WITH_SUGGESTION] There is no such column.")
        return Rows(self.columns, (*self.met, condition))

    def drop(self, *names: str) -> Rows:
        return Rows([name for name in self.columns if name not in names])


class Session:
    def table(self, name: str) -> Rows:
        return Rows(COLUMNS[name])


def met(*conditions: str) -> list[tuple[str, ...]]:
    parsed = [Condition.parse(each) for each in conditions]
    rows = recording._that_meet(cast("Any", Session()), MODEL, NAMES, parsed)
    return [cast("Rows", rows[table]).met for table in (ORDERS, TOWNS)]


def test_a_condition_is_for_the_inputs_with_its_columns() -> None:
    assert met("id < 3", "town = 'x'", "orders: product = 'tea'") == [
        ("id < 3", "product = 'tea'"),
        ("id < 3", "town = 'x'"),
    ]


def test_a_condition_that_no_input_takes_is_refused() -> None:
    with pytest.raises(QueryError) as raised:
        met("prodct = 'tea'")
    assert raised.value.error_class == "UNIT_TEST_CONDITION_UNUSED"
    assert raised.value.hint == "orders has id, product; towns has id, town"


class Ended:
    """Tests that end in one way."""

    def __init__(self, outcome: Outcome, error: DefinitionError | None = None) -> None:
        self.outcome, self.error = outcome, error

    def run(self, tests: tuple[UnitTest, ...]) -> list[TestResult]:
        return [TestResult(test=test, outcome=self.outcome, error=self.error) for test in tests]


@pytest.mark.parametrize(
    ("ended", "is_stable", "sentence"),
    [
        (Ended(Outcome.FAILED), False, "other rows when it is computed again"),
        (Ended(Outcome.FAILED), True, "another one after it was written as YAML"),
        (Ended(Outcome.ERROR, DefinitionError("X", "it breaks", hint="h")), True, "an error: it breaks"),
    ],
)
def test_why_a_test_is_not_recorded(ended: Ended, is_stable: bool, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence) as raised:
        recording._check_passes(cast("Any", ended), TEXT, MODEL, lambda: is_stable)
    assert raised.value.error_class == "UNIT_TEST_NOT_RECORDED"
    assert ("deterministic" in str(raised.value.hint)) == (not is_stable)


def test_a_test_that_passes_is_not_computed_again() -> None:
    recording._check_passes(cast("Any", Ended(Outcome.PASSED)), TEXT, MODEL, lambda: pytest.fail("computed"))
