"""Queries of public SQL test suites as views over changing tables.

The suites are not part of the project. Clone repositories of `SOURCES` and name their git directories:

    FOREIGN_SQL=duckdb=/path/duckdb/.git,risingwave=/path/risingwave/.git make soak

A path must not contain a comma. `FOREIGN_SQL_REPORT=FOLDER` keeps each part's outcomes for
`python -m tests.sql.foreign.report FOLDER`, which writes the table in the documentation.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.sql.testbed import ViewTestbed

from .measure import run_as_views
from .report import problems, write_outcomes
from .suite import SOURCES, read_suite

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTS = 12
QUERIES = 30
CHANGES = 2


def _git_directories() -> dict[str, Path]:
    entries = filter(None, os.environ.get("FOREIGN_SQL", "").split(","))
    return {name: Path(path) for name, _, path in (entry.partition("=") for entry in entries)}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("source", SOURCES)
def test_views_equal_plain_spark_after_changes(testbed: ViewTestbed, source: str, part: int) -> None:
    git_directory = _git_directories().get(source)
    if git_directory is None:
        pytest.skip(f"FOREIGN_SQL names no git directory of {SOURCES[source].repository}")
    suite = read_suite(git_directory, SOURCES[source], part, PARTS)
    outcomes = run_as_views(testbed, suite, most=QUERIES, changes=CHANGES, seed=part)
    assert outcomes
    report = os.environ.get("FOREIGN_SQL_REPORT")
    if report:
        write_outcomes(Path(report) / f"{source}-{part}.json", source, outcomes.values())
    assert not problems(outcomes.values())
