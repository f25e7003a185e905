"""AUTO CDC flows as Databricks and Spark 4.2 define them: by functions, and by clauses that the parser of
Spark 4.1 does not know.

CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n …
APPLY CHANGES INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n …
CREATE OR REFRESH STREAMING TABLE t FLOW AUTO CDC FROM STREAM(s) KEYS (id) SEQUENCE BY n …
CREATE FLOW f AS AUTO CDC INTO t FROM SNAPSHOT (SELECT …) KEYS (id) …
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkTypeError
from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.sql import Column

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.project.databricks.unsupported import caller, databricks_only_error, shown
from tautochrone.project.sqltext import Token, split_name, tokens, unquote

__all__ = ["AutoCdcClause", "auto_cdc_clause", "create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow"]


_NOT_BITEMPORAL = (
    "tables with both the time of the event and that of its arrival are not supported: leave "
    "system_sequence_by out, and store the table as SCD type 1 (the newest row of each key) or 2 (all)"
)
SnapshotSource = Callable[[Any], Any]


class _OneSnapshot:
    """The snapshot function for a DataFrame and its version, which a file computed while it was imported."""

    def __init__(self, snapshot: tuple[Any, Any]) -> None:
        self._snapshot = snapshot

    def __call__(self, latest_version: Any) -> tuple[Any, Any] | None:
        return None if latest_version == self._snapshot[1] else self._snapshot


_INSTEAD = {"system_sequence_by": _NOT_BITEMPORAL}
"""By argument that Databricks knows: what to write instead."""


def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: Sequence[str | Column],
    sequence_by: str | Column,
    ignore_null_updates: bool = False,
    apply_as_deletes: str | Column | None = None,
    apply_as_truncates: str | Column | None = None,
    column_list: Sequence[str | Column] | None = None,
    except_column_list: Sequence[str | Column] | None = None,
    stored_as_scd_type: str | int | None = 1,
    track_history_column_list: Sequence[str | Column] | None = None,
    track_history_except_column_list: Sequence[str | Column] | None = None,
    *,
    ignore_null_updates_column_list: Sequence[str | Column] | None = None,
    ignore_null_updates_except_column_list: Sequence[str | Column] | None = None,
    where: str | Column | None = None,
    name: str | None = None,
    flow_name: str | None = None,
    once: bool = False,
    **unknown: Any,
) -> None:
    """A flow that merges the change events of `source` into the streaming table `target`.

    Args:
        flow_name: an older name of `name`.
        once: has no effect. The source is a stream, of which each event is taken once.

    Raises:
        DefinitionError: `AUTO_CDC_TWO_COLUMN_LISTS`, and those of `AutoCdc.check`.
    """
    location = caller()
    text = shown(location)
    given = sorted(key for key, value in unknown.items() if value is not None and value is not False)
    if where is not None:
        given.append("where")
    if given:
        raise DefinitionError(
            "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
            f"create_auto_cdc_flow() does not take {', '.join(given)}",
            sqlstate="0A000",
            location=text,
            hint=_INSTEAD.get(given[0])
            or _did_you_mean(given)
            or "leave it out; conditions and computed columns belong into a temporary view as the source",
        )
    null_ignoring = _choice(
        ignore_null_updates_column_list,
        ignore_null_updates_except_column_list,
        "ignore_null_updates_column_list",
        text,
    )
    if null_ignoring is not None and ignore_null_updates:
        raise _two_lists_error(
            "ignore_null_updates=True", "a list of the columns in which NULL is ignored", text
        )
    auto_cdc = AutoCdc(
        keys=_names(keys, "keys"),
        sequence=sequence_by,
        delete=apply_as_deletes,
        truncate=apply_as_truncates,
        columns=_choice(column_list, except_column_list, "column_list", text),
        is_ignoring_nulls=bool(ignore_null_updates) or null_ignoring is not None,
        null_ignoring=null_ignoring,
        is_once=bool(once),
        scd_type=_scd_type(stored_as_scd_type, text),
        tracked=_choice(
            track_history_column_list,
            track_history_except_column_list,
            "track_history_column_list",
            text,
        ),
    )
    registry: Any = get_active_graph_element_registry()
    registry.register_auto_cdc(name or flow_name or target, target, source, auto_cdc, location)


def create_auto_cdc_from_snapshot_flow(
    target: str,
    source: str | SnapshotSource | None = None,
    keys: Sequence[str | Column] = (),
    stored_as_scd_type: str | int | None = 1,
    track_history_column_list: Sequence[str | Column] | None = None,
    track_history_except_column_list: Sequence[str | Column] | None = None,
    *,
    snapshot_and_version: SnapshotSource | tuple[Any, Any] | None = None,
    name: str | None = None,
    once: bool = False,
) -> None:
    """A flow that merges what changes in the rows of `source` into `target`.

    Of a dataset or table the rows at each checkpoint are a snapshot, and the time of the checkpoint is the
    sequence value of what changed. A function is called with the version of the newest snapshot, or None, and
    returns the next one with its version, which is the sequence value:

        def next_snapshot(latest_version):
            version = (latest_version or 0) + 1
            path = f"/exports/customers_{version}.csv"
            return (spark.read.csv(path, header=True), version) if os.path.exists(path) else None

    Args:
        snapshot_and_version: an older name of `source` for a function. It may also be a DataFrame and its
            version, which are one snapshot for each run.

    Raises:
        DefinitionError: `AUTO_CDC_SNAPSHOT_SOURCE`, and those of `create_auto_cdc_flow`.
    """
    location = caller()
    text = shown(location)
    if once:
        raise databricks_only_error("once", "create_auto_cdc_from_snapshot_flow(once=True)", text)
    if isinstance(snapshot_and_version, tuple) and len(snapshot_and_version) == 2:
        snapshot_and_version = _OneSnapshot(snapshot_and_version)
    given = [argument for argument in (source, snapshot_and_version) if argument is not None]
    if len(given) != 1 or not (isinstance(given[0], str) or callable(given[0])):
        raise DefinitionError(
            "AUTO_CDC_SNAPSHOT_SOURCE",
            f"create_auto_cdc_from_snapshot_flow() of {target} has no source, or something else than one",
            sqlstate="42000",
            location=text,
            hint="give the name of a dataset or table, or a function that takes the newest version and "
            "returns the next snapshot with its version",
        )
    tracked = _choice(
        track_history_column_list, track_history_except_column_list, "track_history_column_list", text
    )
    snapshots_of = given[0]
    auto_cdc = AutoCdc(
        keys=_names(keys, "keys"),
        sequence=None,
        scd_type=_scd_type(stored_as_scd_type, text),
        tracked=tracked,
        snapshots_of=(snapshots_of,) if isinstance(snapshots_of, str) else None,
        takes_snapshots=True,
    )
    registry: Any = get_active_graph_element_registry()
    register = registry.register_auto_cdc if isinstance(snapshots_of, str) else registry.register_snapshots
    register(name or target, target, snapshots_of, auto_cdc, location)


def _scd_type(value: str | int | None, location: str) -> int:
    text = "1" if value is None else str(value).strip()
    if not text.isdecimal():
        raise DefinitionError(
            "AUTO_CDC_SCD_TYPE",
            f"An AUTO CDC flow stores its table as SCD type {text}",
            sqlstate="0A000",
            location=location,
            hint=_NOT_BITEMPORAL,
        )
    return int(text)


def _choice(
    names: Sequence[str | Column] | None,
    except_names: Sequence[str | Column] | None,
    argument: str,
    location: str,
) -> ColumnChoice | None:
    """The chosen columns. An empty list is one that is not given: projects fill lists from configurations."""
    chosen, left_out = _names_if_any(names, argument), _names_if_any(except_names, argument)
    if chosen and left_out:
        raise _two_lists_error(argument, "the list of columns to leave out", location)
    if chosen:
        return ColumnChoice(chosen)
    return ColumnChoice(left_out, is_except=True) if left_out else None


def _two_lists_error(first: str, second: str, location: str) -> DefinitionError:
    return DefinitionError(
        "AUTO_CDC_TWO_COLUMN_LISTS",
        f"create_auto_cdc_flow() got {first} and {second}",
        location=location,
        hint="give one of the two",
    )


def _names_if_any(columns: Sequence[str | Column] | None, argument: str) -> tuple[str, ...]:
    return () if columns is None else _names(columns, argument)


def _names(columns: Sequence[str | Column], argument: str) -> tuple[str, ...]:
    """Names of columns, which are given as texts or as `col(…)`."""
    if isinstance(columns, (str, Column)):
        columns = [columns]
    names = [_name(column) if isinstance(column, Column) else column for column in columns]
    for name in names:
        if not isinstance(name, str):
            raise PySparkTypeError(
                errorClass="NOT_LIST_OF_STR",
                messageParameters={"arg_name": argument, "arg_type": type(name).__name__},
            )
    return tuple(name.strip("`") for name in names)


def _name(column: Column) -> str:
    node: Any = column._jc  # noqa: SLF001
    return str(node.toString())


def _did_you_mean(given: Sequence[str]) -> str | None:
    known = ("apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list", "sequence_by")
    near = [match for name in given for match in difflib.get_close_matches(name, known, n=1, cutoff=0.75)]
    return f"did you mean {', '.join(near)}?" if near else None


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
                raise self._invalid_clause_error("INTO and the name of a streaming table is missing")
            source = self._require_keyword("FROM", position)
            target = self._name(position + 1, source)
            position = source
            if self._upper[:2] == ["CREATE", "FLOW"]:
                end = self._require_keyword("AS", 2)
                # CREATE FLOW name COMMENT 'text' AS …: comments of flows are shown nowhere.
                end -= 2 if end > 4 and self._upper[end - 2] == "COMMENT" else 0
                flow = self._name(2, end)
        if self._upper[position : position + 1] != ["FROM"]:
            raise self._invalid_clause_error("FROM and a stream is missing")
        first = self._next_clause(position + 1)
        if self._upper[position + 1 : position + 3] == ["SNAPSHOT", "("]:
            if is_once:
                raise databricks_only_error("once", "AUTO CDC ONCE INTO … FROM SNAPSHOT", self._location)
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
                raise self._invalid_clause_error(
                    "IGNORE NULL UPDATES is followed by ON and columns, or by another clause"
                )
            null_ignoring = self._columns((ignored[0] + 1, ignored[1]))
        sequence = self._between(parts.get(("SEQUENCE", "BY")))
        if not sequence:
            raise self._invalid_clause_error("SEQUENCE BY and an expression is missing")
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
            raise self._invalid_clause_error(f"FROM SNAPSHOT does not go with {unknown[0]}")
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
                raise self._invalid_clause_error(f"{' '.join(clause)} stands twice")
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
            raise self._invalid_clause_error(f"{word} is missing")
        return at

    def _name(self, start: int, stop: int) -> tuple[str, ...]:
        text = self._substitute(self._between((start, stop)))
        parts = split_name(text)
        if not parts:
            raise self._invalid_clause_error(f"{text or 'nothing'} is no name")
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
            raise self._invalid_clause_error(f"{text or 'nothing'} is no list of columns")
        return ColumnChoice(tuple(unquote(name.text) for name in names), is_except=is_except)

    # -- text -------------------------------------------------------------------------------------

    def _query(self, start: int, stop: int) -> str:
        source = self._between((start, stop))
        if not source:
            raise self._invalid_clause_error("the source after FROM is missing")
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
            raise self._invalid_clause_error(
                "FROM SNAPSHOT is followed by a query in brackets, and then by KEYS"
            )
        return "\n" * self._text[: self._words[opening + 1].start].count("\n") + query

    def _between(self, part: tuple[int, int] | None) -> str:
        """The text of words, without what surrounds them."""
        if part is None or part[0] >= part[1]:
            return ""
        last: Token = self._words[part[1] - 1]
        return self._text[self._words[part[0]].start : last.start + len(last.text)]

    def _invalid_clause_error(self, why: str) -> DefinitionError:
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
