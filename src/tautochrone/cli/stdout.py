"""Standard output carries the command's answer and nothing else.

Definitions print, libraries log, Spark's JVM and sub-processes write to file descriptor 1. While a command
runs, that descriptor is standard error, and the command's own answer goes to a copy of the former one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["answer", "give_back", "reserved"]

_STDOUT = 1
_reserved: TextIO | None = None


def answer() -> TextIO:
    """Where the command's answer is written."""
    return _reserved or sys.stdout


@contextlib.contextmanager
def reserved() -> Iterator[None]:
    """Keep standard output for `answer` within the block; what others write to it goes to standard error."""
    global _reserved  # noqa: PLW0603: the descriptor belongs to the whole process, too
    if sys.stdout is None or sys.stderr is None:
        # Started with a closed descriptor: there is nothing to keep apart.
        yield
        return
    sys.stdout.flush()
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    _reserved = os.fdopen(os.dup(_STDOUT), "w", encoding=encoding, errors=errors)
    os.dup2(sys.stderr.fileno(), _STDOUT)
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """Make descriptor 1 standard output again: at the end, or before the program image is replaced."""
    global _reserved
    if _reserved is None:
        return
    stream, _reserved = _reserved, None
    sys.stdout.flush()
    os.dup2(stream.fileno(), _STDOUT)
    # The reader of a pipe may have ended before all was written: `taut status | head -1`.
    with contextlib.suppress(BrokenPipeError):
        stream.close()
