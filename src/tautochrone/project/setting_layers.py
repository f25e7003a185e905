"""Collects values of settings by precedence: flag > `TAUTOCHRONE_…` > `tautochrone.toml` > default.

Every value has its origin. What is not declared is refused, never ignored. A secret is a reference, `{ env =
"NAME" }` or `{ file = "path" }`, and only the reference is ever shown. `spark-defaults.conf` is found as
Spark finds it: in `SPARK_CONF_DIR`, or else in `conf` of `SPARK_HOME`.

A project that was made for Spark's own pipelines may configure another table format, Spark's own catalog or a
Spark Connect server. Such a setting is left out and reported: the project runs all the same.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tautochrone.errors import SettingsError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.session_settings import needed_at_start
from tautochrone.project.setting_declarations import (
    OTHER_VARIABLES,
    SETTINGS,
    Setting,
    is_table,
    nearest,
    override_of_target,
    sections,
    setting_of_path,
    settings_of,
)
from tautochrone.project.setting_kinds import Secret
from tautochrone.project.spec import PipelineSpec
from tautochrone.redaction import MASK, keep_secret
from tautochrone.spark.session.jars import CORE, KAFKA

__all__ = [
    "DEFAULT",
    "FILE_NAME",
    "FORMS",
    "PREFIX",
    "Given",
    "IgnoredSetting",
    "Reference",
    "Value",
    "applicable_settings",
    "collect_values",
    "declared_targets",
    "ignored_setting",
    "in_order",
    "is_other_engine",
    "read_spark_defaults",
    "reference_of",
    "shown",
]


FORMS = '{ env = "NAME" } or { file = "path" }'
_PASSWORD = re.compile(r"(?P<before>://[^/?#\s]*?:)(?P<password>[^/?#\s]+)(?P<after>@)")
# As in JDBC URLs and in Kafka's `sasl.jaas.config`.
_NAMED = re.compile(
    r"(?P<before>(?:^|[?&;\s])[\w.-]*(?:secret|password|token|credential|access[.]?key)[\w.-]*\s*=\s*)"
    r"(?P<quote>[\"']?)(?P<password>[^&;\s\"']+)(?P<after>(?P=quote))",
    re.IGNORECASE,
)
# Spark's own pattern for properties that it redacts (spark.redaction.regex).
_SENSITIVE = re.compile(r"secret|password|token|credential|(?:access|account)[.]?key", re.IGNORECASE)
_LONG_ENOUGH = 8
"""From this length on, a plain value of a sensitive property is masked in text: shorter ones are often `true`
or `none`, and masking them would make texts unreadable."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a secret.

    Attributes:
        how: `env` or `file`.
        name: of the variable, or the path as it was written.
        root: the folder that a relative path starts from.
        environment: where variables are looked up.
    """

    how: str
    name: str
    root: Path
    environment: Mapping[str, str]

    def __str__(self) -> str:
        return f'{{ {self.how} = "{self.name}" }}'

    def reveal(self, key: str, location: str) -> str:
        """The secret itself, which is masked in all later text.

        Args:
            key: the setting, for the error.
            location: where the reference is written, for the error.

        Raises:
            SettingsError: `SECRET_NOT_FOUND`: no such variable or file, or it is empty.
        """
        if self.how == "env":
            value, source = self.environment.get(self.name, ""), f"variable {self.name}"
        else:
            value, source = self._read(key, location), f"file {self.name}"
        if not value:
            raise _missing_secret_error(key, f"the {source} is not set or empty", location)
        keep_secret(value)
        _keep_password(value)
        return value

    def _read(self, key: str, location: str) -> str:
        try:
            # Editors and `echo` end files with a line break, which is not part of the secret.
            return (self.root / os.path.expanduser(self.name)).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise _missing_secret_error(
                key, f"the file {self.name} cannot be read: {reason}", location
            ) from None


def _missing_secret_error(key: str, reason: str, location: str) -> SettingsError:
    return SettingsError(
        "SECRET_NOT_FOUND", f"The secret for {key} is not there: {reason}", location=location, hint=FORMS
    )


def reference_of(value: Any, root: Path, environment: Mapping[str, str]) -> Reference | None:
    """A TOML value as a reference; None when it is something else."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((how, name),) = value.items()
    if how not in ("env", "file") or not isinstance(name, str) or not name:
        return None
    return Reference(how, name, root, environment)


def shown(name: str, value: str) -> str:
    """A setting's plain value as people may see it: passwords within it and values of sensitive names
    are masked, here and in all later text."""
    if _SENSITIVE.search(name):
        if len(value) >= _LONG_ENOUGH:
            keep_secret(value)
        return MASK
    _keep_password(value)
    return _NAMED.sub(
        rf"\g<before>\g<quote>{MASK}\g<after>", _PASSWORD.sub(rf"\g<before>{MASK}\g<after>", value)
    )


def _keep_password(value: str) -> None:
    for pattern in (_PASSWORD, _NAMED):
        for match in pattern.finditer(value):
            keep_secret(match["password"])


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


