"""Definitions of a capture: names that would be taken twice, policies and properties that do not exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import DefinitionError
from tautochrone.sources.capture.definitions import (
    check_columns,
    check_datasets,
    check_name,
    check_policy,
    check_properties,
    dataset_name,
    require_own_names,
)

DEFINITIONS = """
    from tautochrone.sources.capture.definitions import define_log, define_table

    for capture, dataset in {captures!r}:
        define_log(capture, f"log_{{capture}}", "the log", None, "full")
        define_table(
            dataset, log_table=f"{{capture}}_log", relation="of the capture " + capture, keys=["id"],
            columns=["columns['id'] AS id"], comment="", invalid=[], invalid_values="fail", properties={{}},
        )
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "captures",
    [
        # The second has a table of the name of the first's, of the log of the first, and of its own log.
        [("a", dataset_name("a", "b", "c")), ("a_b", dataset_name("a_b", "C"))],
        [("a_b", dataset_name("a_b", "c")), ("a", dataset_name("a", "b_log"))],
        [("a", dataset_name("a", "b.log")), ("a_b", dataset_name("a_b", "c"))],
    ],
)
def test_two_captures_that_give_one_name_are_refused(
    pipeline: Pipeline, captures: list[tuple[str, str]]
) -> None:
    pipeline.write("definitions/p.py", DEFINITIONS.format(captures=captures))
    with pytest.raises(DefinitionError) as refused:
        pipeline.run()
    assert refused.value.error_class == "PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT"
    assert "capture" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("check", "error_class"),
    [
        (lambda: check_name("Shop"), "CAPTURE_NAME_INVALID"),
        (lambda: check_name("s" * 42), "CAPTURE_NAME_INVALID"),
        (lambda: check_policy("shop", "mode", "lite", ("full", "light")), "CAPTURE_POLICY_UNKNOWN"),
        (
            lambda: check_datasets("shop", [("shop_a", "public.a"), ("SHOP_A", "eu.a")]),
            "CAPTURED_TABLE_NAME_TAKEN",
        ),
        (lambda: check_datasets("shop", [("shop_log", "public.log")]), "CAPTURED_TABLE_NAME_TAKEN"),
        (lambda: check_columns("shop", "public.a", ["id", "ID"]), "CAPTURED_COLUMN_NAME_TAKEN"),
        (lambda: check_columns("shop", "public.a", ["__taut_point"]), "CAPTURED_COLUMN_NAME_TAKEN"),
        (lambda: require_own_names("shop", ["a.b.c"]), "CAPTURED_TABLE_NAME_TAKEN"),
        (lambda: check_properties("shop", {"public.b": {}}, ["public.a"]), "CAPTURE_PROPERTIES_INVALID"),
        (
            lambda: check_properties("shop", {"*.*": {"tautochrone.apply.keys": "id"}}, ["public.a"]),
            "CAPTURE_PROPERTIES_INVALID",
        ),
    ],
)
def test_wrong_definitions_are_refused(check: Callable[[], None], error_class: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        check()
    assert refused.value.error_class == error_class
    assert refused.value.hint


def test_a_pattern_may_match_no_table() -> None:
    check_properties("shop", {"eu.*": {"tautochrone.sinks": "mirror"}}, ["public.a"])
