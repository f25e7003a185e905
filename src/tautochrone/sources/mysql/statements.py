"""What a statement in the log does to captured tables. Rows of other statements are in row events.

A statement changes the tables that it names, in a way that the log does not show, unless its form is one of
those below; and all tables where its form is not known at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tautochrone.sources.mysql.alterations import Alteration, alteration_of, folded, tables_named_in
from tautochrone.sources.mysql.binlog import Query
from tautochrone.sources.mysql.tables import CapturedTable
from tautochrone.sources.mysql.tokens import Decoder, Token, readings_of

__all__ = ["Effect", "Statement", "XaEnd"]

_XA_END = re.compile(rb"XA (COMMIT|ROLLBACK) X'([0-9a-fA-F]*)',X'([0-9a-fA-F]*)',(-?\d+)")
"""As servers write it."""
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "SELECT", "DO", "CALL", "WITH"})
"""Statements that change rows, or call functions that do. A log of rows has none of them."""
_TRANSACTIONS = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA"})
_WITHOUT_TABLES = frozenset({"FLUSH", "GRANT", "REVOKE", "INSTALL", "UNINSTALL"})
_OBJECTS_WITHOUT_ROWS = frozenset(
    {"VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "PACKAGE", "LIBRARY", "LOADABLE"}
    | {"USER", "ROLE", "SERVER", "RESOURCE", "TABLESPACE", "UNDO", "LOGFILE"}
    # What views, routines and events may begin with.
    | {"ALGORITHM", "DEFINER", "SQL", "AGGREGATE"}
)
_SETS_WITHOUT_TABLES = frozenset({"PASSWORD", "ROLE", "DEFAULT"})


@dataclass(frozen=True, slots=True)
class Effect:
    """
    Attributes:
        kind: `truncate`; `change`: of columns, or of rows that the log does not show; `behind`: of columns
            behind those that are captured; `rows`: the statement stands for the rows that it wrote.
    """

    kind: str
    relation: str


@dataclass(frozen=True, slots=True)
class XaEnd:
    """The end of a transaction that was prepared before.

    Attributes:
        xid: its identifiers, as hexadecimal digits.
    """

    xid: str
    is_committed: bool


@dataclass(frozen=True)
class Statement:
    """
    Attributes:
        decode: names that are in another character set than UTF-8.
    """

    query: Query
    decode: Decoder

    @cached_property
    def _readings(self) -> list[Sequence[Token] | None]:
        return readings_of(self.query.text, self.query.session, self.decode)

    @cached_property
    def _first(self) -> Sequence[Token]:
        """Those of what servers write themselves about transactions, whose words are ASCII."""
        return self._readings[0] or ()

    @property
    def begins_group(self) -> bool:
        """Whether it is the first of several events of one transaction. MySQL's CREATE TABLE … SELECT is, by
        the words at its end."""
        words = [token.word for token in self._first]
        return words == ["BEGIN"] or words[:2] == ["XA", "START"] or words[-2:] == ["START", "TRANSACTION"]

    @property
    def begins_prepared_group(self) -> bool:
        return [token.word for token in self._first[:2]] == ["XA", "START"]

    @property
    def ends_group(self) -> bool | None:
        """Whether it commits (True) or rolls back (False) its group; None: neither."""
        is_alone = len(self._first) == 1
        return {"COMMIT": True, "ROLLBACK": False}.get(self._first[0].word) if is_alone else None

    @property
    def xa_end(self) -> XaEnd | None:
        match = _XA_END.fullmatch(self.query.text.strip())
        if match is None:
            return None
        xid = xid_of(int(match[4]), bytes.fromhex(match[2].decode()), bytes.fromhex(match[3].decode()))
        return XaEnd(xid, match[1] == b"COMMIT")

    @property
    def savepoint(self) -> str | None:
        """The name that it gives to a place in its transaction; empty: a name that is not sure."""
        is_savepoint = len(self._first) == 2 and self._first[0].word == "SAVEPOINT"
        return _savepoint_name(self._first[1]) if is_savepoint else None

    @property
    def rolled_back_to(self) -> str | None:
        """The savepoint behind which its transaction is rolled back; empty: a name that is not sure."""
        is_rollback = len(self._first) > 1 and self._first[0].word == "ROLLBACK"
        return _savepoint_name(self._first[-1]) if is_rollback else None

    @property
    def may_make_tables(self) -> bool:
        """Whether there may be a table behind it that was not there before, under any name."""
        heads = [_without_settings(tokens)[:1] if tokens is not None else None for tokens in self._readings]
        known = {*_TRANSACTIONS, *_WITHOUT_TABLES, *_ROWS} | {"DROP", "TRUNCATE", "ANALYZE", "OPTIMIZE"}
        return any(head is None or (head and head[0].word not in known) for head in heads)

    def may_name(self, columns: Collection[str]) -> bool:
        """Whether it says one of these names, in whatever case."""
        names = set(map(folded, columns))
        return any(
            tokens is None
            or any(token.is_name and (token.text is None or folded(token.text) in names) for token in tokens)
            for tokens in self._readings
        )

    def effects(
        self,
        relations: Collection[str],
        normal: Callable[[str], str] = lambda name: name,
        tables: Mapping[str, CapturedTable] | None = None,
    ) -> list[Effect]:
        """On captured tables, by `schema.table`.

        Args:
            normal: makes names comparable, on servers to which upper and lower case are the same.
            tables: the captured ones as they were before the statement, as far as they are known.
        """
        captured = _Captured(relations, normal, tables or {}, self.query.schema)
        strongest: dict[str, str] = {}
        for tokens in self._readings:
            for effect in captured.effects_on_all() if tokens is None else _effects(tokens, captured):
                before = strongest.get(effect.relation)
                if before is not None and before != effect.kind and "rows" not in (before, effect.kind):
                    # Two readings say different things.
                    strongest[effect.relation] = "change"
                elif before != "rows":
                    strongest[effect.relation] = effect.kind
        return [Effect(strongest[name], name) for name in relations if name in strongest]


def xid_of(format_id: int, transaction: bytes, branch: bytes) -> str:
    return f"{format_id & 0xFFFFFFFF:x}.{transaction.hex()}.{branch.hex()}"


def _savepoint_name(token: Token) -> str:
    """Servers compare names of savepoints without case, and others than these without accents."""
    return token.text.casefold() if token.is_name and token.text is not None and token.text.isascii() else ""


@dataclass(frozen=True, slots=True)
class _Captured:
    """The captured tables, and how names of a session lead to them."""

    relations: Collection[str]
    normal: Callable[[str], str]
    tables: Mapping[str, CapturedTable]
    schema: str

    def effects_on_all(self, kind: str = "change") -> list[Effect]:
        return [Effect(kind, name) for name in self.relations]

    def schema_and_name(self, relation: str) -> tuple[str, str]:
        """Both may have dots, so the name alone is not enough."""
        table = self.tables.get(relation)
        schema, _, name = relation.partition(".")
        return (schema, name) if table is None else (table.schema, table.table)

    def _may_be_named(self, written: str | None, name: str) -> bool:
        return written is None or self.normal(written) == self.normal(name)

    def effects_on_schema(self, written: str | None) -> list[Effect]:
        return [
            Effect("change", name)
            for name in self.relations
            if self._may_be_named(written, self.schema_and_name(name)[0])
        ]

    def relations_named(self, names: Collection[tuple[str | None, str | None]]) -> list[str]:
        """Those that tables of a statement may be, in the schema before them, else in the session's."""
        return [
            relation
            for relation in self.relations
            for own_schema, own_table in [self.schema_and_name(relation)]
            if any(
                self._may_be_named(schema, own_schema) and self._may_be_named(table, own_table)
                for schema, table in names
            )
        ]

    def effects_on_named(self, tokens: Sequence[Token]) -> list[Effect]:
        """Whatever is called like a captured table counts as it."""
        return [Effect("change", name) for name in self.relations_named(set(_qualified(tokens, self.schema)))]


