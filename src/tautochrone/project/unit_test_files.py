"""Unit tests of views as values: YAML files in the form of dbt's unit tests, beside the definitions.

A value is kept as its author wrote it, with its line: YAML's own types would lose the last digits of a
decimal number. Only the column that it is for says what it means.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from tautochrone.errors import DefinitionError, all_at_once
from tautochrone.model.definitions import SourceLocation

__all__ = [
    "THIS",
    "Fields",
    "Given",
    "InputChange",
    "InputName",
    "Items",
    "Row",
    "Rows",
    "Scalar",
    "UnitTest",
    "Value",
    "parse_unit_tests",
    "parsed_value",
    "read_unit_tests",
]


THIS = "this"
"""What dbt calls the rows that an incremental model has already."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; `text` is as it is written, None for NULL.

    `tag` is YAML's type of it, such as `int`. Of binary values `text` is hexadecimal.
    """

    text: str | None
    tag: str
    location: SourceLocation

    @property
    def spelled(self) -> str | None:
        """The text as Spark spells it, but for columns of text: YAML has spellings of its own.

        Example:
            >>> Scalar("0x1F", "int", SourceLocation("t.yml")).spelled
            '31'
        """
        return self.text if self.text is None else _spelled(self.text, self.tag)


@dataclass(frozen=True, slots=True)
class Items:
    """The elements of an array."""

    values: tuple[Value, ...]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a struct, or the entries of a map."""

    values: Mapping[str, Value]
    location: SourceLocation


Value = Scalar | Items | Fields


@dataclass(frozen=True, slots=True)
class Row:
    """Values by the name of their column, in the order of the file."""

    values: Mapping[str, Value]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they are listed, or the query that gives them."""

    location: SourceLocation
    rows: tuple[Row, ...] = ()
    sql: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that some row names, once each."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))


@dataclass(frozen=True, slots=True)
class InputName:
    """What an input, or the model, is called: its database where one is named, and its name.

    Attributes:
        parts: as they are written, the name last.
        is_source: written as `source('schema', 'table')`, where the schema may be that of another database.
    """

    parts: tuple[str, ...]
    location: SourceLocation
    is_source: bool = False

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of one input."""

    input: InputName
    rows: Rows


@dataclass(frozen=True, slots=True)
class InputChange:
    """How the rows of one input change; None: no row is added, or removed."""

    input: InputName
    added: Rows | None
    removed: Rows | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTest:
    """One test.

    Attributes:
        given: rows by input; other inputs are empty.
        expect: rows that the model has for them.
        changes: of the inputs, afterwards.
        expect_after: rows that the model has then.
        expect_added, expect_removed: how they differ from those before.
        now: the current time of the test.
        refused: why the test cannot run: it asks for something that has no meaning here.
    """

    name: str
    model: InputName
    location: SourceLocation
    description: str = ""
    given: tuple[Given, ...] = ()
    expect: Rows | None = None
    changes: tuple[InputChange, ...] = ()
    expect_after: Rows | None = None
    expect_added: Rows | None = None
    expect_removed: Rows | None = None
    now: Scalar | None = None
    refused: DefinitionError | None = None


_SUFFIXES = (".yml", ".yaml")
_KEY = "unit_tests"
_SETTINGS_OF_DBT = "dbt_project.yml"
"""There `unit_tests` are settings of tests."""
_FIXTURE_FOLDERS = ("tests/fixtures", "fixtures")
_TEST_KEYS = frozenset(
    {
        "name", "model", "description", "given", "expect", "changes", "expect_after", "expect_change", "now",
        "config",
    }
)  # fmt: skip
_REFUSED = {
    "overrides": "definitions have no macros or variables of dbt that could be overridden",
    "versions": "datasets have no versions as models of dbt have",
}
"""Keys of dbt's unit tests that have no meaning here, with the reason."""
_ROW_KEYS = frozenset({"rows", "format", "fixture"})
_REF = re.compile(r"""ref\(\s*(['"])(?P<first>[^'"]+)\1\s*(?:,\s*(['"])(?P<second>[^'"]+)\3\s*)?\)""")
_SOURCE = re.compile(r"""source\(\s*(['"])(?P<first>[^'"]+)\1\s*,\s*(['"])(?P<second>[^'"]+)\3\s*\)""")


