"""Options are read, and refused, in the same way by all adapters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tautochrone.errors import SinkError
from tautochrone.sinks.common.options import (
    needs_package,
    positive_number,
    refuse_password,
    require_known,
    require_option,
    whole_number,
)


def test_numbers_have_defaults_and_bounds() -> None:
    assert positive_number("mirror", {}, "chunk_rows", 5) == 5
    assert positive_number("mirror", {"chunk_rows": "7"}, "chunk_rows", 5) == 7
    assert whole_number("mirror", {"task_rows": "0"}, "task_rows", 5, least=0) == 0


@pytest.mark.parametrize(
    ("read", "error_class"),
    [
        (lambda: positive_number("mirror", {"chunk_rows": "0"}, "chunk_rows", 5), "SINK_OPTION_INVALID"),
        (lambda: positive_number("mirror", {"chunk_rows": "-1"}, "chunk_rows", 5), "SINK_OPTION_INVALID"),
        (lambda: positive_number("mirror", {"chunk_rows": "many"}, "chunk_rows", 5), "SINK_OPTION_INVALID"),
        (lambda: require_option("mirror", "mariadb", {}, "url", "Write one."), "SINK_OPTION_MISSING"),
        (lambda: require_known("mirror", {"urls": "x"}, {"url"}), "SINK_OPTION_INVALID"),
        (lambda: refuse_password("mirror", ""), "SINK_OPTION_INVALID"),
    ],
)
def test_wrong_options_are_refused(read: Callable[[], object], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        read()
    assert refused.value.error_class == error_class
    assert refused.value.hint


def test_options_with_a_known_prefix_are_taken() -> None:
    require_known("mirror", {"url": "x", "kafka.acks": "all"}, {"url"}, ("kafka.",))
    refuse_password("mirror", None)


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(SinkError, match="SINK_PACKAGE_MISSING") as refused, needs_package("mirror", "x", "y"):
        raise ImportError("x")
    assert "tautochrone[y]" in str(refused.value.hint)
