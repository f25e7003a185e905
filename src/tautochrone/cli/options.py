"""Command-line arguments as the options that open a project."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tautochrone.errors import SettingsError

if TYPE_CHECKING:
    from tautochrone.app.locate import Options

__all__ = ["duration_ms", "names_of", "options_of"]


def options_of(arguments: argparse.Namespace) -> Options:
    """Collect `--spec`, `--conf`, `--set`, `--master`, `--interval`.

    Raises:
        SettingsError: a `--conf` or a `--set` without `=`.
    """
    from tautochrone.app.locate import Options

    return Options(
        spec=arguments.spec,
        conf=_pairs("--conf", "INVALID_CONF", getattr(arguments, "conf", [])),
        given=_pairs("--set", "INVALID_SETTING", getattr(arguments, "set", [])),
        master=getattr(arguments, "master", None),
        interval=getattr(arguments, "interval", None),
        job=getattr(arguments, "job", None),
    )


def _pairs(flag: str, error_class: str, texts: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            # The text itself is not shown: it may contain a secret.
            raise SettingsError(
                error_class, f"{flag} takes KEY=VALUE", hint="there is no = in what was given"
            )
        settings[key.strip()] = value
    return settings


def duration_ms(text: str) -> int:
    """A duration on the command line, in milliseconds; anything else is a usage error."""
    from tautochrone.project.setting_kinds import Duration

    try:
        return Duration().parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {Duration().description}") from None


def names_of(texts: list[str]) -> list[str]:
    """Names from options that repeat and take comma lists."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
