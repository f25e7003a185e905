"""SQL text without a grammar: tokens, statements, and what names of tables in definition files mean.

Spark's parser interprets the statements. Only two tasks need text instead of a plan: splitting a file at its
semicolons, and renaming tables in place (so that lines and columns in messages stay right).

Names are `x`, `db.x`, `lake.db.x`, `spark_catalog.db.x` or `other.db.x`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import OtherCatalogs
from tautochrone.model.foreign import ForeignSource
from tautochrone.model.names import TableName, quoted, shadow_table

__all__ = [
    "SESSION_CATALOG",
    "ForeignNames",
    "NameScope",
    "Renamed",
    "StatementText",
    "Token",
    "rename",
    "split",
    "split_name",
    "tokens",
    "unquote",
]


_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* )
    | (?P<bracket> /\* )
    | (?P<string>  [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<name>    `(?:[^`]|``)*` | \w+ )
    | (?P<end>     ; )
    | (?P<dot>     \. )
    | (?P<space>   \s+ )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)


_CELL_END = "-- COMMAND ----"
"""In an exported notebook: one statement does not go over its cell."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL text; `start` is its place in the text."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement: its text without the semicolon, from its first word on, and the line of that word."""

    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """All of the text, piece by piece: comments, strings, names, ends of statements, dots, spaces, others."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        assert match.lastgroup is not None
        kind, end = match.lastgroup, match.end()
        if kind == "bracket":
            end = _comment_end(text, position)
            # A hint is part of the query.
            kind = "other" if text.startswith("/*+", position) else "comment"
        yield Token(kind, text[position:end], position)
        position = end


def _comment_end(text: str, start: int) -> int:
    """Spark's bracketed comments nest."""
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return start + mark.end()
    return len(text)


def split(text: str) -> list[StatementText]:
    """Split a file into statements, without empty ones."""
    chunks: list[StatementText] = []
    start = end = -1
    for token in tokens(text):
        if token.kind == "end" or (token.kind == "comment" and token.text.startswith(_CELL_END)):
            if start >= 0:
                chunks.append(StatementText(text[start:end], text.count("\n", 0, start) + 1))
            start = -1
        elif token.kind not in ("space", "comment"):
            start = token.start if start < 0 else start
            end = token.start + len(token.text)
    if start >= 0:
        chunks.append(StatementText(text[start:end], text.count("\n", 0, start) + 1))
    return chunks


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a name such as `` a.`b.c`.d ``; empty when the text is not a name."""
    parts: list[str] = []
    expect_name = True
    for token in tokens(text.strip()):
        # Hyphens are allowed: names in Spark's messages have them without quotes.
        if token.kind == "dot" and not expect_name:
            expect_name = True
        elif token.kind in ("name", "other", "space") and (
            expect_name or token.text == "-" or parts[-1].endswith("-")
        ):
            part = unquote(token.text)
            if expect_name:
                parts.append(part)
            else:
                parts[-1] += part
            expect_name = False
        else:
            return ()
    return () if expect_name else tuple(parts)


@dataclass(frozen=True, slots=True)
class Renamed:
    """SQL with replaced names. `edits` are (start, stop, length): the replaced part and its new length."""

    text: str
    edits: tuple[tuple[int, int, int], ...]

    def before(self, start: int, stop: int) -> tuple[int, int]:
        """The position of a part of the new text in the old one; for a new name, the whole old name."""
        return self._old(start, at_end=False), self._old(stop, at_end=True)

    def _old(self, position: int, *, at_end: bool) -> int:
        shift = 0
        for start, stop, length in self.edits:
            first, last = start + shift, start + shift + length
            if position < first or (at_end and position == first):
                break
            if position < last or (at_end and position == last):
                return stop if at_end else start
            shift += length - (stop - start)
        return position - shift


def rename(text: str, replace: Callable[[tuple[str, ...], Sequence[str]], tuple[int, str] | None]) -> Renamed:
    """Replace dotted names.

    Args:
        text: SQL.
        replace: gets the parts of each dotted name (two or more) and the words before it, without spaces
            and comments; returns how many leading parts to replace and by which text, or None.
    """
    result: list[str] = []
    edits: list[tuple[int, int, int]] = []
    words: list[str] = []
    name_tokens: list[Token] = []

    def flush() -> None:
        names = [token for token in name_tokens if token.kind == "name"]
        parts = tuple(unquote(token.text) for token in names)
        replacement = replace(parts, words) if len(names) > 1 else None
        words.extend(token.text for token in name_tokens)
        if replacement is None:
            result.extend(token.text for token in name_tokens)
        else:
            last = name_tokens.index(names[replacement[0] - 1])
            edits.append(
                (
                    name_tokens[0].start,
                    name_tokens[last].start + len(name_tokens[last].text),
                    len(replacement[1]),
                )
            )
            result.append(replacement[1])
            result.extend(token.text for token in name_tokens[last + 1 :])
        name_tokens.clear()

    for token in tokens(text):
        expected_kind = "name" if not name_tokens or name_tokens[-1].kind == "dot" else "dot"
        if token.kind == expected_kind:
            name_tokens.append(token)
            continue
        flush()
        if token.kind == "name":
            name_tokens.append(token)
        else:
            result.append(token.text)
            if token.kind not in ("space", "comment"):
                words.append(token.text)
    flush()
    return Renamed("".join(result), tuple(edits))


def unquote(text: str) -> str:
    """A name without its backticks."""
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


SESSION_CATALOG = "spark_catalog"
"""Spark's default catalog. Where projects name it, it is an alias of the pipeline's own catalog."""

_LIVE = "live"
"""The database that all datasets of a pipeline seem to be in, in Databricks' dialect."""

