"""What is closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self

__all__ = ["Closeable"]


class Closeable:
    """Makes a class with a `close` method a context manager.

    >>> class Server(Closeable):
    ...     def close(self) -> None:
    ...         print("closed")
    >>> with Server():
    ...     print("open")
    open
    closed
    """

    __slots__ = ()

    def close(self) -> None:
        """Release what the object holds. May be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
