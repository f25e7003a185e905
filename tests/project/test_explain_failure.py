"""Exceptions of definitions as errors for people."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException

from tautochrone.model.definitions import SourceLocation
from tautochrone.model.names import TableName
from tautochrone.project.explain_failure import explain
from tautochrone.project.validate import did_you_mean


@pytest.mark.parametrize(
    "message",
    [
        "Cannot find matching snapshot ID or reference name for version first",
        "Cannot find a snapshot older than 2026-01-01T00:00:00+00:00",
    ],
)
def test_time_travel_is_refused_by_its_own_class(message: str) -> None:
    error = explain(IllegalArgumentException(message), lambda *_: None, SourceLocation("a.sql", 3))
    assert (error.error_class, error.sqlstate, error.location) == (
        "TIME_TRAVEL_NOT_SUPPORTED", "0A000", "a.sql:3"
    )  # fmt: skip
    assert "VERSION AS OF" in str(error.hint)


def test_function_of_databricks_has_a_hint() -> None:
    failure = AnalysisException("[UNRESOLVED_ROUTINE] Cannot resolve routine `ai_query` on search path [x].")
    error = explain(failure, lambda *_: None, SourceLocation("a.sql", 3))
    assert error.error_class == "UNRESOLVED_ROUTINE"
    assert "ai_query" in str(error.hint)


def test_name_in_another_case_is_named() -> None:
    default = ("default",)
    known = [TableName("lake", default, "ORDERS"), TableName("lake", default, "other")]
    hint = did_you_mean(TableName("lake", default, "orders"), known)
    assert hint == "The project defines default.ORDERS: only upper and lower case differ."
    assert did_you_mean(TableName("lake", default, "othr"), known) == "Did you mean default.other?"