def read_unit_tests(root: Path, without: Sequence[Path] = ()) -> tuple[UnitTest, ...]:
    """All unit tests of a project that are enabled, by file and in the order of each file.

    Args:
        root: the project's folder. Hidden folders and environments of Python in it are left out.
        without: folders that are left out, such as the storage.

    Raises:
        DefinitionError: what is wrong with the files, all at once: `UNIT_TEST_INVALID`,
            `UNIT_TEST_WITHOUT_EXPECT`, `UNIT_TEST_DUPLICATE`, `UNIT_TEST_FIXTURE_NOT_FOUND`.
    """
    errors: list[DefinitionError] = []
    tests: list[UnitTest] = []
    for file in _files(root, without):
        text = file.read_text(encoding="utf-8", errors="replace")
        if _KEY in text:
            tests += _File(root, file, errors).tests(text)
    first: dict[tuple[str, str], UnitTest] = {}
    for test in tests:
        earlier = first.setdefault((str(test.model), test.name), test)
        if earlier is not test:
            errors.append(
                DefinitionError(
                    "UNIT_TEST_DUPLICATE",
                    f"The model {test.model} has two unit tests called {test.name}",
                    sqlstate="42710",
                    location=str(test.location),
                    hint=f"The other one is at {earlier.location}: give each its own name.",
                )
            )
    if errors:
        raise all_at_once(errors)
    return tuple(tests)


def parse_unit_tests(text: str, file: Path) -> tuple[UnitTest, ...]:
    """The unit tests of one file.

    Args:
        text: the file's.
        file: its name, for messages.

    Raises:
        DefinitionError: as of `read_unit_tests`.
    """
    errors: list[DefinitionError] = []
    tests = tuple(_File(file.parent, file, errors).tests(text))
    if errors:
        raise all_at_once(errors)
    return tests


def _files(root: Path, without: Sequence[Path]) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_dir():
            is_environment = (path / "pyvenv.cfg").exists() or path.name == "node_modules"
            if not (path.name.startswith(".") or is_environment or path in without):
                yield from _files(path, without)
        elif path.suffix in _SUFFIXES and path.name != _SETTINGS_OF_DBT:
            yield path


