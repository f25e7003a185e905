"""Types of numbers, by Spark's names."""

from __future__ import annotations

__all__ = ["is_wider_number"]

_ORDERS = (("tinyint", "smallint", "int", "bigint", "double"), ("float", "double"))


def is_wider_number(kind: str, than: str) -> bool:
    """Whether a column of one type takes the numbers that a reader found to be of another.

    >>> is_wider_number("double", "bigint"), is_wider_number("int", "bigint")
    (True, False)
    """
    return any(kind in order and than in order and order.index(kind) > order.index(than) for order in _ORDERS)