_BEFORE_A_TABLE = frozenset({"FROM", "JOIN", "INTO", "STREAM", "TABLE"})


class _LiveTables:
    """Tables of the lake that are called `live.x`. Each is looked for once, when a query names it."""

    def __init__(self) -> None:
        self.is_table: Callable[[str], bool] = lambda _: False
        self._known: dict[str, bool] = {}

    def has(self, parts: tuple[str, ...]) -> bool:
        database, table = parts[:2]
        if database != _LIVE:
            return False
        if table not in self._known:
            self._known[table] = self.is_table(table)
        return self._known[table]


_FORMATS = frozenset({"delta", "hudi", "paimon"})
"""Lake formats whose tables are followed where a query reads them by their path."""
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class ForeignNames:
    """The tables of other lake formats that queries read by their path, as far as names were read.

    Attributes:
        pipeline: two pipelines never share a shadow table.
        substitute: replaces `${parameters}`, as Spark's parser does.
        sources: by the name of the shadow table.
    """

    pipeline: str = ""
    substitute: Callable[[str], str] = str
    sources: dict[TableName, ForeignSource] = field(default_factory=dict)

    def shadow_table(self, catalog: str, table_format: str, path: str) -> TableName | None:
        """See `NameScope.shadow_table`. As with Delta itself, only an absolute path in SQL is one."""
        known = table_format.lower()
        if known not in _FORMATS:
            return None
        path = self.substitute(path) if "${" in path else path
        if not _ABSOLUTE.match(path):
            return None
        path = path.rstrip("/")
        name = shadow_table(catalog, self.pipeline, known, path)
        self.sources.setdefault(name, ForeignSource(known, path))
        return name