def parsed_value(text: str, location: SourceLocation) -> Value:
    """A value of a struct, an array or a map that is written as JSON in one text.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(text) from error
    if not isinstance(node, yaml.SequenceNode | yaml.MappingNode):
        raise ValueError(text)
    return _value(node, lambda _node: location)


def _value(node: yaml.Node, location_of: Callable[[yaml.Node], SourceLocation]) -> Value:
    location = location_of(node)
    if isinstance(node, yaml.SequenceNode):
        return Items(tuple(_value(item, location_of) for item in node.value), location)
    if isinstance(node, yaml.MappingNode):
        return Fields({name: _value(item, location_of) for name, _, item in _entries(node)}, location)
    tag = node.tag.rpartition(":")[2]
    if tag == "null":
        return Scalar(None, tag, location)
    assert isinstance(node, yaml.ScalarNode)
    if tag == "binary":
        try:
            content = yaml.SafeLoader("").construct_yaml_binary(node)
        except yaml.YAMLError as error:
            raise _invalid(
                "a binary value is no Base64", location, "write the bytes in Base64 after !!binary"
            ) from error
        return Scalar(bytes(content).hex(), tag, location)
    return Scalar(str(node.value), tag, location)


def _entries(node: yaml.MappingNode) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """The names of a mapping with the nodes of key and value, those of merged mappings (`<<`) first. A name
    occurs twice if the mapping itself has it twice."""
    own = [(str(key.value), key, item) for key, item in node.value if not key.tag.endswith(":merge")]
    names = {name for name, _, _ in own}
    merged: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
    for key, content in node.value:
        if key.tag.endswith(":merge"):
            sources = content.value if isinstance(content, yaml.SequenceNode) else [content]
            for source in sources:
                for entry in _entries(source) if isinstance(source, yaml.MappingNode) else ():
                    if entry[0] not in names:
                        merged.setdefault(entry[0], entry)
    return [*merged.values(), *own]


_DIGITS = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_SWITCHES = {"on": "true", "off": "false"}


def _spelled(text: str, tag: str) -> str:
    if tag == "bool":
        return _SWITCHES.get(text.lower(), text)
    if tag == "float" and text.lower().endswith((".nan", ".inf")):
        return text.lower().replace(".nan", "NaN").replace(".inf", "Infinity").removeprefix("+")
    # YAML has numbers to the bases of 2, 8, 16 and 60.
    if (tag == "int" and not _DIGITS.fullmatch(text)) or (tag == "float" and ":" in text):
        try:
            return str(yaml.safe_load(text))
        except (ValueError, yaml.YAMLError):
            return text
    return text.replace("_", "") if tag == "float" else text


class _File:
    """The reader of one file. Of each test that is wrong it keeps one error, and reads on."""

    def __init__(self, root: Path, file: Path, errors: list[DefinitionError]) -> None:
        self._root, self._file, self._errors = root, file, errors
        self._shown = str(file.relative_to(root))

    def tests(self, text: str) -> Iterator[UnitTest]:
        try:
            document = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            location = SourceLocation(self._shown, None if mark is None else mark.line + 1)
            self._errors.append(_invalid(f"Not valid YAML: {problem}", location))
            return
        if not isinstance(document, yaml.MappingNode):
            return
        content = next((node for key, node in document.value if key.value == _KEY), None)
        if content is None or _is_null(content):
            return
        if not isinstance(content, yaml.SequenceNode):
            self._errors.append(_invalid("unit_tests is a list of tests", self._at(content)))
            return
        for node in content.value:
            try:
                test = self._test(node)
            except DefinitionError as error:
                self._errors.append(error)
                continue
            if test is not None:
                yield test

    def _at(self, node: yaml.Node) -> SourceLocation:
        return SourceLocation(self._shown, node.start_mark.line + 1)

    def _fields(self, node: yaml.Node, what: str, known: frozenset[str]) -> dict[str, yaml.Node]:
        """The fields of a mapping; those that are null are left out.

        Raises:
            DefinitionError: it is no mapping, or has a field twice, or one that is not known.
        """
        if not isinstance(node, yaml.MappingNode):
            raise _invalid(f"{what} is a mapping of {', '.join(sorted(known))}", self._at(node))
        fields: dict[str, yaml.Node] = {}
        for name, key, content in _entries(node):
            if name not in known:
                raise _invalid(
                    f"{what} has no field {name}", self._at(key), f"its fields are {', '.join(sorted(known))}"
                )
            if name in fields:
                raise _invalid(f"{what} has the field {name} twice", self._at(key))
            fields[name] = content
        return {name: content for name, content in fields.items() if not _is_null(content)}

    def _text(self, node: yaml.Node | None, what: str, owner: yaml.Node) -> str:
        if node is None:
            raise _invalid(f"{what} is missing", self._at(owner))
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).strip():
            raise _invalid(f"{what} is a text", self._at(node))
        return str(node.value).strip()

    def _list(self, node: yaml.Node | None, what: str) -> Sequence[yaml.Node]:
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise _invalid(f"{what} is a list", self._at(node))
        content: Sequence[yaml.Node] = node.value
        return content

    def _test(self, node: yaml.Node) -> UnitTest | None:
        """One test; None if it is not enabled."""
        fields = self._fields(node, "a unit test", _TEST_KEYS | _REFUSED.keys())
        if not self._is_enabled(fields.get("config")):
            return None
        name = self._text(fields.get("name"), "the name of a unit test", node)
        model = self._text(fields.get("model"), f"the model of the unit test {name}", node)
        test = UnitTest(
            name=name,
            model=InputName(tuple(model.split(".")), self._at(fields["model"])),
            location=self._at(node),
            description=str(fields["description"].value) if "description" in fields else "",
        )
        try:
            return self._with_rows(test, fields)
        except _RefusedTestError as refused:
            return replace(test, refused=refused.error)

    def _with_rows(self, test: UnitTest, fields: Mapping[str, yaml.Node]) -> UnitTest:
        for key, why in _REFUSED.items():
            if key in fields:
                raise _not_supported(f"{key}: {why}", self._at(fields[key]))
        added, removed = self._expected_change(fields.get("expect_change"))
        test = replace(
            test,
            given=tuple(map(self._given, self._list(fields.get("given"), "given"))),
            expect=self._expected(fields.get("expect"), "expect"),
            changes=tuple(map(self._change, self._list(fields.get("changes"), "changes"))),
            expect_after=self._expected(fields.get("expect_after"), "expect_after"),
            expect_added=added,
            expect_removed=removed,
            now=self._now(fields.get("now")),
        )
        self._check(test)
        return test

    def _check(self, test: UnitTest) -> None:
        """Refuse a test that expects nothing, or a change without one."""
        after = test.expect_after or test.expect_added or test.expect_removed
        if test.expect is None and after is None:
            raise DefinitionError(
                "UNIT_TEST_WITHOUT_EXPECT",
                f"The unit test {test.name} expects nothing",
                sqlstate="42601",
                location=str(test.location),
                hint="Write expect with rows; an empty list expects no row.",
            )
        if after is not None and not test.changes:
            raise _invalid(
                f"The unit test {test.name} expects something of a change, and has no changes",
                after.location,
            )

    def _is_enabled(self, node: yaml.Node | None) -> bool:
        if node is None:
            return True
        fields = self._fields(node, "config", frozenset({"enabled", "tags", "meta"}))
        enabled = fields.get("enabled")
        if enabled is None:
            return True
        text = _spelled(str(enabled.value), "bool").lower()
        if text not in ("true", "false", "yes", "no"):
            raise _invalid("enabled is true or false", self._at(enabled))
        return text in ("true", "yes")

    def _now(self, node: yaml.Node | None) -> Scalar | None:
        if node is None:
            return None
        value = _value(node, self._at)
        if not isinstance(value, Scalar):
            raise _invalid("now is a timestamp", self._at(node))
        return value

    def _given(self, node: yaml.Node) -> Given:
        fields = self._fields(node, "an entry of given", _ROW_KEYS | {"input"})
        return Given(self._input(fields.pop("input", None), node), self._rows(fields, node, "given"))

    def _change(self, node: yaml.Node) -> InputChange:
        fields = self._fields(node, "an entry of changes", frozenset({"input", "added", "removed"}))
        name = self._input(fields.get("input"), node)
        added, removed = (self._side(fields.get(side), side) for side in ("added", "removed"))
        if added is None and removed is None:
            raise _invalid(f"The change of {name} has neither added nor removed rows", self._at(node))
        return InputChange(name, added, removed)

    def _side(self, node: yaml.Node | None, what: str) -> Rows | None:
        """The rows of one side of a change: a list, or as `given` has them."""
        if node is None:
            return None
        if isinstance(node, yaml.SequenceNode):
            return self._listed(node, what)
        return self._rows(self._fields(node, what, _ROW_KEYS), node, what)

    def _expected(self, node: yaml.Node | None, what: str) -> Rows | None:
        if node is None:
            return None
        return self._rows(self._fields(node, what, _ROW_KEYS), node, what)

    def _expected_change(self, node: yaml.Node | None) -> tuple[Rows | None, Rows | None]:
        """The rows that a change adds and removes; without rows on a side none are expected there."""
        if node is None:
            return None, None
        fields = self._fields(node, "expect_change", frozenset({"added", "removed"}))
        sides = [self._side(fields.get(side), side) or Rows(self._at(node)) for side in ("added", "removed")]
        return sides[0], sides[1]

    def _input(self, node: yaml.Node | None, owner: yaml.Node) -> InputName:
        text, location = self._text(node, "the input", owner), self._at(node or owner)
        if text == THIS:
            raise _not_supported(
                "the input this stands for rows that an incremental model of dbt has already", location
            )
        if matched := _REF.fullmatch(text):
            return InputName((matched["second"] or matched["first"],), location)
        if matched := _SOURCE.fullmatch(text):
            return InputName((matched["first"], matched["second"]), location, is_source=True)
        if not re.fullmatch(r"[\w.-]+", text):
            raise _invalid(
                f"{text} is no input",
                location,
                "write ref('name'), source('schema', 'name') or just the name",
            )
        return InputName(tuple(text.split(".")), location)

    # -- rows --------------------------------------------------------------------------------------------

    def _rows(self, fields: Mapping[str, yaml.Node], owner: yaml.Node, what: str) -> Rows:
        form = self._text(fields["format"], "format", owner) if "format" in fields else "dict"
        if form not in ("dict", "csv", "sql"):
            raise _invalid(f"The format {form} is none of dict, csv, sql", self._at(fields["format"]))
        rows, fixture = fields.get("rows"), fields.get("fixture")
        if rows is not None and fixture is not None:
            raise _invalid(f"{what} has both rows and a fixture", self._at(fixture))
        if fixture is not None:
            return self._fixture(fixture, form)
        if rows is None:
            return Rows(self._at(owner))
        if form == "dict":
            return self._listed(rows, what)
        if isinstance(rows, yaml.SequenceNode) and not rows.value:
            return Rows(self._at(rows))
        text = self._text(rows, f"rows of the format {form}", owner)
        # The content of a block begins in the line below its sign.
        is_block = getattr(rows, "style", None) in ("|", ">")
        first = SourceLocation(self._shown, rows.start_mark.line + (2 if is_block else 1))
        return _csv_rows(text, first) if form == "csv" else Rows(first, sql=text)

    def _listed(self, node: yaml.Node, what: str) -> Rows:
        rows = []
        for item in self._list(node, f"rows of {what}"):
            value = _value(item, self._at)
            if not isinstance(value, Fields) or not isinstance(item, yaml.MappingNode):
                raise _invalid(f"A row of {what} is a mapping of columns to values", self._at(item))
            names = [name.lower() for name, _, _ in _entries(item)]
            for name in names:
                if names.count(name) > 1:
                    raise _invalid(f"A row of {what} has the column {name} twice", self._at(item))
            rows.append(Row(value.values, value.location))
        return Rows(self._at(node), tuple(rows))

    def _fixture(self, node: yaml.Node, form: str) -> Rows:
        name = self._text(node, "fixture", node)
        if form == "dict":
            raise _invalid("A fixture is of the format csv or sql", self._at(node))
        file_name = name if name.endswith(f".{form}") else f"{name}.{form}"
        folders = [self._file.parent, self._file.parent / "fixtures"]
        folders += [self._root / folder for folder in _FIXTURE_FOLDERS]
        file = next((folder / file_name for folder in folders if (folder / file_name).is_file()), None)
        if file is None:
            searched = ", ".join(dict.fromkeys(str(f.relative_to(self._root)) for f in folders))
            raise DefinitionError(
                "UNIT_TEST_FIXTURE_NOT_FOUND",
                f"There is no file {file_name}",
                sqlstate="58P01",
                location=str(self._at(node)),
                hint=f"It is searched for in the folders {searched}.",
            )
        shown = file.resolve()
        root = self._root.resolve()
        first = SourceLocation(str(shown.relative_to(root) if shown.is_relative_to(root) else shown), 1)
        text = file.read_text(encoding="utf-8")
        return _csv_rows(text, first) if form == "csv" else Rows(first, sql=text)


def _csv_rows(text: str, first: SourceLocation) -> Rows:
    """The rows of CSV with a header; an empty field is NULL.

    Raises:
        DefinitionError: `UNIT_TEST_INVALID`, a line has more or fewer fields than the header.
    """
    reader = csv.reader(io.StringIO(text))
    header: list[str] = []
    rows: list[Row] = []
    line = first.line or 1
    for fields in reader:
        # A field may hold line breaks, so a row begins after the last line of the row before it.
        location, line = SourceLocation(first.file, line), (first.line or 1) + reader.line_num
        if not fields or (len(fields) == 1 and not fields[0].strip() and len(header) != 1):
            continue
        if not header:
            header = [name.strip() for name in fields]
            lowered = [name.lower() for name in header]
            for name in header:
                if lowered.count(name.lower()) > 1:
                    raise _invalid(f"The header has the column {name} twice", location)
            continue
        if len(fields) != len(header):
            raise _invalid(f"A row has {len(fields)} fields, and the header {len(header)}", location)
        values: dict[str, Value] = {
            name: Scalar(field or None, "str", location) for name, field in zip(header, fields, strict=True)
        }
        rows.append(Row(values, location))
    return Rows(first, tuple(rows))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and bool(node.tag.endswith(":null"))


def _invalid(message: str, location: SourceLocation, hint: str | None = None) -> DefinitionError:
    return DefinitionError(
        "UNIT_TEST_INVALID",
        f"The unit tests of this file cannot be read: {message}",
        sqlstate="42601",
        location=str(location),
        hint=hint,
    )


class _RefusedTestError(Exception):
    """One test asks for something that has no meaning here; the others of the file run."""

    def __init__(self, error: DefinitionError) -> None:
        super().__init__(str(error))
        self.error = error


def _not_supported(message: str, location: SourceLocation) -> _RefusedTestError:
    return _RefusedTestError(
        DefinitionError(
            "UNIT_TEST_NOT_SUPPORTED",
            f"The unit test has a part without a meaning here: {message}",
            sqlstate="0A000",
            location=str(location),
            hint="Remove it from the test, or set enabled: false in its config.",
        )
    )
