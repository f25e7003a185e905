"""Tautochrone: run a Spark Declarative Pipelines project with every table at the same checkpoint.

The public API is small: `connect` for reading, `errors` for what can go wrong. Everything else is
run by the `taut` command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tautochrone.errors import TautochroneError

if TYPE_CHECKING:
    from tautochrone.app.connect import connect

__all__ = ["TautochroneError", "connect"]


def __getattr__(name: str) -> object:
    # Lazy: importing the package must not import Spark.
    if name == "connect":
        from tautochrone.app.connect import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
