"""Whether a definition file was written for Databricks."""

from __future__ import annotations

import re

__all__ = ["is_written_for_databricks", "runs_as_main"]

_SIGNS = re.compile(
    r"""
    ^(?:\#|--)[ ]Databricks[ ]notebook[ ]source
    | ^\s*(?:import|from)[ ]+(?:dlt|databricks)\b
    | \bcloudFiles\b | \b(?:read_files|cloud_files|create_auto_cdc_\w+|apply_changes\w*)\s*\(
    | ^\s*@\w+\.(?:expect\w*|view)\b
    | \bCREATE\s+OR\s+REFRESH\b | \bCREATE\s+(?:STREAMING\s+)?LIVE\b
    | \bON\s+VIOLATION\b | \bAPPLY\s+CHANGES\s+INTO\b
    """,
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_MAIN = re.compile(r"""^if\s+__name__\s*==\s*["']__main__["']\s*:""", re.MULTILINE)


def is_written_for_databricks(text: str) -> bool:
    """Whether a file says something that open-source Spark does not know.

    >>> is_written_for_databricks("import dlt")
    True
    >>> is_written_for_databricks("from pyspark import pipelines as dp")
    False
    """
    return _SIGNS.search(text) is not None


def runs_as_main(text: str) -> bool:
    """Whether a file defines something only if it is the main program, as notebooks of Databricks are.

    >>> runs_as_main("import dlt\\nif __name__ == '__main__':\\n    define()")
    True
    """
    return _MAIN.search(text) is not None
