"""Reasons keep their code and parameters, whoever stores or sends them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tautochrone.model.counts import counted
from tautochrone.model.reason import (
    Reason,
    ReasonCode,
    describe,
    joined_reasons,
    parameters_of,
    reason_fields,
    unclassified,
)
from tautochrone.model.reason_texts import TEXTS

COSTS: dict[str, Any] = {
    "changed": [{"table": "orders", "changed_rows": 3, "rows": 1_000}],
    "clocks": ["the date"],
    "incremental_ms": 300,
    "incremental_measured": False,
    "full_ms": 2_100,
    "full_measured": True,
}
SAMPLES: dict[str, Any] = COSTS | {
    "reasons": [unclassified("a").to_json(), Reason.of(ReasonCode.FIRST_BUILD).to_json()],
    "sources": ["csv:x"],
    "parts": ["query", "settings"],
    "waits_for": None,
    "wait_s": 4.0,
    "keep_last": 10,
    "keep_ms": 604_800_000,
    "spacing_ms": 60_000,
    "older_than_ms": 86_400_000,
}


def sample(code: ReasonCode) -> Reason:
    return Reason(code, {name: SAMPLES.get(name, f"some {name}") for name in parameters_of(code)})


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_code_has_a_text_and_survives_json(code: ReasonCode) -> None:
    reason = sample(code)
    text = describe(reason)
    assert text == str(reason)
    assert "{" not in text
    crossed = Reason.from_json(json.loads(json.dumps(reason.to_json())))
    assert (crossed, hash(crossed)) == (reason, hash(reason))
    assert Reason.stored(text, str(code), json.loads(json.dumps(reason.params))) == reason


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**7))
def test_texts_show_their_values_and_nothing_else(value: int) -> None:
    for code, text in TEXTS.items():
        if not isinstance(text, str):
            continue
        shown = text
        for _, name, spec, _ in Formatter().parse(text):
            if name and spec and spec.startswith("#"):
                shown = shown.replace(f"{{{name}:{spec}}}", counted(value, spec[1:]))
            elif name:
                shown = shown.replace(
                    f"{{{name}:{spec}}}" if spec else f"{{{name}}}", format(value, spec or "")
                )
        assert describe(Reason(code, dict.fromkeys(parameters_of(code), value))) == shown


def test_numbers_are_formatted_as_numbers() -> None:
    assert str(Reason(ReasonCode.RESTART_WAIT_OVER, {"wait_s": 5.0})) == "5 s have passed since it failed"
    first = Reason(ReasonCode.FIRST_BATCHES, {"wait_s": 0.5, "flows": "a"})
    assert str(first) == "the first one waits at most 0.5 s for the first rows of a"
    stored = Reason.stored("a text", "RESTART_WAIT_OVER", {"wait_s": "of another release"})
    assert stored == unclassified("a text")


def test_every_code_is_documented_with_its_parameters() -> None:
    text = (Path(__file__).parents[2] / "docs/reasons.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \|.*\| (.+?) \|$", text, re.MULTILINE))
    documented = {code: frozenset(re.findall(r"`(\w+)`", names)) for code, names in rows.items()}
    assert documented == {str(code): parameters_of(code) for code in ReasonCode}


def test_reasons_of_other_releases_keep_their_text() -> None:
    assert Reason.stored("because", None, None) == unclassified("because")
    assert Reason.stored("because", "OF_NEXT_YEAR", {"x": 1}) == unclassified("because")
    assert Reason.stored("because", "NEW_INPUT", {"other": 1}) == unclassified("because")
    assert Reason.stored("because", "ESTIMATED_COSTS", COSTS | {"changed": 7}) == unclassified("because")
    for data in (None, 7, {"code": "FIRST_BUILD"}, {"text": "x", "params": 7}):
        with pytest.raises(TypeError):
            Reason.from_json(data)


def test_a_parameter_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="NEW_INPUT needs input"):
        Reason.of(ReasonCode.NEW_INPUT)


def test_several_reasons_are_one() -> None:
    first, second = Reason.of(ReasonCode.FIRST_BUILD), unclassified("the rest")
    assert joined_reasons([first]) == first
    assert str(joined_reasons([first, second])) == "first build; the rest"
    with pytest.raises(ValueError, match="no reasons"):
        joined_reasons([])


def test_a_change_of_texts_reaches_nested_ones() -> None:
    reason = joined_reasons([unclassified("a secret"), unclassified("b")])
    assert str(reason.map_texts(lambda text: text.replace("secret", "***"))) == "a ***; b"


def test_fields_of_events_and_lines() -> None:
    reason = Reason.of(ReasonCode.NEW_INPUT, input="orders")
    assert reason_fields("reason", reason) == {
        "reason": "orders is a new input",
        "reason_code": "NEW_INPUT",
        "reason_params": {"input": "orders"},
    }
    assert reason_fields("error", None) == {"error": None, "error_code": None, "error_params": None}


def test_the_reason_of_a_choice_by_costs() -> None:
    costs = "0.3 % of orders changed, the date went on; incremental 0.3 s expected, full 2.1 s measured"
    assert str(Reason(ReasonCode.ESTIMATED_COSTS, COSTS)) == costs
    by_policy = Reason(ReasonCode.ESTIMATED_COSTS, COSTS | {"policy": "incremental"})
    assert str(by_policy) == f"its refresh policy is incremental; {costs}"
