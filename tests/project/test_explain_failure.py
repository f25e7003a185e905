"""Exceptions of definitions as errors for people."""

from __future__ import annotations

import pytest
from pyspark.errors import IllegalArgumentException

from tautochrone.model.definitions import SourceLocation
from tautochrone.project.explain_failure import explain


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
