"""Spark settings of a project that cannot apply here.

A project that was made for Spark's own pipelines may configure another table format, Spark's own catalog or a
Spark Connect server. Such a setting is left out and reported: the project runs all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.setting_layers import Value
from tautochrone.spark.session.jars import CORE, KAFKA

__all__ = [
    "IgnoredSetting",
    "applicable",
    "ignored",
    "is_other_engine",
]

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


def ignored(value: Value, code: ReasonCode, **params: str) -> IgnoredSetting:
    """A setting that does not apply, with the reason."""
    name = value.path[-1]
    return IgnoredSetting(name, value.text, value.origin, Reason.of(code, **params))


def applicable(confs: Mapping[str, Value]) -> tuple[dict[str, Value], list[IgnoredSetting]]:
    """The settings that apply, by name, and those that do not. Lists (extensions, jars) are taken apart."""
    kept: dict[str, Value] = {}
    left_out: list[IgnoredSetting] = []
    for name, value in confs.items():
        if name in _SESSION_CATALOG:
            left_out.append(ignored(value, ReasonCode.SESSION_CATALOG_NOT_USED))
        elif _CONNECT.match(name):
            left_out.append(ignored(value, ReasonCode.CONNECT_NOT_USED))
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
    return [ignored(replace(value, text=part), code, part=part) for part in dropped]


def _is_provided(jar: str) -> bool:
    """Whether a Maven coordinate or a path names one of the jars that every session has."""
    artifact = jar.split(":")[1] if re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", jar) else jar.rpartition("/")[2]
    return any(artifact.startswith(provided) for provided in _PROVIDED)
