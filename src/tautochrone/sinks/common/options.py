"""Reading the options of sinks: what is missing or wrong is told in the same way by all adapters.

That includes Python packages that only some sinks need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from tautochrone.errors import SinkError

__all__ = [
    "invalid_option_error",
    "needs_package",
    "positive_number",
    "refuse_password",
    "require_known",
    "require_option",
    "whole_number",
]


def require_option(name: str, format_name: str, options: Mapping[str, str], option: str, hint: str) -> str:
    """The value of an option.

    Raises:
        SinkError: `SINK_OPTION_MISSING`.
    """
    if option not in options:
        raise SinkError(
            "SINK_OPTION_MISSING", f"Sink {name}: {format_name} needs the option {option}", hint=hint
        )
    return options[option]


def require_known(
    name: str,
    options: Mapping[str, str],
    known: Collection[str],
    prefixes: tuple[str, ...] = (),
    note: str = "",
) -> None:
    """Refuse an option that the adapter does not have.

    Args:
        prefixes: of further options.
        note: follows the list of known ones in the hint.

    Raises:
        SinkError: `SINK_OPTION_INVALID`.
    """
    for option in options:
        if option not in known and not option.startswith(prefixes):
            raise invalid_option_error(
                name, f"has no option {option}", f"Options: {', '.join(sorted(known))}{note}"
            )


def positive_number(name: str, options: Mapping[str, str], option: str, default: int, unit: str = "") -> int:
    """The value of an option that counts something, 1 or more.

    Raises:
        SinkError: `SINK_OPTION_INVALID`.
    """
    return whole_number(name, options, option, default, unit, least=1)


def whole_number(
    name: str, options: Mapping[str, str], option: str, default: int, unit: str = "", *, least: int
) -> int:
    """The value of an option that counts something, `least` or more.

    Raises:
        SinkError: `SINK_OPTION_INVALID`.
    """
    text = options.get(option)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise invalid_option_error(name, f"has {option} = {text}", f"Write a number{unit}, {least} or more.")
    return int(text)


def refuse_password(name: str, password: str | None) -> None:
    """Refuse a password in a URL, which would be shown in logs.

    Raises:
        SinkError: `SINK_OPTION_INVALID`.
    """
    if password is not None:
        raise invalid_option_error(
            name,
            "has a password in its url",
            f'Write [sinks.{name}.options] password = {{ env = "…" }} in tautochrone.toml.',
        )


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


def invalid_option_error(name: str, problem: str, hint: str) -> SinkError:
    return SinkError("SINK_OPTION_INVALID", f"Sink {name} {problem}", hint=hint, sqlstate="22023")