def collect_values(
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
    values = _with_file(values, spec, variables)
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
    known = setting_of_path(path)
    if known is None:
        raise _unknown_setting_error(path, origin)
    return known


_CATALOG_OPTIONS = ("lake", "options")


def _with_file(
    values: dict[tuple[str, ...], Value], spec: PipelineSpec, environment: Mapping[str, str]
) -> dict[tuple[str, ...], Value]:
    """The values, with those of the file, and then those of the chosen target."""
    overrides: dict[tuple[str, ...], Value] = {}
    for keys, value, origin in _from_file(Path(spec.root), environment):
        overridden = override_of_target(keys)
        if overridden is None:
            setting, path = _declared(keys, origin)
            values[path] = _value(setting, path, value, origin)
            continue
        # What is wrong in any target is refused, whichever is chosen.
        setting, path = _declared_in_target(keys[1], overridden, origin)
        override = _value(setting, path, value, origin)
        if keys[1] == spec.target:
            overrides[path] = override
    if any(path[:2] == _CATALOG_OPTIONS for path in overrides):
        # Options of one catalog mean nothing, or something else, to a catalog of another type.
        values = {path: value for path, value in values.items() if path[:2] != _CATALOG_OPTIONS}
    return values | overrides


def _declared_in_target(target: str, path: tuple[str, ...], origin: str) -> tuple[Setting, tuple[str, ...]]:
    """A setting that a target overrides.

    Raises:
        SettingsError: `UNKNOWN_SETTING`; `INVALID_SETTING`, a target does not choose another one.
    """
    known = setting_of_path(path)
    if known is None or path[0] == "targets":
        error = _unknown_setting_error(path, origin)
        raise SettingsError(
            error.error_class, f"Target {target}: {error.message}", location=origin, hint=error.hint
        )
    if path == ("run", "target"):
        raise SettingsError(
            "INVALID_SETTING",
            f"Target {target} chooses a target itself",
            location=origin,
            hint="write target below [run], outside of [targets]",
        )
    return known


def _from_text(setting: Setting, path: tuple[str, ...], text: str, origin: str) -> Value:
    try:
        value = setting.kind.parse_flag_text(text)
    except ValueError as error:
        raise _invalid_value_error(setting, path, text, origin) from error
    return _value(setting, path, value, origin)


def _value(setting: Setting, path: tuple[str, ...], value: Any, origin: str) -> Value:
    if isinstance(value, Reference):
        if not setting.by_reference:
            raise _invalid_value_error(setting, path, value, origin)
        return Value(path=path, value=value, text=str(value), origin=origin)
    try:
        parsed = setting.kind.parse(value)
    except ValueError as error:
        raise _invalid_value_error(setting, path, value, origin) from error
    # As `tautochrone.toml` writes it.
    text = (
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | list) else str(value)
    )
    return Value(path=path, value=parsed, text=shown(path[-1], text), origin=origin)


def _invalid_value_error(setting: Setting, path: tuple[str, ...], value: Any, origin: str) -> SettingsError:
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


def declared_targets(spec: PipelineSpec) -> dict[str, str]:
    """The targets of the project, each with the position of its section.

    Raises:
        SettingsError: `INVALID_SETTINGS_FILE`; `INVALID_SETTING`, `targets` is no section.
    """
    data, lines = _parsed_file(Path(spec.root))
    targets = data.get("targets", {})
    if not isinstance(targets, dict):
        raise SettingsError(
            "INVALID_SETTING",
            f"targets cannot be {'a list' if isinstance(targets, list) else repr(targets)}",
            location=_position(lines, ("targets",)),
            hint="write a section [targets.NAME] for each target",
        )
    names = [name for name, section in targets.items() if isinstance(section, dict)]
    return {name: _position(lines, ("targets", name)) for name in names}


def _from_file(root: Path, environment: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Path, value and position of everything in the file."""
    data, lines = _parsed_file(root)
    for keys, value in _leaves(data, (), root, environment):
        yield keys, value, _position(lines, keys)


def _position(lines: Mapping[tuple[str, ...], int], keys: tuple[str, ...]) -> str:
    line_number = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)
    return FILE_NAME if line_number is None else f"{FILE_NAME}:{line_number}"


def _parsed_file(root: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The file's content, and the lines of its keys; empty when there is no file."""
    path = root / FILE_NAME
    if not path.exists():
        return {}, {}
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), _lines(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"line (\d+)", str(error))
        raise SettingsError(
            "INVALID_SETTINGS_FILE",
            f"{FILE_NAME} is not TOML: {error}",
            location=f"{FILE_NAME}:{line[1]}" if line else FILE_NAME,
        ) from None


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


def _unknown_setting_error(path: tuple[str, ...], origin: str) -> SettingsError:
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


EXTENSIONS = "spark.sql.extensions"
_PACKAGES = "spark.jars.packages"
_JARS = "spark.jars"