@dataclass(frozen=True, slots=True)
class NameScope:
    """The pipeline's catalog and the current database, with the persisted views registered so far.

    `views` maps a persisted view to the temporary view that stands for it in a session. `live` maps the last
    part of a dataset's name, in lower case, to the dataset and to what queries call it: Databricks' `LIVE.x`
    means it, whatever its database is. `live_tables` are tables of the lake that are called so.

    `other.db.x` with a catalog that no setting defines is the table `x` of the lake's database `other.db`:
    Spark reads the name so too, as it takes the first part for a catalog only where there is one.
    `configured` are the catalogs that settings define. `mapped` are the other ones in which there are
    datasets, with the definition that names each first.

    `foreign` are the tables of other lake formats that queries read by their path.
    """

    catalog: str
    namespace: tuple[str, ...]
    views: dict[TableName, str] = field(default_factory=dict, compare=False)
    live: dict[str, tuple[TableName, str]] = field(default_factory=dict, compare=False)
    live_tables: _LiveTables = field(default_factory=_LiveTables, compare=False)
    configured: frozenset[str] = frozenset()
    other_catalogs: OtherCatalogs = OtherCatalogs.MAP
    mapped: dict[str, str] = field(default_factory=dict, compare=False)
    foreign: ForeignNames = field(default_factory=ForeignNames, compare=False)

    def within(self, namespace: tuple[str, ...]) -> NameScope:
        """The same scope after `USE namespace`."""
        return replace(self, namespace=namespace)

    def is_ours(self, catalog: str) -> bool:
        """Whether a catalog name refers to the pipeline's catalog."""
        return catalog in (self.catalog, SESSION_CATALOG)

    def resolve(self, parts: tuple[str, ...], location: str | None = None) -> TableName:
        """The full name of a dataset.

        Raises:
            DefinitionError: SEVERAL_CATALOGS, the name starts with a catalog that a setting defines and
                that is not the pipeline's; INVALID_IDENTIFIER, it is not a name.
        """
        if not parts or not all(parts):
            raise DefinitionError("INVALID_IDENTIFIER", "An empty name", location=location, sqlstate="42602")
        dotted = [part for part in parts if "." in part]
        if dotted:
            raise DefinitionError(
                "INVALID_IDENTIFIER",
                f"The part `{dotted[0]}` of the name {quoted(*parts)} contains a dot",
                location=location,
                sqlstate="42602",
                hint="Dots separate catalog, database and table; use another character within a part.",
            )
        if len(parts) == 1:
            return TableName(self.catalog, self.namespace, parts[0])
        if len(parts) == 2:
            return TableName(self.catalog, (parts[0],), parts[1])
        if self.is_ours(parts[0]):
            return TableName(self.catalog, parts[1:-1], parts[-1])
        if parts[0] in self.configured or self.other_catalogs is OtherCatalogs.FAIL:
            self.require_pipeline_catalog(parts[0], location, parts[1:])
        if location is not None:
            self.mapped.setdefault(parts[0], location)
        return TableName(self.catalog, parts[:-1], parts[-1])

    def require_pipeline_catalog(
        self, catalog: str, location: str | None, rest: tuple[str, ...] = ()
    ) -> None:
        """Refuse a catalog that is not the pipeline's; `rest` are the parts of the name after it.

        Raises:
            DefinitionError: SEVERAL_CATALOGS.
        """
        if self.is_ours(catalog):
            return
        if catalog in self.configured:
            way = f'or set mapped_catalogs = ["{catalog}"] below [lake]: then it is a database of the lake.'
        elif not rest:
            way = f"or write names with three parts, `{catalog}.db.x`: then it is a database of the lake."
        else:
            way = 'or set other_catalogs = "map" below [lake]: then it is a database of the lake.'
        raise DefinitionError(
            "SEVERAL_CATALOGS",
            f"{'.'.join((catalog, *rest))} is not in the pipeline's catalog, `{self.catalog}`",
            sqlstate="0A000",
            location=location,
            hint="A checkpoint shows all datasets of a pipeline, so they are in one catalog: write "
            f"`{'.'.join((self.catalog, *rest))}`, {way}",
        )

    def live_dataset(self, parts: tuple[str, ...]) -> tuple[TableName, str] | None:
        """The dataset that `LIVE.x` means, unless the pipeline has a database of that name.

        A table of the lake that is called exactly so comes first: `prefer_tables_in_live`.
        """
        if len(parts) < 2 or parts[0].lower() != _LIVE or self.live_tables.has(parts):
            return None
        if any(name.namespace[-1].lower() == _LIVE for name, _ in self.live.values()):
            return None
        return self.live.get(parts[1].lower())

    def shadow_table(self, table_format: str, path: str) -> TableName | None:
        """The shadow table of a table in another lake format, read by its path; None: it is none."""
        return self.foreign.shadow_table(self.catalog, table_format, path)

    def prefer_tables_in_live(self, is_table: Callable[[TableName], bool]) -> None:
        """Let `live.x`, in lower case, mean the table of the lake where there is one."""
        self.live_tables.is_table = lambda table: is_table(TableName(self.catalog, (_LIVE,), table))

    def find(self, parts: tuple[str, ...]) -> TableName | None:
        """Like `resolve`, for names that are read: None for catalogs that settings define."""
        try:
            return self.resolve(parts)
        except DefinitionError:
            return None

    def rewrite(self, text: str) -> str:
        """The SQL with `spark_catalog` replaced by our catalog, and views by their temporary views."""
        return self.renamed(text).text

    def renamed(self, text: str) -> Renamed:
        """Like `rewrite`, with the positions of the replacements."""

        may_be_alias = bool(self.live) and _has_single_word(text, _LIVE)

        def replace(parts: tuple[str, ...], before: Sequence[str]) -> tuple[int, str] | None:
            for length in (len(parts), len(parts) - 1):
                # Without its last part the name may be the qualifier of a column.
                name = self.find(parts[:length]) if length > 1 else None
                if name in self.views:
                    return length, quoted(self.views[name])
            dataset = self.live_dataset(parts)
            if dataset is not None and (not may_be_alias or _is_table_next(before)):
                return 2, dataset[1]
            shadow = self.shadow_table(*parts) if len(parts) == 2 else None
            if shadow is not None:
                return 2, shadow.sql
            if parts[0] == SESSION_CATALOG != self.catalog and len(parts) > 2:
                return 1, quoted(self.catalog)
            return None

        return rename(text, replace)


def _has_single_word(text: str, word: str) -> bool:
    """Whether SQL has a name of one part, such as an alias, that is this word."""
    if word not in text.lower():
        return False
    names = [token for token in tokens(text) if token.kind not in ("space", "comment")]
    for number, token in enumerate(names):
        neighbours = (*names[max(number - 1, 0) : number], *names[number + 1 : number + 2])
        is_word = token.kind == "name" and unquote(token.text).lower() == word
        if is_word and not any(neighbour.kind == "dot" for neighbour in neighbours):
            return True
    return False


def _is_table_next(before: Sequence[str]) -> bool:
    """Whether the name after these words is that of a table, not the qualifier of a column."""
    words = [word.upper() for word in before[-2:]]
    if words[-1:] == ["("]:
        return words[0] in ("STREAM", "TABLE")
    return bool(words) and words[-1] in _BEFORE_A_TABLE and words != ["DISTINCT", "FROM"]
