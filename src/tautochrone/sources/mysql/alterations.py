"""What ALTER TABLE does to rows and to their images in the log, as far as its text proves it.

Each part of the statement must be one of those below as a whole; everything else counts as a change. The
forms are those of tokens with one space between them: words in capitals, empty texts (`''`), and quoted
names in backquotes, with `%` before the number of each character that is no letter or digit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from enum import Enum
from urllib.parse import quote, unquote

from tautochrone.sources.mysql.tables import CapturedTable, TableColumn
from tautochrone.sources.mysql.tokens import Token, TokenKind

__all__ = ["Alteration", "alteration_of", "folded", "tables_named_in"]


class Alteration(Enum):
    """
    Attributes:
        NONE: rows and images stay as they are.
        BEHIND: columns come, change or go behind those that are captured, which stay as they are.
        CHANGE: anything else, or not proven.
    """

    NONE = 0
    BEHIND = 1
    CHANGE = 2


_NAME = r"(?:[\w$]+|`[^` ]+`)"
_VALUE = r"(?:[-+] )?(?:[BX] )?(?:[\w$]+|'')(?: \. \d+)?(?: \( (?:\d+ )?\))?"
_LIST = rf"\( {_NAME}(?: \( \d+ \))?(?: ASC| DESC)?(?: , {_NAME}(?: \( \d+ \))?(?: ASC| DESC)?)* \)"
_NOT_PRIMARY = r"(?!`?(?i:PRIMARY)`?(?: |$))"
_INDEX_OPTION = (
    r"(?: USING (?:BTREE|HASH)| COMMENT ''| KEY_BLOCK_SIZE(?: =)? \d+| VISIBLE| INVISIBLE"
    rf"|(?: NOT)? IGNORED| WITH PARSER {_NAME})"
)
_OPTION = (
    r"(?:(?:AUTO_INCREMENT|AVG_ROW_LENGTH|CHECKSUM|TABLE_CHECKSUM|PAGE_CHECKSUM|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS"
    r"|PACK_KEYS|STATS_AUTO_RECALC|STATS_PERSISTENT|STATS_SAMPLE_PAGES|DELAY_KEY_WRITE|ROW_FORMAT|ALGORITHM|LOCK"
    r"|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|ENCRYPTED|ENCRYPTION_KEY_ID)(?: =)? (?:[\w$]+|'')"
    r"|(?:COMMENT|COMPRESSION|ENCRYPTION)(?: =)? ''"
    r"|ENGINE(?: =)? `?INNODB`?"
    r"|(?:DEFAULT )?(?:CHARACTER SET|CHARSET|COLLATE)(?: =)? (?:[\w$]+|''))"
)
_HARMLESS = re.compile(
    rf"{_OPTION}(?: {_OPTION})*"
    r"|FORCE|(?:DISABLE|ENABLE) KEYS"
    r"|ADD (?:(?:CONSTRAINT (?:" + _NAME + r" )?)?UNIQUE(?: INDEX| KEY)?|(?:FULLTEXT |SPATIAL )?(?:INDEX|KEY)"
    rf"|FULLTEXT|SPATIAL)(?: IF NOT EXISTS)?(?: (?!USING ){_NAME})?(?: USING (?:BTREE|HASH))? {_LIST}"
    rf"{_INDEX_OPTION}*"
    rf"|DROP (?:INDEX|KEY) (?:IF EXISTS )?{_NOT_PRIMARY}{_NAME}"
    rf"|RENAME (?:INDEX|KEY) {_NAME} TO {_NAME}"
    rf"|ALTER (?:INDEX|KEY) (?:IF EXISTS )?{_NAME} (?:VISIBLE|INVISIBLE|(?:NOT )?IGNORED)"
    rf"|ALTER (?:COLUMN )?(?:IF EXISTS )?{_NAME} (?:DROP DEFAULT|SET (?:VISIBLE|INVISIBLE|DEFAULT "
    rf"(?:{_VALUE}|\(.*\))))"
    rf"|ADD (?:CONSTRAINT (?:{_NAME} )?)?CHECK \(.*\)(?: (?:NOT )?ENFORCED)?"
    rf"|(?:DROP|ALTER) CHECK {_NAME}(?: (?:NOT )?ENFORCED)?",
    re.DOTALL,
)
_PARTITIONS = re.compile(
    r"ADD PARTITION (?:IF NOT EXISTS )?\( (?P<added>.*) \)"
    rf"|REORGANIZE PARTITION {_NAME}(?: , {_NAME})* INTO \( (?P<last>.*) \)"
    rf"|(?:ANALYZE|CHECK|OPTIMIZE) PARTITION {_NAME}(?: , {_NAME})*",
    re.DOTALL,
)
"""They stand alone. Servers that move rows to other partitions drop those that fit none, without a word: rows
in the wrong partition after EXCHANGE … WITHOUT VALIDATION, or of a list that lost values."""
_HAS_ALL_ABOVE = re.compile(rf"PARTITION {_NAME} VALUES LESS THAN (?:MAXVALUE|\( MAXVALUE\b[^()]*\))(?: |$)")
_HAS_VALUES = re.compile(rf"PARTITION {_NAME} VALUES (?:LESS THAN|IN) ")
_OWN_PART = re.compile(r"(?:ADD|DROP|MODIFY|CHANGE|ALTER|RENAME (?:COLUMN|INDEX|KEY)) ")
"""Those that are about nothing but the table itself, and other tables that foreign keys refer to."""
_DEFINITION = re.compile(
    rf"(?:MODIFY (?:COLUMN )?(?:IF EXISTS )?(?P<column>{_NAME})|CHANGE (?:COLUMN )?(?:IF EXISTS )?"
    rf"(?P<old>{_NAME}) (?P<new>{_NAME}))"
    r" (?P<type>[A-Z]+)(?: \( (?P<size>\d+(?: , \d+)?) \))?(?P<unsigned> UNSIGNED| SIGNED)?"
    r"(?: (?:CHARACTER SET|CHARSET) (?P<charset>[\w$]+))?(?: COLLATE [\w$]+)?"
    rf"(?P<attributes>(?: NOT NULL| NULL| DEFAULT {_VALUE}| COMMENT '')*)"
)
"""One that may say again what the column is, with another comment or default."""
_ADDED = re.compile(rf"ADD (?:COLUMN )?(?:IF NOT EXISTS )?{_NAME} (?P<type>[A-Z]+)\b.*", re.DOTALL)
_SEVERAL_ADDED = re.compile(r"ADD (?:COLUMN )?\( (?P<columns>.*) \)", re.DOTALL)
_OF_COLUMN = re.compile(
    rf"(?:DROP (?:COLUMN )?(?:IF EXISTS )?(?P<dropped>{_NAME})(?: RESTRICT| CASCADE)?"
    rf"|RENAME COLUMN (?:IF EXISTS )?(?P<renamed>{_NAME}) TO {_NAME}"
    rf"|(?:MODIFY (?:COLUMN )?(?:IF EXISTS )?(?P<changed>{_NAME})"
    rf"|CHANGE (?:COLUMN )?(?:IF EXISTS )?(?P<old>{_NAME}) {_NAME}) (?P<type>[A-Z]+)\b.*)",
    re.DOTALL,
)
_NOT_BEHIND = re.compile(
    r"\b(?:FIRST|AFTER|PRIMARY|REFERENCES|PERIOD|SYSTEM|VERSIONING|CONSTRAINT|COMPRESSED)\b"
)
"""Columns are moved, or may be part of the key, changed by foreign keys, or written in another form."""
_TYPES = frozenset(
    [
        "TINYINT",
        "SMALLINT",
        "MEDIUMINT",
        "INT",
        "INTEGER",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "REAL",
        "DECIMAL",
        "DEC",
        "NUMERIC",
        "FIXED",
        "BIT",
        "BOOL",
        "BOOLEAN",
        "DATE",
        "TIME",
        "DATETIME",
        "TIMESTAMP",
        "YEAR",
        "CHAR",
        "VARCHAR",
        "BINARY",
        "VARBINARY",
        "TINYTEXT",
        "TEXT",
        "MEDIUMTEXT",
        "LONGTEXT",
        "TINYBLOB",
        "BLOB",
        "MEDIUMBLOB",
        "LONGBLOB",
        "ENUM",
        "SET",
        "JSON",
    ]
)
"""Those whose values the reader of the log can pass over."""
_INTEGERS = {"INTEGER": "int", "INT": "int", "TINYINT": "tinyint", "SMALLINT": "smallint"} | {
    "MEDIUMINT": "mediumint",
    "BIGINT": "bigint",
}
_SIZED = {"DATETIME": 0, "TIME": 0, "VARBINARY": None, "BINARY": 1, "VARCHAR": None, "CHAR": 1}
"""Types with a number, and what it is without one."""
_PLAIN = {"DATE", "DOUBLE", "FLOAT", "JSON"} | {
    f"{size}{kind}" for size in ("", "TINY", "MEDIUM", "LONG") for kind in ("BLOB", "TEXT")
}


def alteration_of(tokens: Sequence[Token], table: CapturedTable | None) -> Alteration:
    """
    Args:
        tokens: of an ALTER TABLE, behind the table's name.
        table: the captured table that it alters, as it was before; None: not known.
    """
    if any(token.text is None for token in tokens):
        return Alteration.CHANGE
    words = [_form(token) for token in tokens]
    if not words or _leaves_rows(" ".join(words)):
        return Alteration.NONE
    return max(
        (_alteration_of_part(part, table) for part in _comma_separated_parts(words)),
        key=lambda alteration: alteration.value,
    )


def tables_named_in(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens of an ALTER TABLE that may name other tables whose rows it changes."""
    depth, start = 0, 0
    named: list[Token] = []
    for number, token in enumerate([*tokens, Token(TokenKind.SYMBOL, ",")]):
        depth += {"(": 1, ")": -1}.get(token.symbol, 0)
        if token.symbol == "," and (depth == 0 or number == len(tokens)):
            part = tokens[start:number]
            if not _OWN_PART.match(" ".join(_form(word) for word in part) + " "):
                named += [*part, token]
            start = number + 1
    return named


