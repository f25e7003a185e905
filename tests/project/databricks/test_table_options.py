"""Options of Delta's reader where a definition file reads a table."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.project.databricks.files import METHODS, collected_clauses
from tautochrone.project.databricks.table_options import require_known_options

from .conftest import DialectProject


class Reader:
    """Takes options as the readers of a definition file do."""

    def told(self, method: str, *args: Any, **kwargs: Any) -> Reader:
        apply = next(apply for _, name, apply in METHODS if name == method)
        apply(lambda reader, *_, **__: reader, self, args, kwargs)
        return self


@pytest.mark.parametrize(
    "reader",
    [
        Reader().told("option", "readChangeFeed", "true"),
        Reader().told("option", "readChangeData", True),
        Reader().told("options", startingVersion=3),
        Reader().told("option", "STARTINGTIMESTAMP", "2026-01-01"),
    ],
)
def test_options_that_give_other_rows_are_refused(reader: Reader) -> None:
    with pytest.raises(DefinitionError, match="The table orders is read with") as refused:
        require_known_options(reader, "orders")
    assert refused.value.error_class == "TABLE_OPTION_UNSUPPORTED"
    assert refused.value.hint


def test_options_without_effect_are_collected() -> None:
    reader = Reader().told("option", "skipChangeCommits", "true").told("option", "readChangeFeed", False)
    reader.told("options", ignoreDeletes="false", mergeSchema="true")
    with collected_clauses() as clauses:
        require_known_options(reader, "orders")
    assert clauses == ["skipChangeCommits of a stream over orders"]


@pytest.mark.spark
def test_options_and_hooks_in_a_project(project: DialectProject) -> None:
    text = """
        import dlt

        @dlt.table
        def orders():
            return spark.readStream.schema("id INT").json("@IN@/orders")

        @dlt.table
        def copies():
            return spark.readStream.option("{option}", "true").table("orders")

        @dlt.on_event_hook(max_allowable_consecutive_failures=3)
        def alert(event):
            raise AssertionError
    """
    project.json("orders/1.json", {"id": 1})
    project.define("a.py", text.replace("{option}", "readChangeFeed"))
    with pytest.raises(DefinitionError, match="TABLE_OPTION_UNSUPPORTED") as refused:
        project.pipeline.run()
    assert refused.value.location == "definitions/a.py:10"
    project.define("a.py", text.replace("{option}", "skipChangeCommits"))
    events = project.run()
    assert project.rows("SELECT * FROM copies") == [(1,)]
    reasons = str([event["reason"] for event in events.of("definition_warning")])
    assert "skipChangeCommits" in reasons
    assert "the function alert" in reasons
