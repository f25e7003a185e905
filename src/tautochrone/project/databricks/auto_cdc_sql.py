"""`AUTO CDC INTO` and `APPLY CHANGES INTO`: clauses that Spark 4.1's parser does not know.

CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n …
APPLY CHANGES INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n …
CREATE OR REFRESH STREAMING TABLE t FLOW AUTO CDC FROM STREAM(s) KEYS (id) SEQUENCE BY n …
CREATE FLOW f AS AUTO CDC INTO t FROM SNAPSHOT (SELECT …) KEYS (id) …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.project.databricks.unsupported import databricks_only
from tautochrone.project.sqltext import Token, split_name, tokens, unquote

__all__ = ["AutoCdcClause", "auto_cdc_clause"]

_CLAUSES: tuple[tuple[str, ...], ...] = (
    ("KEYS",),
    ("IGNORE", "NULL", "UPDATES"),
    ("APPLY", "AS", "DELETE", "WHEN"),
    ("APPLY", "AS", "TRUNCATE", "WHEN"),
    ("SEQUENCE", "BY"),
    ("SYSTEM", "SEQUENCE", "BY"),
    ("COLUMNS", "TO", "UPDATE"),
    ("COLUMNS",),
    ("STORED", "AS", "SCD", "TYPE"),
    ("STORED", "AS"),
    ("TRACK", "HISTORY", "ON"),
)
_STARTS = (("AUTO", "CDC"), ("APPLY", "CHANGES"))
_HINT = "see docs/auto-cdc.md for the clauses: FROM STREAM(s) KEYS (id) SEQUENCE BY n …"


@dataclass(frozen=True, slots=True)
class AutoCdcClause:
    """A statement's AUTO CDC flow.

    Attributes:
        flow: its name; empty: that of the target.
        target: empty where the statement creates the target itself.
        query: the query of the source, or of the snapshots, on the lines on which the statement has it.
        table_text: the `CREATE STREAMING TABLE` before the flow, or an empty text.
    """

    flow: tuple[str, ...]
    target: tuple[str, ...]
    query: str
    auto_cdc: AutoCdc
    table_text: str


def auto_cdc_clause(text: str, location: str, substitute: Callable[[str], str] = str) -> AutoCdcClause | None:
    """The AUTO CDC flow of a statement; None: it has none.

    Args:
        substitute: a text with the values of its `${parameters}`. Names are read here; query and expressions
            keep theirs for Spark's parser.

    Raises:
        DefinitionError: `AUTO_CDC_SYNTAX`, `AUTO_CDC_ARGUMENT_NOT_SUPPORTED`, `DATABRICKS_ONLY`.
    """
    return _AutoCdcParser(text, location, substitute).parse()


class _AutoCdcParser:
    """One statement. `_words` are its tokens without spaces and comments."""

    def __init__(self, text: str, location: str, substitute: Callable[[str], str]) -> None:
        self._text = text
        self._location = location
        self._substitute = substitute
        self._words = _words(text)
        self._upper = [token.text.upper() if token.kind == "name" else token.text for token in self._words]
        self._depths = _depths(self._upper)

    def parse(self) -> AutoCdcClause | None:
        start = self._start()
        if start is None:
            return None
        position, table_text = start + 2, ""
        flow: tuple[str, ...] = ()
        target: tuple[str, ...] = ()
        is_once = self._upper[position : position + 1] == ["ONCE"]
        position += is_once
        if self._upper[start - 1 : start] == ["FLOW"]:
            table_text = self._text[: self._words[start - 1].start].rstrip()
        else:
            if self._upper[position : position + 1] != ["INTO"]:
                raise self._invalid("INTO and the name of a streaming table is missing")
            source = self._require_keyword("FROM", position)
            target = self._name(position + 1, source)
            position = source
            if self._upper[:2] == ["CREATE", "FLOW"]:
                end = self._require_keyword("AS", 2)
                # CREATE FLOW name COMMENT 'text' AS …: comments of flows are shown nowhere.
                end -= 2 if end > 4 and self._upper[end - 2] == "COMMENT" else 0
                flow = self._name(2, end)
        if self._upper[position : position + 1] != ["FROM"]:
            raise self._invalid("FROM and a stream is missing")
        first = self._next_clause(position + 1)
        if self._upper[position + 1 : position + 3] == ["SNAPSHOT", "("]:
            if is_once:
                raise databricks_only("once", "AUTO CDC ONCE INTO … FROM SNAPSHOT", self._location)
            query = self._snapshot_query(position + 2, first)
            return AutoCdcClause(flow, target, query, self._from_snapshots(first), table_text)
        query = self._query(position + 1, first)
        auto_cdc = replace(self._auto_cdc(first), is_once=is_once)
        return AutoCdcClause(flow, target, query, auto_cdc, table_text)

    def _start(self) -> int | None:
        """Where AUTO CDC or APPLY CHANGES stands, as a word of the statement itself."""
        for number in range(len(self._upper) - 2):
            if self._depths[number] == 0 and tuple(self._upper[number : number + 2]) in _STARTS:
                before = self._upper[:number]
                is_flow = before[:2] == ["CREATE", "FLOW"] and before[-1] == "AS"
                if not before or is_flow or before[-1] == "FLOW":
                    return number
        return None

    def _auto_cdc(self, first: int) -> AutoCdc:
        parts = self._parts(first)
        for unsupported in (("SYSTEM", "SEQUENCE", "BY"), ("COLUMNS", "TO", "UPDATE"), ("STORED", "AS")):
            if unsupported in parts:
                raise DefinitionError(
                    "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
                    f"AUTO CDC does not take {' '.join(unsupported)} {self._between(parts[unsupported])}",
                    sqlstate="0A000",
                    location=self._location,
                    hint="leave the clause out; tables are STORED AS SCD TYPE 1 or 2",
                )
        ignored, null_ignoring = parts.get(("IGNORE", "NULL", "UPDATES")), None
        if ignored is not None and ignored[0] != ignored[1]:
            if self._upper[ignored[0]] != "ON":
                raise self._invalid("IGNORE NULL UPDATES is followed by ON and columns, or by another clause")
            null_ignoring = self._columns((ignored[0] + 1, ignored[1]))
        sequence = self._between(parts.get(("SEQUENCE", "BY")))
        if not sequence:
            raise self._invalid("SEQUENCE BY and an expression is missing")
        return AutoCdc(
            keys=self._keys(parts),
            sequence=sequence,
            delete=self._between(parts.get(("APPLY", "AS", "DELETE", "WHEN"))) or None,
            truncate=self._between(parts.get(("APPLY", "AS", "TRUNCATE", "WHEN"))) or None,
            columns=self._columns(parts.get(("COLUMNS",))),
            is_ignoring_nulls=ignored is not None,
            null_ignoring=null_ignoring,
            scd_type=self._scd_type(parts),
            tracked=self._columns(parts.get(("TRACK", "HISTORY", "ON"))),
        )

    def _from_snapshots(self, first: int) -> AutoCdc:
        parts = self._parts(first)
        known = {("KEYS",), ("STORED", "AS", "SCD", "TYPE"), ("TRACK", "HISTORY", "ON")}
        unknown = [" ".join(clause) for clause in parts if clause not in known]
        if unknown:
            raise self._invalid(f"FROM SNAPSHOT does not go with {unknown[0]}")
        return AutoCdc(
            keys=self._keys(parts),
            sequence=None,
            scd_type=self._scd_type(parts),
            tracked=self._columns(parts.get(("TRACK", "HISTORY", "ON"))),
            takes_snapshots=True,
        )

    def _parts(self, first: int) -> dict[tuple[str, ...], tuple[int, int]]:
        """By clause, the words that follow it."""
        parts: dict[tuple[str, ...], tuple[int, int]] = {}
        for at in range(first, len(self._words)):
            if self._upper[at] == "WHERE" and self._depths[at] == 0:
                raise DefinitionError(
                    "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
                    f"AUTO CDC does not take {self._between((at, self._next_clause(at)))}",
                    sqlstate="0A000",
                    location=self._location,
                    hint="filter in a temporary view over the stream, and name it as the source",
                )
        position = first
        while position < len(self._words):
            clause = self._clause_at(position)
            assert clause is not None
            after = position + len(clause)
            end = self._next_clause(after)
            if clause in parts:
                raise self._invalid(f"{' '.join(clause)} stands twice")
            parts[clause] = after, end
            position = end
        return parts

    def _keys(self, parts: Mapping[tuple[str, ...], tuple[int, int]]) -> tuple[str, ...]:
        keys = self._columns(parts.get(("KEYS",)))
        return () if keys is None else keys.names

    def _scd_type(self, parts: Mapping[tuple[str, ...], tuple[int, int]]) -> int:
        text = self._substitute(self._between(parts.get(("STORED", "AS", "SCD", "TYPE")))) or "1"
        return int(text) if text.isdecimal() else 0

    # -- clauses ----------------------------------------------------------------------------------

    def _clause_at(self, position: int) -> tuple[str, ...] | None:
        if self._depths[position] != 0:
            return None
        for clause in _CLAUSES:
            if tuple(self._upper[position : position + len(clause)]) == clause:
                return clause
        return None

    def _next_clause(self, start: int) -> int:
        positions = range(start, len(self._words))
        return next((at for at in positions if self._clause_at(at) is not None), len(self._words))

    def _require_keyword(self, word: str, start: int) -> int:
        positions = range(start, len(self._words))
        at = next((at for at in positions if self._upper[at] == word and self._depths[at] == 0), None)
        if at is None:
            raise self._invalid(f"{word} is missing")
        return at

    def _name(self, start: int, stop: int) -> tuple[str, ...]:
        text = self._substitute(self._between((start, stop)))
        parts = split_name(text)
        if not parts:
            raise self._invalid(f"{text or 'nothing'} is no name")
        return parts

    def _columns(self, part: tuple[int, int] | None) -> ColumnChoice | None:
        """`a, b`, `(a, b)` or `* EXCEPT (a, b)`."""
        if part is None:
            return None
        text = self._substitute(self._between(part))
        words = _words(text)
        start = [word.text.upper() for word in words[:2]]
        if start == ["*"]:
            return ColumnChoice((), is_except=True)
        is_except = start == ["*", "EXCEPT"]
        if is_except:
            words = words[2:]
        if [word.text for word in (*words[:1], *words[-1:])] == ["(", ")"]:
            words = words[1:-1]
        names, commas = words[::2], words[1::2]
        is_list = all(name.kind == "name" and not name.text[0].isdigit() for name in names)
        if not names or not is_list or any(comma.text != "," for comma in commas):
            raise self._invalid(f"{text or 'nothing'} is no list of columns")
        return ColumnChoice(tuple(unquote(name.text) for name in names), is_except=is_except)

    # -- text -------------------------------------------------------------------------------------

    def _query(self, start: int, stop: int) -> str:
        source = self._between((start, stop))
        if not source:
            raise self._invalid("the source after FROM is missing")
        lines = "\n" * self._text[: self._words[start].start].count("\n")
        return f"{lines}SELECT * FROM {source}"

    def _snapshot_query(self, opening: int, first: int) -> str:
        """The query between brackets. `first` is the position of the first clause."""
        depth = self._depths[opening]
        positions = range(opening + 1, len(self._words))
        closing = next(
            (at for at in positions if self._upper[at] == ")" and self._depths[at] == depth), first
        )
        if self._upper[closing + 1 : closing + 3] == ["WITH", "VERSION"]:
            raise DefinitionError(
                "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
                "AUTO CDC does not take FROM SNAPSHOT with WITH VERSION",
                sqlstate="0A000",
                location=self._location,
                hint="leave WITH VERSION out, then the rows at each checkpoint are a snapshot; or return the "
                "snapshots and their versions from a Python function: create_auto_cdc_from_snapshot_flow",
            )
        query = self._between((opening + 1, closing))
        if not query or closing + 1 != first:
            raise self._invalid("FROM SNAPSHOT is followed by a query in brackets, and then by KEYS")
        return "\n" * self._text[: self._words[opening + 1].start].count("\n") + query

    def _between(self, part: tuple[int, int] | None) -> str:
        """The text of words, without what surrounds them."""
        if part is None or part[0] >= part[1]:
            return ""
        last: Token = self._words[part[1] - 1]
        return self._text[self._words[part[0]].start : last.start + len(last.text)]

    def _invalid(self, why: str) -> DefinitionError:
        return DefinitionError(
            "AUTO_CDC_SYNTAX",
            f"The AUTO CDC statement cannot be read: {why}",
            sqlstate="42601",
            location=self._location,
            hint=_HINT,
        )


def _words(text: str) -> list[Token]:
    return [token for token in tokens(text) if token.kind not in ("space", "comment")]


def _depths(words: Sequence[str]) -> list[int]:
    depths: list[int] = []
    depth = 0
    for word in words:
        depth -= word == ")"
        depths.append(depth)
        depth += word == "("
    return depths
