"""Values of unit tests as JSON, for columns of type VARIANT."""

from __future__ import annotations

import pytest

from tautochrone.model.definitions import SourceLocation
from tautochrone.project.unit_test_files import parsed_value
from tautochrone.runtime.unit_tests.typed_rows import RefusedError, json_of

PLACE = SourceLocation("t.yml", 1)


@pytest.mark.parametrize(
    ("written", "json"),
    [
        ("yes", "true"),
        ("Off", "false"),
        ("~", "null"),
        ("+1", "1"),
        ("012", "12"),
        ("0x1F", "31"),
        ("1:30", "90"),
        ("1:30.5", "90.5"),
        ("1_000", "1000"),
        (".5", "0.5"),
        ("1.", "1"),
        ("12345678901234567.890", "12345678901234567.890"),
        ("2024-01-01", '"2024-01-01"'),
        ("'yes'", '"yes"'),
        ("{a: [no, b]}", '{"a": [false, "b"]}'),
    ],
)
def test_values_become_json(written: str, json: str) -> None:
    assert json_of(parsed_value(f"[{written}]", PLACE)) == f"[{json}]"


@pytest.mark.parametrize("written", [".inf", "-.INF", ".nan", "0x_", "!!int x", "!!bool maybe"])
def test_what_json_cannot_spell_is_refused(written: str) -> None:
    with pytest.raises(RefusedError):
        json_of(parsed_value(f"[{written}]", PLACE))
