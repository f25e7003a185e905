"""Statements in Databricks' SQL as statements that Spark's parser knows, and what they say beyond it.

Parts are replaced in place and lines stay lines, so that messages point at the right one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Expectation, ViolationAction
from tautochrone.project.databricks.files import FileSource
from tautochrone.project.databricks.unsupported import databricks_only_error
from tautochrone.project.sqltext import Token, tokens, unquote
from tautochrone.project.table_properties import POLICY_PROPERTY

__all__ = ["TranslatedStatement", "translate"]

_CONSTRAINTS = ("EXPECT", "PRIMARY", "FOREIGN", "UNIQUE", "CHECK")
_FILE_FUNCTIONS = ("READ_FILES", "CLOUD_FILES")


@dataclass(slots=True)
class TranslatedStatement:
    """A statement for Spark's parser.

    Attributes:
        text: the statement.
        expectations: of the dataset that it creates.
        columns: names for the columns of its query, from a list without types.
        properties: table properties that clauses stand for.
        ignored: clauses without effect here.
        files: by the name of a temporary view that the text reads: the files that it stands for.
    """

    text: str
    expectations: tuple[Expectation, ...] = ()
    columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    files: Mapping[str, FileSource] = field(default_factory=dict)


def translate(text: str, location: str) -> TranslatedStatement:
    """Rewrite one statement; a statement of open-source Spark stays as it is.

    Raises:
        DefinitionError: `DATABRICKS_ONLY`, `INVALID_EXPECTATION`.
    """
    return _Translation(text, location).run()


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    stop: int
    text: str


class _Translation:
    """One statement. `_words` are its tokens without spaces and comments."""

    def __init__(self, text: str, location: str) -> None:
        self._text = text
        self._location = location
        self._words = [token for token in tokens(text) if token.kind not in ("space", "comment")]
        self._upper = [token.text.upper() for token in self._words]
        self._edits: list[_Edit] = []
        self._result = TranslatedStatement(text)

    def run(self) -> TranslatedStatement:
        self._refuse_once()
        if self._upper[:1] == ["CREATE"]:
            self._header()
        self._files()
        for edit in sorted(self._edits, key=lambda edit: edit.start, reverse=True):
            replaced = self._text[edit.start : edit.stop]
            lines = "\n" * (replaced.count("\n") - edit.text.count("\n"))
            self._text = self._text[: edit.start] + edit.text + lines + self._text[edit.stop :]
        self._result.text = self._text
        return self._result

    # -- what is refused --------------------------------------------------------------------------

    def _refuse_once(self) -> None:
        upper = self._upper
        for number in range(len(upper)):
            words = upper[number : number + 3]
            if words in (["INSERT", "INTO", "ONCE"], ["INSERT", "ONCE", "INTO"]) and upper[0] == "CREATE":
                raise databricks_only_error("once", " ".join(words), self._location)

    # -- CREATE … ---------------------------------------------------------------------------------

    def _header(self) -> None:
        words = _Cursor(self._upper, 1)
        refresh = words.take("OR", "REFRESH")
        replace = words.take("OR", "REPLACE")
        first = words.position
        private = words.take("PRIVATE") or words.take("TEMPORARY") or words.take("TEMP")
        streaming = words.take("STREAMING") or words.take("INCREMENTAL")
        live = words.take("LIVE")
        kinds = {("TABLE",): "TABLE", ("VIEW",): "VIEW", ("MATERIALIZED", "VIEW"): "MATERIALIZED"}
        kind = next((kind for phrase, kind in kinds.items() if words.take(*phrase)), "")
        if not kind:
            return
        # Of tables that are no datasets, and of temporary views, Spark knows OR REPLACE itself.
        refresh = refresh or (replace and (live or streaming or kind == "MATERIALIZED"))
        if refresh or live or private:
            spark_words = self._kind_for_spark(kind, private=private, streaming=streaming, live=live)
            last = words.position - 1
            if refresh:
                self._replace(1, 2, "")
            if spark_words:
                self._replace(first, last, spark_words)
        words.take("IF", "NOT", "EXISTS")
        words.name()
        if words.here == "(":
            close = self._closing(words.position)
            self._columns(words.position, close, is_view=kind == "VIEW")
            words.position = close + 1
        self._clauses(words.position)

    def _kind_for_spark(self, kind: str, *, private: bool, streaming: bool, live: bool) -> str:
        """The words of Spark for the dataset; empty where they stand there already."""
        if kind == "VIEW":
            return "TEMPORARY VIEW" if live else ""
        if private:
            self._result.ignored += ("PRIVATE or TEMPORARY",)
        if kind == "MATERIALIZED":
            return "MATERIALIZED VIEW" if private else ""
        if streaming:
            return "STREAMING TABLE"
        return "MATERIALIZED VIEW" if live else ""

    def _columns(self, start: int, stop: int, *, is_view: bool) -> None:
        """Take what Spark does not know out of the list of columns between two brackets."""
        elements = self._elements(start + 1, stop)
        constraints = [element for element in elements if self._is_constraint(*element)]
        columns = [element for element in elements if element not in constraints]
        for element in constraints:
            self._constraint(*element)
        for first, last in columns:
            words = self._upper[first : last + 1]
            if "MASK" in words[2:]:
                raise databricks_only_error("column mask", "A column mask", self._location)
            if "GENERATED" in words[2:]:
                raise databricks_only_error("generated column", "A generated column", self._location)
        untyped = all(first == last or self._upper[first + 1] == "COMMENT" for first, last in columns)
        if columns and untyped and not is_view:
            self._result.columns = tuple(unquote(self._words[first].text) for first, _ in columns)
            if any(first != last for first, last in columns):
                self._result.ignored += ("comments in a list of columns without types",)
            columns = []
        if not columns:
            self._replace(start, stop, "")
        elif constraints:
            self._remove_constraints(constraints, columns)

    def _is_constraint(self, first: int, last: int) -> bool:
        """Whether an element is a constraint, not a column with that name."""
        words = self._upper[first : last + 1]
        return words[0] == "CONSTRAINT" and words[2:3] in [[word] for word in _CONSTRAINTS]

    def _remove_constraints(
        self, constraints: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]
    ) -> None:
        """Remove constraints from a list that keeps columns, each with a comma beside it."""
        first_column = columns[0][0]
        for first, last in constraints:
            if first < first_column:
                self._replace(first, last + 1, "")
            else:
                self._replace(first - 1, last, "")

    def _constraint(self, first: int, last: int) -> None:
        words = _Cursor(self._upper, first + 1)
        name = unquote(self._words[words.position].text)
        words.position += 1
        if not words.take("EXPECT"):
            # A key that informs Databricks' optimiser, which nothing enforces there either.
            self._result.ignored += (f"CONSTRAINT {name}",)
            return
        if words.here != "(":
            raise self._invalid_expectation_error(name, "its condition stands in brackets")
        close = self._closing(words.position)
        condition = self._between(words.position, close).strip()
        words.position = close + 1
        if words.position > last:
            action = ViolationAction.WARN
        elif words.take("ON", "VIOLATION", "DROP", "ROW"):
            action = ViolationAction.DROP
        elif words.take("ON", "VIOLATION", "FAIL", "UPDATE"):
            action = ViolationAction.FAIL
        else:
            raise self._invalid_expectation_error(name, "a violation means DROP ROW or FAIL UPDATE")
        if words.position <= last or not condition:
            raise self._invalid_expectation_error(name, "it ends after the action")
        self._result.expectations += (Expectation(name, condition, action),)

    def _invalid_expectation_error(self, name: str, why: str) -> DefinitionError:
        return DefinitionError(
            "INVALID_EXPECTATION",
            f"The expectation {name} cannot be read: {why}",
            location=self._location,
            hint="Write CONSTRAINT name EXPECT (condition) ON VIOLATION DROP ROW.",
        )

    def _clauses(self, start: int) -> None:
        """Clauses between the columns and AS."""
        words = _Cursor(self._upper, start)
        properties: dict[str, str] = {}
        while words.here and words.here != "AS":
            first = words.position
            scheduled = words.take("SCHEDULE", "REFRESH") or words.take("SCHEDULE")
            if scheduled or words.take("LOCATION") or words.take("TRIGGER", "ON"):
                self._until_clause(words)
                self._ignore(first, words.position - 1)
            elif words.take("CLUSTER", "BY", "AUTO"):
                self._ignore(first, words.position - 1)
            elif words.take("WITH", "ROW", "FILTER") or words.take("ROW", "FILTER"):
                raise databricks_only_error("row_filter", "A row filter", self._location)
            elif words.take("REFRESH", "POLICY"):
                policy = words.here.lower()
                words.position += 1
                if words.take("STRICT"):
                    policy += "_strict"
                properties[POLICY_PROPERTY] = policy
                self._replace(first, words.position - 1, "")
            elif words.here == "(":
                words.position = self._closing(words.position) + 1
            else:
                words.position += 1
        self._result.properties = properties

    def _until_clause(self, words: _Cursor) -> None:
        starts = (
            "AS", "COMMENT", "TBLPROPERTIES", "PARTITIONED", "CLUSTER", "USING", "SELECT", "REFRESH", "WITH",
            "LOCATION", "SCHEDULE", "TRIGGER",
        )  # fmt: skip
        while words.here and words.here not in starts:
            words.position += 1

    def _ignore(self, first: int, last: int) -> None:
        self._result.ignored += (self._between(first - 1, last + 1).strip(),)
        self._replace(first, last, "")

    # -- files ------------------------------------------------------------------------------------

    def _files(self) -> None:
        number = 0
        files: dict[str, FileSource] = {}
        while number < len(self._words):
            is_call = self._upper[number] in _FILE_FUNCTIONS and self._upper[number + 1 : number + 2] == ["("]
            if not is_call:
                number += 1
                continue
            close = self._closing(number + 1)
            first, last, streaming = self._around(number, close)
            source = self._source(number, close, streaming=streaming)
            digest = hashlib.sha256(repr(source).encode()).hexdigest()[:12]
            name = f"__taut_files_{digest}"
            files[name] = source
            # `CREATE STREAMING TABLE` takes a temporary view over a stream as it is.
            self._replace(first, last, name)
            number = close + 1
        self._result.files = files

    def _around(self, start: int, close: int) -> tuple[int, int, bool]:
        """The call with the STREAM before it, and whether it is a stream."""
        if self._upper[start - 1 : start] == ["STREAM"]:
            return start - 1, close, True
        wrapped = self._upper[start - 2 : start] == ["STREAM", "("]
        if wrapped and self._upper[close + 1 : close + 2] == [")"]:
            return start - 2, close + 1, True
        return start, close, self._upper[start] == "CLOUD_FILES"

    def _source(self, start: int, close: int, *, streaming: bool) -> FileSource:
        positional: list[str] = []
        options: dict[str, str] = {}
        for first, last in self._elements(start + 2, close):
            if self._upper[first + 1 : first + 3] == ["=", ">"]:
                options[self._words[first].text] = self._literal_value(first + 3, last)
            elif self._upper[first : first + 2] == ["MAP", "("]:
                pairs = [self._literal_value(*part) for part in self._elements(first + 2, last)]
                options.update(zip(pairs[::2], pairs[1::2], strict=False))
            else:
                positional.append(self._literal_value(first, last))
        path = options.pop("path", None) or (positional[0] if positional else "")
        if len(positional) > 1:
            options["format"] = positional[1]
        schema = options.pop("schema", None)
        is_function = self._upper[start] == "READ_FILES"
        return FileSource(path, options, schema, streaming=streaming, infers_types=is_function)

    def _literal_value(self, first: int, last: int) -> str:
        token = self._words[first]
        if first != last and not (token.text == "-" and first + 1 == last):
            raise DefinitionError(
                "DATABRICKS_ONLY",
                f"{self._between(first - 1, last + 1).strip()} is no literal: arguments of read_files are",
                sqlstate="0A000",
                location=self._location,
                hint="Write the value, or a ${parameter} of the pipeline's configuration within quotes.",
            )
        text = "".join(word.text for word in self._words[first : last + 1])
        return _unquoted(token) if token.kind == "string" else text

    # -- text -------------------------------------------------------------------------------------

    def _elements(self, start: int, stop: int) -> list[tuple[int, int]]:
        """First and last word of what stands between commas, from `start` to before `stop`."""
        elements: list[tuple[int, int]] = []
        first, depth, types = start, 0, 0
        for number in range(start, stop):
            word = self._words[number].text
            depth += {"(": 1, ")": -1}.get(word, 0)
            # Elsewhere these signs compare, or are part of an arrow. Within brackets no comma counts anyway.
            if depth:
                continue
            if word == "<" and self._upper[number - 1] in ("ARRAY", "MAP", "STRUCT"):
                types += 1
            elif word == ">" and types:
                types -= 1
            if word == "," and types == 0:
                elements.append((first, number - 1))
                first = number + 1
        if first < stop:
            elements.append((first, stop - 1))
        return [element for element in elements if element[0] <= element[1]]

    def _closing(self, start: int) -> int:
        """The bracket that closes the one at `start`."""
        depth = 0
        for number in range(start, len(self._words)):
            depth += {"(": 1, ")": -1}.get(self._words[number].text, 0)
            if depth == 0:
                return number
        return len(self._words) - 1

    def _between(self, before: int, after: int) -> str:
        """The text after one word and before another."""
        start = self._words[before].start + len(self._words[before].text)
        stop = self._words[after].start if after < len(self._words) else len(self._text)
        return self._text[start:stop]

    def _replace(self, first: int, last: int, text: str) -> None:
        stop = self._words[last].start + len(self._words[last].text)
        self._edits.append(_Edit(self._words[first].start, stop, text))


@dataclass(slots=True)
class _Cursor:
    """A place in the words of a statement."""

    words: Sequence[str]
    position: int

    @property
    def here(self) -> str:
        return self.words[self.position] if self.position < len(self.words) else ""

    def take(self, *phrase: str) -> bool:
        """Step over a phrase if it stands here."""
        if tuple(self.words[self.position : self.position + len(phrase)]) != phrase:
            return False
        self.position += len(phrase)
        return True

    def name(self) -> None:
        """Step over a dotted name, whose parts may hold a ${parameter}."""
        joints = ("$", "{", "}", ".", "-")
        self.position += 1
        while self.here and (self.here in joints or self.words[self.position - 1] in joints[:-1]):
            self.position += 1


def _unquoted(token: Token) -> str:
    quote, text = token.text[-1], token.text
    body = text[text.index(quote) + 1 : -1]
    return body if text[0] in "rR" else body.replace(quote * 2, quote).replace("\\" + quote, quote)
