"""The files of invariants: next to the spec, one query each, over tables of the pipeline."""

from __future__ import annotations

import pytest

from tautochrone.model.names import NOW

from .conftest import ProjectMaker, lake, schema_of

VIEWS = """
    CREATE TEMPORARY VIEW numbers AS SELECT id FROM range(3);
    CREATE MATERIALIZED VIEW low AS SELECT id FROM numbers;
    CREATE MATERIALIZED VIEW high AS SELECT id + 1 AS id FROM low;
    CREATE STREAMING TABLE rates AS SELECT * FROM STREAM low;
"""


def test_they_are_resolved_like_definitions_and_belong_to_the_last_table(project: ProjectMaker) -> None:
    project.external[lake("src.known")] = schema_of("id BIGINT")
    graph = project.graph(
        {
            "defs/a.sql": VIEWS,
            # It has the name of a table of the pipeline, and reads it.
            "invariants/low.sql": "SELECT * FROM low EXCEPT SELECT id FROM src.known;",
            "invariants/both.sql": "-- late\nSELECT now() FROM high JOIN spark_catalog.default.low",
            "invariants/notes.txt": "no SQL",
        }
    )
    both, low = graph.invariants
    assert (both.name, str(both.query.flow.location)) == ("both", "invariants/both.sql:2")
    assert both.tables == {lake("high"), lake("low"), NOW}
    assert both.checked_with == lake("high")
    assert (low.name, low.checked_with) == ("low", lake("low"))
    assert low.tables == {lake("low"), lake("src.known")}
    assert graph.only({lake("low")}).invariants == (low,)
    assert graph.only({lake("rates")}).invariants == ()


@pytest.mark.parametrize(
    ("text", "error_class", "location"),
    [
        ("SELECT\n  x FROM nowhere", "TABLE_OR_VIEW_NOT_FOUND", "bad.sql:2"),
        ("SELECT 1,\n  FRM low WHERE", "PARSE_SYNTAX_ERROR", "bad.sql:2"),
        ("SELECT idd FROM low", "UNRESOLVED_COLUMN", "bad.sql:1"),
        ("SELECT strange(id) FROM low", "UNRESOLVED_ROUTINE", "bad.sql:1"),
        ("DELETE FROM low", "INVARIANT_NOT_A_QUERY", "bad.sql:1"),
        ("WITH x AS (SELECT 1 AS id) INSERT INTO low SELECT * FROM x", "INVARIANT_NOT_A_QUERY", "bad.sql:1"),
        ("CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1", "INVARIANT_NOT_A_QUERY", "bad.sql:1"),
        ("CREATE MATERIALIZED VIEW x AS SELECT * FROM low", "INVARIANT_NOT_A_QUERY", "bad.sql:1"),
        ("SET a = b", "INVARIANT_NOT_A_QUERY", "bad.sql:1"),
        ("SELECT 1; SELECT 2", "INVARIANT_NOT_A_QUERY", "bad.sql"),
        ("-- nothing", "INVARIANT_NOT_A_QUERY", "bad.sql"),
        ("SELECT * FROM STREAM low", "INVARIANT_IS_A_STREAM", "bad.sql:1"),
        ("SELECT * FROM low WHERE rand() < 0", "INVARIANT_NOT_DETERMINISTIC", "bad.sql:1"),
        ("SELECT 1", "INVARIANT_WITHOUT_DATASET", "bad.sql:1"),
    ],
)
def test_what_is_no_query_over_the_pipeline_is_refused(
    project: ProjectMaker, text: str, error_class: str, location: str
) -> None:
    error = project.error({"defs/a.sql": VIEWS, "invariants/bad.sql": text})
    assert error.error_class.startswith(error_class), error
    assert str(error.location) == f"invariants/{location}"
