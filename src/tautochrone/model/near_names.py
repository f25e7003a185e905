"""The hint for a name that nothing has: the nearest name, or what names there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near_names_hint"]

_LISTED = 20


def near_names_hint(text: str, known: Iterable[object], otherwise: str, none: str | None = None) -> str:
    """A hint for people who typed `text`. Of a name with several parts the last ones may be typed.

    Args:
        known: what could have been meant.
        otherwise: begins the list of them where none is near.
        none: the hint where there is nothing that could have been meant; None: that there is none.

    >>> near_names_hint("odrers", ["lake.shop.orders", "lake.shop.users"], "there are")
    'did you mean orders?'
    >>> near_names_hint("x", ["lake.shop.orders"], "there are")
    'there are lake.shop.orders'
    >>> near_names_hint("x", [], "there are")
    'there are none'
    """
    names = sorted(set(map(str, known)))
    typed = text.lower()
    written: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        for first in range(len(parts)):
            ending = ".".join(parts[first:])
            written.setdefault(ending.lower(), ending)
    near = difflib.get_close_matches(typed, written, n=1)
    if near:
        return f"did you mean {written[near[0]]}?"
    if not names:
        return f"{otherwise} none" if none is None else none
    listed = ", ".join(names[:_LISTED])
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{otherwise} {listed}{more}"