def folded(name: str) -> str:
    """Equal for all names that a server may take for the same one, without case and accents."""
    letters = unicodedata.normalize("NFD", name.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _form(token: Token) -> str:
    if token.kind is TokenKind.TEXT:
        return "''"
    if token.kind is TokenKind.NAME or (token.kind is TokenKind.WORD and not (token.text or "").isascii()):
        return f"`{quote(token.text or '', safe='')}`"
    return (token.text or "").upper()


def _leaves_rows(text: str) -> bool:
    """Whether it is a statement about partitions that drops no rows."""
    match = _PARTITIONS.fullmatch(text)
    if match is None:
        return False
    if match["added"] is not None:
        return all(_HAS_VALUES.match(part) for part in _comma_separated_parts(match["added"].split(" ")))
    # A table whose last range has no end has a partition for each row.
    last = match["last"]
    return last is None or _HAS_ALL_ABOVE.match(_comma_separated_parts(last.split(" "))[-1]) is not None


def _comma_separated_parts(tokens: list[str]) -> list[str]:
    """What stands between commas outside of parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [" ".join(part) for part in parts]


def _alteration_of_part(part: str, table: CapturedTable | None) -> Alteration:
    if _HARMLESS.fullmatch(part):
        return Alteration.NONE
    if table is None:
        return Alteration.CHANGE
    definition = _DEFINITION.fullmatch(part)
    if definition is not None and _repeats_type(definition, table):
        return Alteration.NONE
    return Alteration.BEHIND if _changes_later_columns_only(part, table) else Alteration.CHANGE


def _changes_later_columns_only(part: str, table: CapturedTable) -> bool:
    """Whether it is about columns behind the captured ones."""
    if _NOT_BEHIND.search(part):
        return False
    several = _SEVERAL_ADDED.fullmatch(part)
    if several is not None:
        return all(
            _is_addition(f"ADD {column}") for column in _comma_separated_parts(several["columns"].split(" "))
        )
    other = _OF_COLUMN.fullmatch(part)
    if other is None:
        return _is_addition(part)
    name = other["dropped"] or other["renamed"] or other["changed"] or other["old"]
    return (other["type"] is None or other["type"] in _TYPES) and _column_named(name, table.logged) is None


def _is_addition(part: str) -> bool:
    added = _ADDED.fullmatch(part)
    return added is not None and added["type"] in _TYPES


def _column_named(name: str, columns: Collection[TableColumn]) -> TableColumn | None:
    """By its name in a statement."""
    plain = folded(unquote(name.strip("`")))
    return next((column for column in columns if folded(column.name) == plain), None)


def _repeats_type(definition: re.Match[str], table: CapturedTable) -> bool:
    """Whether a column gets the type that it has. NOT NULL replaces NULL in some modes, except in keys."""
    old, new = definition["column"] or definition["old"], definition["column"] or definition["new"]
    column = _column_named(old, table.logged)
    if column is None or column.is_generated:
        return False
    if not unquote(old.strip("`")).casefold() == unquote(new.strip("`")).casefold() == column.name.casefold():
        return False
    if " NOT NULL" in definition["attributes"] and column.name not in table.keys:
        return False
    if column.charset is not None and (definition["charset"] or "").casefold() != column.charset.casefold():
        return False
    word, size = definition["type"], definition["size"]
    if word in _INTEGERS:
        is_unsigned = definition["unsigned"] == " UNSIGNED"
        is_same = column.data_type == _INTEGERS[word] and column.is_unsigned == is_unsigned
        return is_same and "zerofill" not in column.column_type
    if definition["unsigned"]:
        return False
    if word in ("DECIMAL", "NUMERIC"):
        precision, _, scale = (size or "10").partition(" , ")
        written = f"decimal({precision},{scale or 0})"
        return column.column_type == written
    if word in _SIZED:
        count = _SIZED[word] if size is None else int(size)
        return column.column_type in (f"{word.lower()}({count})", word.lower() if count == 0 else "")
    return word in _PLAIN and size is None and column.column_type == word.lower()
