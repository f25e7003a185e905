"""`taut config show` and `taut config schema`: from the declarations and the project alone, without Spark."""

from __future__ import annotations

import argparse
import json

from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.stdout import answer

__all__ = ["config"]


def config(arguments: argparse.Namespace) -> int:
    """Dispatch the two actions."""
    return _schema() if arguments.action == "schema" else _show(arguments)


def _schema() -> int:
    from tautochrone.project.settings import json_schema

    answer().write(json.dumps(json_schema(), indent=2) + "\n")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from tautochrone.app.locate import settings_in_force

    values = settings_in_force(options_of(arguments))
    if arguments.json:
        for value in values:
            json_line({"setting": value.key, "value": value.text, "origin": value.origin})
        return 0
    columns = ("setting", "value", "origin") if arguments.origin else ("setting", "value")
    table(columns, [(value.key, value.text, value.origin)[: len(columns)] for value in values])
    return 0
