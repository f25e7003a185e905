"""Command-line arguments as the options that open a project."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tautochrone.errors import SettingsError

if TYPE_CHECKING:
    from tautochrone.service.locate import Options

__all__ = ["names_of", "options_of"]


def options_of(arguments: argparse.Namespace) -> Options:
    """Collect `--spec`, `--conf`, `--master`, `--interval`.

    Raises:
        SettingsError: a `--conf` without `=`.
    """
    from tautochrone.service.locate import Options

    conf: dict[str, str] = {}
    for text in getattr(arguments, "conf", []):
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError("INVALID_CONF", f"--conf {text!r} is not KEY=VALUE")
        conf[key.strip()] = value
    return Options(
        spec=arguments.spec,
        conf=conf,
        master=getattr(arguments, "master", None),
        interval=getattr(arguments, "interval", None),
    )


def names_of(texts: list[str]) -> list[str]:
    """Names from options that repeat and take comma lists."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
