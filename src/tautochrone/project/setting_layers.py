"""Collects values of settings by precedence: flag > `TAUTOCHRONE_…` > `tautochrone.toml` > default.

Every value has its origin. What is not declared is refused, never ignored.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tautochrone.errors import SettingsError
from tautochrone.project.secret_references import FORMS, Reference, reference_of, shown
from tautochrone.project.setting_declarations import (
    OTHER_VARIABLES,
    SETTINGS,
    Setting,
    declared,
    is_table,
    nearest,
    sections,
    settings_of,
)
from tautochrone.project.setting_kinds import Secret
from tautochrone.project.spark_defaults import read_spark_defaults
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.start_settings import needed_at_start

__all__ = ["DEFAULT", "FILE_NAME", "PREFIX", "Given", "Value", "collect", "in_order"]

FILE_NAME = "tautochrone.toml"
PREFIX = "TAUTOCHRONE_"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """A flag of the command line that sets a setting.

    Attributes:
        flag: `--interval`, for messages.
        key: the setting as people write it; or its `path`, whose parts may contain any character.
        text: the value as text.
    """

    flag: str
    text: str
    key: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A setting's value.

    Attributes:
        path: concrete: `("flows", "orders", "max_files_per_trigger")`.
        value: parsed; or the reference to a secret.
        text: the value as it may be shown, with secrets masked.
        origin: `--interval`, a variable's name, `tautochrone.toml:3`, or `default`.
    """

    path: tuple[str, ...]
    value: Any
    text: str
    origin: str

    @property
    def key(self) -> str:
        """The key as people write it: `flows."db.orders".max_files_per_trigger`."""
        *above, last = self.path
        return ".".join([*(f'"{part}"' if "." in part else part for part in above), last])

    def reveal(self) -> Any:
        """The value, with a secret looked up.

        Raises:
            SettingsError: `SECRET_NOT_FOUND`.
        """
        return self.value.reveal(self.key, self.origin) if isinstance(self.value, Reference) else self.value


def collect(
    spec: PipelineSpec, flags: Sequence[Given] = (), environment: Mapping[str, str] | None = None
) -> dict[tuple[str, ...], Value]:
    """All settings with a value, by path, in the order of declaration.

    Args:
        flags: a later one wins.
        environment: the process's when absent.

    Raises:
        SettingsError: an unknown key, or an invalid value; with its origin.
    """
    variables = os.environ if environment is None else environment
    values: dict[tuple[str, ...], Value] = {}
    for setting in SETTINGS:
        if "*" not in setting.path:
            default = setting.default if setting.of_project is None else setting.of_project[1](spec)
            if default is not None:
                values[setting.path] = _value(setting, setting.path, default, DEFAULT)
    for name, text, origin in (*read_spark_defaults(variables), *_from_spec(spec)):
        setting, path = _declared(("spark", "conf", name), origin)
        values[path] = _value(setting, path, text, origin)
    for keys, value, origin in _from_file(Path(spec.root), variables):
        setting, path = _declared(keys, origin)
        values[path] = _value(setting, path, value, origin)
    for name, setting in _variables(variables):
        values[setting.path] = _from_text(setting, setting.path, variables[name], name)
    for flag in flags:
        setting, path = _declared(flag.path or _path(flag.key) or (flag.key,), flag.flag)
        values[path] = _from_text(setting, path, flag.text, flag.flag)
    return in_order(values)


def _from_spec(spec: PipelineSpec) -> Iterator[tuple[str, str, str]]:
    """The settings of the spec's `configuration` that Spark needs before it starts."""
    for name, text in spec.configuration.items():
        if needed_at_start(name):
            yield name, text, spec.origin_of(name)


def in_order(values: Mapping[tuple[str, ...], Value]) -> dict[tuple[str, ...], Value]:
    """The values in the order of declaration."""
    order = {setting.key: index for index, setting in enumerate(SETTINGS)}
    return dict(sorted(values.items(), key=lambda item: order[_declared(item[0], "")[0].key]))


def _declared(path: tuple[str, ...], origin: str) -> tuple[Setting, tuple[str, ...]]:
    known = declared(path)
    if known is None:
        raise _unknown(path, origin)
    return known


def _from_text(setting: Setting, path: tuple[str, ...], text: str, origin: str) -> Value:
    try:
        value = setting.kind.from_text(text)
    except ValueError as error:
        raise _invalid(setting, path, text, origin) from error
    return _value(setting, path, value, origin)


def _value(setting: Setting, path: tuple[str, ...], value: Any, origin: str) -> Value:
    if isinstance(value, Reference):
        if not setting.by_reference:
            raise _invalid(setting, path, value, origin)
        return Value(path=path, value=value, text=str(value), origin=origin)
    try:
        parsed = setting.kind.parse(value)
    except ValueError as error:
        raise _invalid(setting, path, value, origin) from error
    # As `tautochrone.toml` writes it.
    text = (
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | list) else str(value)
    )
    return Value(path=path, value=parsed, text=shown(path[-1], text), origin=origin)


