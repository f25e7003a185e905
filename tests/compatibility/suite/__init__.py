"""The constructs, by chapter."""

from __future__ import annotations

from tests.compatibility.construct import Construct

from . import frames, python, refused, sinks, specs, sql, streams

__all__ = ["CHAPTERS", "CONSTRUCTS"]

CHAPTERS: dict[str, str] = {
    "sql": "Definitions in SQL",
    "python": "Definitions in Python",
    "stream": "Streaming tables and flows",
    "sink": "Sinks",
    "spec": "Spec, files and command line",
    "refused": "Projects with a mistake",
    "guide": "The samples of Spark's programming guide",
}
CONSTRUCTS: list[Construct] = [
    *sql.CONSTRUCTS,
    *python.CONSTRUCTS,
    *frames.CONSTRUCTS,
    *streams.CONSTRUCTS,
    *sinks.CONSTRUCTS,
    *specs.CONSTRUCTS,
    *refused.CONSTRUCTS,
]
