"""The hint for a name that nothing has: the nearest name, or what names there are."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["matching_tables", "near_names_hint", "table_spellings"]

_Name = TypeVar("_Name")
_LISTED = 20
_SUGGESTED = 3


def near_names_hint(
    text: str,
    known: Iterable[object],
    otherwise: str,
    none: str | None = None,
    *,
    spellings: Callable[[str], Iterable[str]] | None = None,
) -> str:
    """A hint for people who typed `text`, be it like a name or like its last parts.

    Args:
        known: what could have been meant.
        otherwise: begins the list of them where none is near.
        none: the hint where there is nothing that could have been meant; None: that there is none.
        spellings: of a name those that the look-up accepts; None: only the name. Only these are suggested.

    >>> near_names_hint("odrers", ["lake.shop.orders", "lake.shop.users"], "there are")
    'did you mean lake.shop.orders?'
    >>> near_names_hint("odrers", ["lake.shop.orders"], "there are", spellings=table_spellings)
    'did you mean orders?'
    >>> near_names_hint("x", ["lake.shop.orders"], "there are")
    'there are lake.shop.orders'
    >>> near_names_hint("x", [], "there are")
    'there are none'
    """
    names = sorted(set(map(str, known)))
    accepted = {name: tuple(dict.fromkeys(spellings(name) if spellings else ())) or (name,) for name in names}
    names_of: dict[str, list[str]] = {}
    for name in names:
        parts = name.lower().split(".")
        for first in range(len(parts)):
            names_of.setdefault(".".join(parts[first:]), []).append(name)
    near = difflib.get_close_matches(text.lower(), names_of, n=1)
    if near:
        uses = Counter(each.lower() for written in accepted.values() for each in written)
        meant = [_spelling(accepted[name], near[0], uses) for name in names_of[near[0]]]
        if text not in meant and len(meant) <= _SUGGESTED:
            return f"did you mean {' or '.join(meant)}?"
    if not names:
        return f"{otherwise} none" if none is None else none
    listed = ", ".join(names[:_LISTED])
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{otherwise} {listed}{more}"


def _spelling(accepted: Sequence[str], typed: str, uses: Counter[str]) -> str:
    """Of one name what looks like `typed`, or else the shortest that no other name has."""
    own = [each for each in accepted if uses[each.lower()] == 1] or accepted
    return next((each for each in own if each.lower() == typed), min(own, key=len))


def table_spellings(name: str) -> tuple[str, ...]:
    """A table's full name, that without the catalog, and its last part.

    >>> table_spellings("lake.shop.orders")
    ('lake.shop.orders', 'shop.orders', 'orders')
    """
    return (name, name.partition(".")[2], name.rpartition(".")[2]) if "." in name else (name,)


def matching_tables(text: str, known: Iterable[_Name]) -> list[_Name]:
    """The tables that a user means by `text`, by name: any of their spellings, in any case. The whole name of
    one means that one.

    >>> matching_tables("ORDERS", ["lake.shop.orders", "lake.depot.orders", "lake.shop.users"])
    ['lake.depot.orders', 'lake.shop.orders']
    """
    tables, typed = list(known), text.lower()
    named = [name for name in tables if str(name) == text]
    return named or sorted((name for name in tables if typed in table_spellings(str(name).lower())), key=str)
