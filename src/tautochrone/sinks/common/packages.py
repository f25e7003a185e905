"""Python packages that only some sinks need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tautochrone.errors import SinkError

__all__ = ["needs_package"]


@contextmanager
def needs_package(sink: str, package: str, extra: str) -> Iterator[None]:
    """Imports of a package that may be missing.

    Args:
        extra: of this project, which installs it.

    Raises:
        SinkError: `SINK_PACKAGE_MISSING`.
    """
    try:
        yield
    except ImportError as error:
        raise SinkError(
            "SINK_PACKAGE_MISSING",
            f"Sink {sink}: the Python package {package} is not installed",
            hint=f"pip install 'tautochrone[{extra}]'",
        ) from error