class _Cursor:
    """Goes through the tokens of a statement."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.position = 0

    @property
    def rest(self) -> Sequence[Token]:
        return self.tokens[self.position :]

    @property
    def next_word(self) -> str:
        return self.tokens[self.position].word if self.position < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        if tuple(token.word for token in self.rest[: len(words)]) != words:
            return False
        self.position += len(words)
        return True

    def accept_one(self, words: Collection[str]) -> str:
        word = self.next_word
        if word not in words:
            return ""
        self.position += 1
        return word

    def table(self, schema: str) -> tuple[str | None, str | None] | None:
        """The name that comes next; None: no name does."""
        is_behind_dot = bool(self.rest) and self.rest[0].symbol == "."
        self.position += is_behind_dot
        names = self._names()
        if not names or len(names) > 2 - is_behind_dot:
            return None
        return (schema, names[0]) if len(names) == 1 else (names[0], names[1])

    def _names(self) -> list[str | None]:
        names: list[str | None] = []
        while self.rest and self.rest[0].is_name:
            names.append(self.rest[0].text)
            self.position += 1
            if len(self.rest) < 2 or self.rest[0].symbol != ".":
                break
            self.position += 1
        return names


def _qualified(tokens: Sequence[Token], schema: str) -> Iterator[tuple[str | None, str | None]]:
    """Each name as a table."""
    cursor = _Cursor(tokens)
    while cursor.rest:
        before = cursor.position
        name = cursor.table(schema)
        if name is not None:
            yield name
        elif cursor.position == before:
            cursor.position += 1
        else:
            # More names with dots between them than a table has: the first ones may be it.
            names = [token.text for token in cursor.tokens[before : cursor.position] if token.is_name]
            yield from ((schema, name) for name in names)
            yield from pairwise(names)


def _without_settings(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without `SET STATEMENT … FOR` of MariaDB: settings for the one statement that follows."""
    if [token.word for token in tokens[:2]] != ["SET", "STATEMENT"]:
        return tokens
    depth = 0
    for number, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.symbol, 0)
        if depth == 0 and token.word == "FOR":
            return tokens[number + 1 :]
    return tokens


