"""PySpark's notes of where a query was written, which its errors show.

At each call of a DataFrame or a Column PySpark looks up the line of the caller and gives it to the JVM, in
seven messages where the call itself takes one or two. That is worth its price in definitions, whose authors
read the errors. The lines of this package tell them nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import utils

__all__ = ["call_sites"]

_is_enabled_in_pyspark = utils.is_debugging_enabled
_of_thread = threading.local()


def _is_enabled() -> bool:
    return getattr(_of_thread, "noted", True) and _is_enabled_in_pyspark()


utils.is_debugging_enabled = _is_enabled


@contextmanager
def call_sites(*, noted: bool) -> Iterator[None]:
    """Whether PySpark notes the lines that call it, inside the block and in this thread."""
    before = getattr(_of_thread, "noted", True)
    _of_thread.noted = noted
    try:
        yield
    finally:
        _of_thread.noted = before
