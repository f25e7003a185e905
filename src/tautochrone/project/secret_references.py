"""Secrets by reference: `{ env = "NAME" }` and `{ file = "path" }`. Only the reference is ever shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tautochrone.errors import SettingsError
from tautochrone.redaction import MASK, keep_secret

__all__ = ["FORMS", "Reference", "reference_of", "shown"]

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
            raise _missing(key, f"the {source} is not set or empty", location)
        keep_secret(value)
        _keep_password(value)
        return value

    def _read(self, key: str, location: str) -> str:
        try:
            # Editors and `echo` end files with a line break, which is not part of the secret.
            return (self.root / os.path.expanduser(self.name)).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise _missing(key, f"the file {self.name} cannot be read: {reason}", location) from None


def _missing(key: str, reason: str, location: str) -> SettingsError:
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