_OTHER_ENGINES = re.compile(
    r"io\.delta\.|org\.apache\.spark\.sql\.delta\.|org\.apache\.paimon\.|org\.apache\.hudi\.|"
    r"org\.apache\.spark\.sql\.hudi\.|io\.unitycatalog\.|org\.apache\.kyuubi\.spark\.connector\."
)
_SESSION_CATALOG = frozenset({"spark.sql.warehouse.dir", "spark.sql.catalogImplementation"})
_CONNECT = re.compile(r"spark\.(remote|api\.mode|connect\.|sql\.connect\.)")
# Two versions of one of these on the class path contradict each other.
_PROVIDED = tuple(re.sub(r"-\d.*", "", artifact.name) for artifact in (*CORE, *KAFKA))


@dataclass(frozen=True, slots=True)
class IgnoredSetting:
    """A Spark setting that does not apply. `text` is what people may see of its value."""

    name: str
    text: str
    origin: str
    reason: Reason


def is_other_engine(class_name: str) -> bool:
    """Whether a class belongs to another table format, or to a catalog of other formats."""
    return _OTHER_ENGINES.match(class_name.strip()) is not None


def ignored_setting(value: Value, code: ReasonCode, **params: str) -> IgnoredSetting:
    """A setting that does not apply, with the reason."""
    name = value.path[-1]
    return IgnoredSetting(name, value.text, value.origin, Reason.of(code, **params))


def applicable_settings(confs: Mapping[str, Value]) -> tuple[dict[str, Value], list[IgnoredSetting]]:
    """The settings that apply, by name, and those that do not. Lists (extensions, jars) are taken apart."""
    kept: dict[str, Value] = {}
    left_out: list[IgnoredSetting] = []
    for name, value in confs.items():
        if name in _SESSION_CATALOG:
            left_out.append(ignored_setting(value, ReasonCode.SESSION_CATALOG_NOT_USED))
        elif _CONNECT.match(name):
            left_out.append(ignored_setting(value, ReasonCode.CONNECT_NOT_USED))
        elif name in (EXTENSIONS, _PACKAGES, _JARS) and isinstance(value.value, str):
            left_out += _take_apart(value, kept)
        else:
            kept[name] = value
    return kept, left_out


def _take_apart(value: Value, kept: dict[str, Value]) -> list[IgnoredSetting]:
    name = value.path[-1]
    parts = [part.strip() for part in value.value.split(",") if part.strip()]
    drops = is_other_engine if name == EXTENSIONS else _is_provided
    code = ReasonCode.OTHER_ENGINE if name == EXTENSIONS else ReasonCode.JAR_PROVIDED
    dropped = [part for part in parts if drops(part)]
    text = ",".join(part for part in parts if part not in dropped)
    # An empty value stays: what is left out must not come back from a file that Spark reads itself.
    kept[name] = replace(value, value=text, text=text) if dropped else value
    return [ignored_setting(replace(value, text=part), code, part=part) for part in dropped]


def _is_provided(jar: str) -> bool:
    """Whether a Maven coordinate or a path names one of the jars that every session has."""
    artifact = jar.split(":")[1] if re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", jar) else jar.rpartition("/")[2]
    return any(artifact.startswith(provided) for provided in _PROVIDED)


SPARK_DEFAULTS_FILE_NAME = "spark-defaults.conf"
# As java.util.Properties reads a line: the key ends at the first `=`, `:` or blank without a backslash.
_LINE = re.compile(r"(?P<key>(?:\\.|[^\\=:\s])+)\s*[=:]?\s*(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_spark_defaults(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, value and origin (`spark-defaults.conf:3`) of each setting in the file, if there is one.

    Names that do not begin with `spark.` are left out, as Spark leaves them out.

    Raises:
        SettingsError: `INVALID_SETTINGS_FILE`, the file cannot be read.
    """
    folder = _folder(environment)
    path = None if folder is None else folder / SPARK_DEFAULTS_FILE_NAME
    if path is None or not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "INVALID_SETTINGS_FILE", f"{SPARK_DEFAULTS_FILE_NAME} cannot be read: {error}", location=str(path)
        ) from None
    for number, line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        if match is not None and _unescaped(match["key"]).startswith("spark."):
            yield _unescaped(match["key"]), _unescaped(match["value"]).strip(), f"{path}:{number}"


def _folder(environment: Mapping[str, str]) -> Path | None:
    if environment.get("SPARK_CONF_DIR"):
        return Path(environment["SPARK_CONF_DIR"])
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"]) / "conf"
    # Without SPARK_HOME the installed pyspark package is the home, found here without importing it.
    pyspark = importlib.util.find_spec("pyspark")
    return None if pyspark is None or pyspark.origin is None else Path(pyspark.origin).parent / "conf"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, each with the number of its first line. A backslash at the end continues it."""
    collected, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if not collected and (not stripped or stripped[0] in "#!"):
            continue
        first = first if collected else number
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            collected += stripped[:-1]
            continue
        yield first, collected + stripped
        collected = ""
    if collected:
        yield first, collected


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _CONTROL.get(escape, escape)

    return _ESCAPED.sub(plain, text)
