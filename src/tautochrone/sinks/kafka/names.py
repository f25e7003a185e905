"""The names of topics: two tables of a sink never share one, by construction.

A plain name is the database and the table with `.` between them, without the database `default`. It is unique
as long as no part has a `.` in it or `_` at its end. Every other name (also one that is too long or has
characters that Kafka does not take) ends in a hash of the table's whole name and `_`, at which no plain name
ends.

Kafka takes `.` and `_` in names of topics for the same: it refuses a topic `a.b` beside `a_b`. See `collide`.
"""

from __future__ import annotations

import hashlib
import re

from tautochrone.model.names import TableName

__all__ = ["TABLE", "collide", "is_topic_name", "topic_name"]

TABLE = "{table}"
"""What stands for the name of a table in the option `topic`."""

_LONGEST = 249
_HASH_DIGITS = 16
_REFUSED = re.compile(r"[^a-zA-Z0-9._-]")


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes it."""
    return 0 < len(name) <= _LONGEST and not _REFUSED.search(name) and name not in (".", "..")


def collide(name: str, other: str) -> bool:
    """Whether Kafka refuses one of these topics beside the other, or they are one."""
    return name.replace(".", "_") == other.replace(".", "_")


def topic_name(template: str, table: TableName) -> str:
    """The name of a table's topic.

    Args:
        template: the option `topic`, in which `{table}` has room for 40 characters at least.

    Example:
        >>> topic_name("shop.{table}", TableName("lake", ("sales",), "orders"))
        'shop.sales.orders'
        >>> topic_name("shop.{table}", TableName("lake", ("default",), "sales.orders"))
        'shop.sales_orders_c7f4ebf765476f54_'
    """
    parts = [*(() if table.namespace == ("default",) else table.namespace), table.table]
    plain = ".".join(parts)
    name = template.replace(TABLE, plain)
    if is_topic_name(name) and not any("." in part or part.endswith("_") for part in parts):
        return name
    whole_name = "\n".join((*table.namespace, table.table))
    suffix = f"_{hashlib.sha256(whole_name.encode()).hexdigest()[:_HASH_DIGITS]}_"
    stem = re.sub(r"[^a-zA-Z0-9_-]", "_", plain)
    while not is_topic_name(template.replace(TABLE, stem + suffix)) and stem:
        stem = stem[:-1]
    return template.replace(TABLE, stem + suffix)