def _effects(tokens: Sequence[Token], captured: _Captured) -> list[Effect]:
    cursor = _Cursor(_without_settings(tokens))
    if not cursor.rest or _is_about_no_table(cursor.rest):
        return []
    head = cursor.next_word
    cursor.position += 1
    if head in _ROWS or (head == "ANALYZE" and not _is_of_tables(cursor)):
        # Triggers and functions may write tables that the statement does not name.
        return captured.effects_on_all("rows")
    if head in ("CREATE", "ALTER", "DROP"):
        return _effects_of_definition(head, cursor, captured)
    if any(token.symbol == ";" for token in cursor.rest):
        return captured.effects_on_all()
    if head == "TRUNCATE":
        return _effects_of_truncate(cursor, captured)
    if head in ("ANALYZE", "OPTIMIZE"):
        return []
    is_of_tables = (head == "RENAME" and cursor.next_word in ("TABLE", "TABLES")) or head in (
        "REPAIR",
        "CHECK",
    )
    return captured.effects_on_named(cursor.rest) if is_of_tables else captured.effects_on_all()


def _is_about_no_table(tokens: Sequence[Token]) -> bool:
    head, following = tokens[0].word, tokens[1].word if len(tokens) > 1 else ""
    if head == "BEGIN":
        # Otherwise it is a block of statements.
        return len(tokens) == 1
    if (head, following) == ("XA", "COMMIT"):
        # The reader knows those of the form that servers write.
        return False
    return (
        head in _TRANSACTIONS
        or head in _WITHOUT_TABLES
        or (head == "SET" and following in _SETS_WITHOUT_TABLES)
        or (head, following) in (("START", "TRANSACTION"), ("RENAME", "USER"))
    )


def _is_of_tables(cursor: _Cursor) -> bool:
    return cursor.next_word in ("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG")


def _effects_of_truncate(cursor: _Cursor, captured: _Captured) -> list[Effect]:
    cursor.accept("TABLE")
    start = cursor.position
    name = cursor.table(captured.schema)
    _skip_wait(cursor)
    if name is None or cursor.rest:
        return captured.effects_on_named(cursor.tokens[start:])
    # None stands for a name that could not be determined, so this may be another table.
    kind = "change" if None in name else "truncate"
    return [Effect(kind, relation) for relation in captured.relations_named([name])]


def _skip_wait(cursor: _Cursor) -> None:
    if cursor.accept("WAIT"):
        cursor.position += 1
    else:
        cursor.accept("NOWAIT")


