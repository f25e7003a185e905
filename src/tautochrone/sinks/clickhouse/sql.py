"""Names and texts as ClickHouse spells them."""

from __future__ import annotations

__all__ = ["name_sql", "text_sql"]


def name_sql(name: str) -> str:
    """A name, quoted.

    Example:
        >>> name_sql("a`b")
        '`a\\\\`b`'
    """
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def text_sql(value: str) -> str:
    """A string literal.

    Example:
        >>> text_sql("it's")
        "'it\\\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
