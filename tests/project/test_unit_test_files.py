"""Files of unit tests: the form of dbt, values as they are written, and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.project.unit_test_files import Fields, Items, Scalar, UnitTest, read_unit_tests


def only_test(folder: Path, text: str) -> UnitTest:
    (folder / "t.yml").write_text(text)
    (test,) = read_unit_tests(folder)
    return test


def texts(test: UnitTest) -> list[list[tuple[str, str | None]]]:
    """The first input's rows, scalars only."""
    rows = test.given[0].rows.rows
    return [[(name, value.text) for name, value in row.values.items()] for row in rows]  # type: ignore[union-attr]


def test_the_form_of_dbt(tmp_path: Path) -> None:
    test = only_test(
        tmp_path,
        """
version: 2
models:
  - name: m
unit_tests:
  - name: sums up
    description: it does
    model: m
    config: {tags: [a], meta: {x: 1}}
    given:
      - input: ref('a')
        rows: [{id: 1}]
      - input: ref("pack", 'b')
      - input: source('raw', 'c')
        format: csv
        rows: |
          id,name

          1,x
    expect:
      rows:
        - {id: 1}
""",
    )
    assert (test.name, str(test.model), test.description, str(test.location)) == (
        "sums up",
        "m",
        "it does",
        "t.yml:6",
    )
    assert [(str(g.input), g.input.is_source) for g in test.given] == [
        ("a", False),
        ("b", False),
        ("raw.c", True),
    ]
    assert [str(row.location) for row in test.given[2].rows.rows] == ["t.yml:19"]
    assert test.expect is not None
    assert test.expect.columns == ("id",)


def test_values_keep_their_text(tmp_path: Path) -> None:
    test = only_test(
        tmp_path,
        """
unit_tests:
  - name: t
    model: m
    given:
      - input: a
        rows:
          - {a: 0.10, b: 12345678901234567.890, c: 2024-01-01, d: yes, e: on, f: null, g: ~}
          - {h: "null", i: 007}
          - {a: .nan, b: -.inf, c: 0x1F, d: 1_000, e: !!binary AAH/, f: '', g: 1e3}
    expect: {rows: []}
""",
    )
    assert texts(test) == [
        [("a", "0.10"), ("b", "12345678901234567.890"), ("c", "2024-01-01"), ("d", "yes"), ("e", "on"),
         ("f", None), ("g", None)],
        [("h", "null"), ("i", "007")],
        [("a", ".nan"), ("b", "-.inf"), ("c", "0x1F"), ("d", "1_000"), ("e", "0001ff"), ("f", ""),
         ("g", "1e3")],
    ]  # fmt: skip
    spelled = [value.spelled for row in test.given[0].rows.rows for value in row.values.values()]  # type: ignore[union-attr]
    assert spelled[3:5] == ["yes", "true"]
    assert spelled[9:13] == ["NaN", "-Infinity", "31", "1000"]


def test_nested_values_and_merged_rows(tmp_path: Path) -> None:
    test = only_test(
        tmp_path,
        """
unit_tests:
  - name: t
    model: m
    given: [{input: a, rows: [&r {x: 1, y: [1, {k: null}]}, {<<: *r, x: 2}]}]
    expect: {rows: []}
""",
    )
    first, second = test.given[0].rows.rows
    items = first.values["y"]
    assert isinstance(items, Items)
    assert isinstance(items.values[1], Fields)
    assert isinstance(second.values["x"], Scalar)
    assert (second.values["x"].text, second.values["y"]) == ("2", items)


def test_fixtures(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "tests/fixtures").mkdir(parents=True)
    (tmp_path / "tests/fixtures/f.csv").write_text('id,text\n1,"a\nb"\n2,\n')
    (tmp_path / "models/g.sql").write_text("SELECT 1 AS id")
    (tmp_path / "models/t.yml").write_text(
        "unit_tests:\n- {name: t, model: m, given: [{input: a, format: csv, fixture: f}],"
        " expect: {format: sql, fixture: g.sql}}\n"
    )
    (test,) = read_unit_tests(tmp_path)
    assert texts(test) == [[("id", "1"), ("text", "a\nb")], [("id", "2"), ("text", None)]]
    assert [str(row.location) for row in test.given[0].rows.rows] == [
        "tests/fixtures/f.csv:2",
        "tests/fixtures/f.csv:4",
    ]
    assert test.expect is not None
    assert test.expect.sql == "SELECT 1 AS id"