def _invalid(setting: Setting, path: tuple[str, ...], value: Any, origin: str) -> SettingsError:
    if isinstance(setting.kind, Secret):
        text = "plain text"
    else:
        text = "a table" if isinstance(value, dict) else repr(shown(path[-1], str(value)))
    hint = f"it must be {setting.kind.description}"
    if setting.by_reference:
        hint += f", or by reference: {FORMS}"
    if setting.path[-1] == "*":
        hint += "; a name with dots in it stands between quotes"
    return SettingsError(
        setting.kind.error_class, f"{'.'.join(path)} cannot be {text}", location=origin, hint=hint
    )


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    current = {setting.variable: setting for setting in SETTINGS if setting.variable}
    # Likely mistakes: TAUTOCHRONE_RUN_INTERVAL, TAUTOCHRONE_POLICY.
    guesses = {"_".join(setting.path).upper(): name for name, setting in current.items()}
    guesses |= {setting.path[-1].upper(): name for name, setting in current.items()}
    guesses |= {name.removeprefix(PREFIX): name for name in current}
    for name in environment:
        if name in current:
            # Shells and CI use an empty variable for "not set".
            if environment[name]:
                yield name, current[name]
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            # Other names are ignored: clusters put variables for a service called tautochrone into every
            # container (TAUTOCHRONE_SERVICE_HOST). A near miss is a mistake.
            near = difflib.get_close_matches(name.removeprefix(PREFIX), guesses, n=1, cutoff=0.75)
            if near:
                raise SettingsError(
                    "UNKNOWN_SETTING",
                    f"The variable {name} is no setting",
                    location=name,
                    hint=f"did you mean {guesses[near[0]]}?",
                )


# -- the file ---------------------------------------------------------------------------------------


def _from_file(root: Path, environment: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Path, value and position of everything in the file."""
    path = root / FILE_NAME
    if not path.exists():
        return
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"line (\d+)", str(error))
        raise SettingsError(
            "INVALID_SETTINGS_FILE",
            f"{FILE_NAME} is not TOML: {error}",
            location=f"{FILE_NAME}:{line[1]}" if line else FILE_NAME,
        ) from None
    lines = _lines(text)
    for keys, value in _leaves(data, (), root, environment):
        line_number = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)
        yield keys, value, FILE_NAME if line_number is None else f"{FILE_NAME}:{line_number}"


def _leaves(
    table: Mapping[str, Any], above: tuple[str, ...], root: Path, environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its path. A reference is a value; any other table in place of a value is passed
    on unchanged, to be refused."""
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and is_table(path):
            yield from _leaves(value, path, root, environment)
        else:
            yield path, reference_of(value, root, environment) or value


def _unknown(path: tuple[str, ...], origin: str) -> SettingsError:
    section, known = path[0], settings_of(path[0])
    if section not in sections():
        parents = [setting.path[0] for setting in SETTINGS if setting.path[-1] == section]
        problem = f"[{section}] is no section of {FILE_NAME}"
        hint = (
            f"{section} stands below [{parents[0]}]" if parents else nearest(section, sections(), "sections")
        )
    elif len(path) == 1:
        problem, hint = f"{section} is a section", f"write [{section}] and its settings below it"
    elif len(path) == 2 and "*" not in known:
        problem, hint = f"[{section}] has no setting {path[1]}", nearest(path[1], known, "settings")
    else:
        names = [s.path[-1] for s in SETTINGS if _below(s, path)]
        problem = f"[{'.'.join(path[:-1])}] has no setting {path[-1]}"
        hint = nearest(path[-1], names, "settings")
        if section == "flows":
            hint += "; a flow's name with dots in it stands between quotes"
    return SettingsError("UNKNOWN_SETTING", problem, location=origin, hint=hint)


def _below(setting: Setting, path: tuple[str, ...]) -> bool:
    return setting.path[0] == path[0] and setting.path[-1] != "*"


_HEADER = re.compile(r"\s*\[{1,2}(.+?)\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([^=#\[\]{}]+?)\s*=")


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every section and of every key that starts a line. tomllib gives no positions."""
    lines: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header and (path := _path(header[1])):
            section = path
            lines.setdefault(section, number)
        elif key and (path := _path(key[1])):
            for depth in range(1, len(path) + 1):
                lines.setdefault((*section, *path[:depth]), number)
    return lines


def _path(key: str) -> tuple[str, ...]:
    """The parts of a dotted, perhaps quoted key; empty when the text is not a key."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(table, dict) and len(table) == 1:
        ((name, table),) = table.items()
        path.append(name)
    return () if isinstance(table, dict) else tuple(path)
