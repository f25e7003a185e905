"""What a statement in the log does to captured tables. Rows of other statements are in row events."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tautochrone.sources.mysql.alterations import Alteration, alteration_of, altered_table
from tautochrone.sources.mysql.binlog import Query
from tautochrone.sources.mysql.tables import CapturedTable

__all__ = ["Effect", "begins_group", "effects_of", "ends_group", "may_make_tables"]

_PIECE = re.compile(
    r"(?P<name>`(?:[^`]|``)*`|\"[^\"]*\")|(?P<text>'(?:[^'\\]|\\.|'')*')"
    r"|/\*M?!\d*|\*/|/\*.*?\*/|--[ \t].*?$|#.*?$",
    re.DOTALL | re.MULTILINE,
)
"""Names, texts and comments. What stands in `/*!40000 … */` is executed: mysqldump writes statements so."""
_WORD = re.compile(r"`(?:[^`]|``)+`|\"[^\"]+\"|[\w$\u0080-\uffff]+")
_REFERENCED = re.compile(
    r"\bREFERENCES\s+(?:`(?:[^`]|``)+`|[\w$]+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|[\w$]+))?", re.IGNORECASE
)
"""A table that a foreign key names: the statement leaves its rows as they are."""
_SETTINGS = re.compile(r"SET\s+STATEMENT\b.*?\bFOR\s+", re.IGNORECASE | re.DOTALL)
"""Of MariaDB: settings for the one statement that follows."""
_MAKES_TABLES = re.compile(r"(CREATE|ALTER|RENAME)\b", re.IGNORECASE)
_ROWS = re.compile(
    r"(?:(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|SELECT|DO|CALL|WITH)\b"
    r"|ANALYZE\s+(?!TABLES?\b|LOCAL\b|NO_WRITE_TO_BINLOG\b)"
    r"|CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?TABLE\b(?:`[^`]*`|\"[^\"]*\"|[^`\"])*?\bSELECT\b)",
    re.IGNORECASE,
)
"""Statements that change rows, or call functions that do. A log of rows has none of them."""
_HARMLESS = re.compile(
    r"(CREATE|DROP)\s+(OR\s+REPLACE\s+)?(UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX\b(?!\s+`?PRIMARY\b)"
    r"|(ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|GRANT|REVOKE|SET)\b"
    r"|(CREATE|ALTER|DROP)\s+(OR\s+REPLACE\s+)?(ALGORITHM\b.*?|DEFINER\b.*?|SQL\b.*?|AGGREGATE\s+)*"
    r"(VIEW|TRIGGER|PROCEDURE|FUNCTION|EVENT|USER|ROLE|SEQUENCE)\b"
    r"|(CREATE|DROP)\s+(OR\s+REPLACE\s+)?TEMPORARY\b"
    r"|CREATE\s+(OR\s+REPLACE\s+)?(DATABASE|SCHEMA)\b"
    r"|CREATE\s+TABLE\s+IF\s+NOT\s+EXISTS\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Effect:
    """
    Attributes:
        kind: `truncate`; `change`: of columns, or of rows that the log does not show; `behind`: of columns
            behind those that are captured; `rows`: the statement stands for the rows that it wrote.
    """

    kind: str
    relation: str


def begins_group(query: Query) -> bool:
    """Whether a statement is the first of several events of one transaction. MySQL's CREATE TABLE …
    SELECT is, by the words at its end."""
    text = query.text.strip().rstrip(";").upper()
    return text == "BEGIN" or text.startswith("XA START") or text.endswith("START TRANSACTION")


def ends_group(query: Query) -> bool | None:
    """Whether a statement commits (True) or rolls back (False) its group; None: neither."""
    text = query.text.strip().rstrip(";").upper()
    return {"COMMIT": True, "ROLLBACK": False}.get(text)


def effects_of(
    query: Query,
    relations: Collection[str],
    normal: Callable[[str], str] = lambda name: name,
    tables: Mapping[str, CapturedTable] | None = None,
) -> list[Effect]:
    """On captured tables, by `schema.table`. What is not understood counts as a change.

    Args:
        normal: makes names comparable, on servers to which upper and lower case are the same.
        tables: the captured ones as they were before the statement, as far as they are known.

    >>> effects_of(Query("shop", "TRUNCATE orders"), ["shop.orders"])
    [Effect(kind='truncate', relation='shop.orders')]
    >>> effects_of(Query("shop", "ALTER TABLE other ADD c INT"), ["shop.orders"])
    []
    """
    whole = _plain_text(query)
    text = _REFERENCED.sub(" ", whole)
    matches = list(_WORD.finditer(text))
    words = [normal(match[0].strip('`"').replace("``", "`")) for match in matches]
    first = words[0].upper() if words else ""
    if _ROWS.match(text):
        # Triggers and functions may write tables that the statement does not name.
        return [Effect("rows", name) for name in relations]
    qualified = _qualified(text, matches, words, normal(query.schema))
    known = tables or {}
    names = {name: _schema_and_table(name, known.get(name), normal) for name in relations}
    named = [name for name, parts in names.items() if parts in qualified]
    if len(words) > 1 and first == "DROP" and words[1].upper() in ("DATABASE", "SCHEMA"):
        return [Effect("change", name) for name, (schema, _table) in names.items() if schema in words]
    if not named or _HARMLESS.match(text):
        return []
    if first == "CREATE" and not _is_created([names[name] for name in named], words):
        # It refers to a captured table only: CREATE TABLE … LIKE, REFERENCES, SELECT.
        return []
    if first == "ALTER":
        return _of_alteration(whole, {name: names[name][1] for name in named}, known, normal)
    kind = "truncate" if first == "TRUNCATE" else "change"
    return [Effect(kind, name) for name in named]


def may_make_tables(query: Query) -> bool:
    """Whether there may be a table behind a statement that was not there before, under any name.

    >>> may_make_tables(Query("shop", "/* new */ CREATE TABLE cards (id INT)"))
    True
    """
    return _MAKES_TABLES.match(_plain_text(query)) is not None


def _plain_text(query: Query) -> str:
    """The statement without comments and without settings for it."""
    text = _PIECE.sub(_without_comment, query.text).strip()
    settings = _SETTINGS.match(text)
    return text[settings.end() :] if settings else text


def _schema_and_table(
    name: str, table: CapturedTable | None, normal: Callable[[str], str]
) -> tuple[str, str]:
    """Both may have dots, so the name alone is not enough."""
    schema, _, plain = name.partition(".")
    return (normal(schema), normal(plain)) if table is None else (normal(table.schema), normal(table.table))


def _of_alteration(
    text: str,
    named: Mapping[str, str],
    tables: Mapping[str, CapturedTable],
    normal: Callable[[str], str],
) -> list[Effect]:
    effects = []
    table_name = normal(altered_table(text)[-1:][0]) if altered_table(text) else ""
    for name, plain in named.items():
        is_altered = plain.upper() == table_name.upper()
        alteration = alteration_of(text, tables.get(name) if is_altered else None)
        if alteration is not Alteration.NONE:
            effects.append(Effect("behind" if alteration is Alteration.BEHIND else "change", name))
    return effects


def _without_comment(piece: re.Match[str]) -> str:
    return piece["name"] or ("''" if piece["text"] else " ")


def _qualified(
    text: str, matches: Sequence[re.Match[str]], words: Sequence[str], schema: str
) -> set[tuple[str, str]]:
    """Each name as a table: in the schema that stands before it, else in that of the session."""
    names: list[list[str]] = []
    for number, word in enumerate(words):
        between = text[matches[number - 1].end() : matches[number].start()] if number else ""
        if between.strip() == ".":
            names[-1].append(word)
        else:
            names.append([word])
    return {(schema, name[0]) if len(name) == 1 else (name[0], name[1]) for name in names}


def _is_created(named: Sequence[tuple[str, str]], words: list[str]) -> bool:
    """Whether CREATE [OR REPLACE] TABLE makes one of the tables, each with its schema, itself."""
    upper = [word.upper() for word in words]
    if "TABLE" not in upper:
        return True
    behind = words[upper.index("TABLE") + 1 :][:2]
    return any(behind[:1] == [table] or behind == [schema, table] for schema, table in named)