def test_files_of_other_things_are_not_read(tmp_path: Path) -> None:
    text = "unit_tests: [{name: t, model: m, expect: {rows: []}}]"
    for folder in (".hidden", "node_modules", "env", "storage", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "t.yaml").write_text(text)
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "other.yml").write_text("{{ no yaml")
    (tmp_path / "dbt_project.yml").write_text("unit_tests: {shop: {+tags: a}}")
    tests = read_unit_tests(tmp_path, [tmp_path / "storage"])
    assert [str(test.location) for test in tests] == ["deep/er/t.yaml:1"]


def test_a_test_that_is_not_enabled_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "t.yml").write_text(
        "unit_tests:\n- {name: t, model: m, config: {enabled: false}, overrides: {vars: {}}}\n"
    )
    assert read_unit_tests(tmp_path) == ()


@pytest.mark.parametrize(
    "extra",
    ["overrides: {macros: {is_incremental: true}}", "versions: {include: [1]}", "given: [{input: this}]"],
)
def test_what_has_no_meaning_refuses_its_test_alone(tmp_path: Path, extra: str) -> None:
    (tmp_path / "t.yml").write_text(
        f"unit_tests:\n- {{name: t, model: m, expect: {{rows: []}},\n   {extra}}}\n"
        "- {name: u, model: m, expect: {rows: []}}\n"
    )
    first, second = read_unit_tests(tmp_path)
    assert first.refused is not None
    assert (first.refused.error_class, first.refused.location) == ("UNIT_TEST_NOT_SUPPORTED", "t.yml:3")
    assert second.refused is None


CSV = "- name: t\n  model: m\n  expect:\n    format: csv\n    rows: |\n"
PASSES = "- {name: t, model: m, expect: {rows: []}}\n"


@pytest.mark.parametrize(
    ("text", "expected", "line"),
    [
        ("7", "UNIT_TEST_INVALID", 2),
        ("- 7", "UNIT_TEST_INVALID", 2),
        ("- {a: [}", "UNIT_TEST_INVALID", 2),
        ("- {model: m}", "UNIT_TEST_INVALID", 2),
        ("- {name: t}", "UNIT_TEST_INVALID", 2),
        ("- {name: t, model: m,\n   expected: 1}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m,\n   name: u}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m}", "UNIT_TEST_WITHOUT_EXPECT", 2),
        ("- {name: t, model: m,\n   expect_after: {rows: []}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows:\n   7}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: [\n   7]}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: [\n   {a: 1, A: 2}]}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: [],\n   format: xml}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: [],\n   fixture: f}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {fixture:\n   f}}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {format: csv, fixture:\n   f}}", "UNIT_TEST_FIXTURE_NOT_FOUND", 3),
        (f"{CSV}      a,b\n      1\n", "UNIT_TEST_INVALID", 8),
        (f"{CSV}      a,A\n      1,2\n", "UNIT_TEST_INVALID", 7),
        ("- {name: t, model: m, expect: {rows: []}, given: [\n   {input: f(x)}]}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: []}, given: [\n   {rows: []}]}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: []}, changes: [\n   {input: a}]}", "UNIT_TEST_INVALID", 3),
        ("- {name: t, model: m, expect: {rows: [\n   {a: !!binary ä}]}}", "UNIT_TEST_INVALID", 3),
        (PASSES + PASSES, "UNIT_TEST_DUPLICATE", 3),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, expected: str, line: int) -> None:
    (tmp_path / "t.yml").write_text(f"unit_tests:\n{text}")
    with pytest.raises(DefinitionError) as raised:
        read_unit_tests(tmp_path)
    assert (raised.value.error_class, raised.value.location) == (expected, f"t.yml:{line}")