def _effects_of_definition(head: str, cursor: _Cursor, captured: _Captured) -> list[Effect]:
    """Of CREATE, ALTER and DROP."""
    replaces = head == "CREATE" and cursor.accept("OR", "REPLACE")
    is_temporary = head != "ALTER" and cursor.accept("TEMPORARY")
    if cursor.next_word in _OBJECTS_WITHOUT_ROWS or cursor.accept("SPATIAL", "REFERENCE"):
        return []
    if any(token.symbol == ";" for token in cursor.rest):
        return captured.effects_on_all()
    if cursor.accept_one(("DATABASE", "SCHEMA")):
        return _effects_of_schema(head, cursor, captured, is_new=head == "CREATE" and not replaces)
    ignores = head == "ALTER" and cursor.accept("IGNORE")
    while cursor.accept_one(("ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")):
        ignores = ignores or (head == "ALTER" and cursor.accept("IGNORE"))
    kind = cursor.accept_one(("TABLE", "TABLES", "INDEX", "SEQUENCE"))
    if not kind:
        return captured.effects_on_all()
    if kind == "SEQUENCE":
        return captured.effects_on_named(cursor.rest)
    if kind == "INDEX":
        return [] if head == "CREATE" else _effects_of_dropped_index(cursor, captured)
    if head == "DROP":
        return [] if is_temporary else captured.effects_on_named(cursor.rest)
    if head == "CREATE":
        return _effects_of_created_table(cursor, captured, replaces=replaces, is_temporary=is_temporary)
    return _effects_of_alteration(cursor, captured, ignores=ignores)


def _effects_of_schema(head: str, cursor: _Cursor, captured: _Captured, *, is_new: bool) -> list[Effect]:
    if is_new:
        return []
    if head == "ALTER":
        # UPGRADE DATA DIRECTORY NAME gives it another name.
        return captured.effects_on_all() if any(token.word == "UPGRADE" for token in cursor.rest) else []
    cursor.accept("IF", "EXISTS")
    is_name = bool(cursor.rest) and cursor.rest[0].is_name
    return captured.effects_on_schema(cursor.rest[0].text) if is_name else captured.effects_on_all()


def _effects_of_dropped_index(cursor: _Cursor, captured: _Captured) -> list[Effect]:
    cursor.accept("IF", "EXISTS")
    index = cursor.rest[0] if cursor.rest else None
    is_other = index is not None and index.text is not None and folded(index.text) != "primary"
    return [] if is_other else captured.effects_on_named(cursor.rest)


def _effects_of_created_table(
    cursor: _Cursor, captured: _Captured, *, replaces: bool, is_temporary: bool
) -> list[Effect]:
    is_new_only = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.table(captured.schema)
    if name is None or _has_query(cursor.rest):
        # The query may call functions that write to any table.
        return captured.effects_on_all("rows")
    if is_temporary or (is_new_only and not replaces):
        return []
    return [Effect("change", relation) for relation in captured.relations_named([name])]


def _has_query(tokens: Sequence[Token]) -> bool:
    words = [token.word for token in tokens]
    return (
        not {"SELECT", "EXECUTE", "TABLE", "WITH"}.isdisjoint(_without_parsers(words))
        # Partitions have VALUES LESS THAN and VALUES IN.
        or any(
            word == "VALUES" and following not in ("LESS", "IN")
            for word, following in zip(words, [*words[1:], ""], strict=True)
        )
    )


def _without_parsers(words: Sequence[str]) -> list[str]:
    """Without `WITH PARSER` of full-text indexes and `WITH SYSTEM VERSIONING`."""
    following = [*words[1:], ""]
    return [
        word
        for word, next_word in zip(words, following, strict=True)
        if not (word == "WITH" and next_word in ("PARSER", "SYSTEM"))
    ]


def _effects_of_alteration(cursor: _Cursor, captured: _Captured, *, ignores: bool) -> list[Effect]:
    cursor.accept("IF", "EXISTS")
    start = cursor.position
    name = cursor.table(captured.schema)
    _skip_wait(cursor)
    if name is None:
        return captured.effects_on_named(cursor.tokens[start:])
    altered = captured.relations_named([name])
    effects: list[Effect] = []
    for relation in altered:
        is_sure = None not in name and not ignores
        table = captured.tables.get(relation)
        alteration = alteration_of(cursor.rest, table) if is_sure else Alteration.CHANGE
        if alteration is not Alteration.NONE:
            effects.append(Effect("behind" if alteration is Alteration.BEHIND else "change", relation))
    named = captured.relations_named(set(_qualified(tables_named_in(cursor.rest), captured.schema)))
    return effects + [Effect("change", relation) for relation in named if relation not in altered]
