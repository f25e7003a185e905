"""Marks in the log that prove that it is the log of the server whose rows were copied.

Behind the rows of each chunk a message goes into the log, with the point where the log was. A server that
was restored from files of before the copy has the same name, timeline and slot, and gives the same points to
other transactions; it has no such message. A table that was copied is complete only behind its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tautochrone.model.source_position import LogPosition

__all__ = ["MARK_PREFIX", "has_marks", "mark_text", "marks_due", "marks_missing", "split_marks"]

MARK_PREFIX = "tautochrone"
_FIRST_MESSAGES = 10_000
_KIND = b"M"
_FIXED = 1 + 1 + 8
"""Bytes of a message before its prefix: its kind, flags, and its place in the log."""


def mark_text(point: int) -> str:
    return f"copied up to {point}"


def marks_due(position: LogPosition) -> frozenset[int]:
    """The points of copies whose marks are behind a position."""
    return frozenset(point for point in position.bulk.pass_at.values() if point > position.point)


def marks_missing(due: Collection[int], end: int, marks: frozenset[bytes]) -> bool:
    """Whether a mark is not among those of the log up to `end` that should be."""
    return any(point <= end and mark_text(point).encode() not in marks for point in due)


def has_marks(position: LogPosition, read: Callable[[int], Sequence[bytes]]) -> bool:
    """Whether the log has all marks that are behind a position.

    Args:
        read: so many messages from the position on, or more.
    """
    due, limit = marks_due(position), _FIRST_MESSAGES
    while due:
        messages = read(limit)
        marks, _ = split_marks(messages)
        if not marks_missing(due, max(due), marks):
            break
        if len(messages) < limit:
            return False
        limit *= 2
    return True


def split_marks(messages: Sequence[bytes]) -> tuple[frozenset[bytes], list[bytes]]:
    """The texts of our own messages in the log, and all that are no messages of somebody.

    >>> mark = b"M\\x01" + bytes(8) + b"tautochrone\\0" + (14).to_bytes(4, "big") + mark_text(7).encode()
    >>> split_marks([b"B...", mark, b"C..."])
    (frozenset({b'copied up to 7'}), [b'B...', b'C...'])
    """
    others = [message for message in messages if message[:1] != _KIND]
    if len(others) == len(messages):
        return frozenset(), others
    texts = set()
    for message in messages:
        prefix, _, text = message[_FIXED:].partition(b"\0")
        if message[:1] == _KIND and prefix == MARK_PREFIX.encode():
            texts.add(text[4:])
    return frozenset(texts), others
