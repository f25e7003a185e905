"""`spark-defaults.conf`, found as Spark finds it: in `SPARK_CONF_DIR`, or else in `conf` of `SPARK_HOME`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tautochrone.errors import SettingsError

__all__ = ["read_spark_defaults"]

FILE_NAME = "spark-defaults.conf"
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
    path = None if folder is None else folder / FILE_NAME
    if path is None or not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "INVALID_SETTINGS_FILE", f"{FILE_NAME} cannot be read: {error}", location=str(path)
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
