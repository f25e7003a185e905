"""Our own settings: flag > `TAUTOCHRONE_…` > `tautochrone.toml` beside the spec > default.

They live outside `spark-pipeline.yml` because SDP refuses fields that it does not know.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tautochrone.errors import SettingsError
from tautochrone.model.refresh import RefreshPolicy
from tautochrone.project.policy import POLICY_HINT, parse_policy
from tautochrone.project.spec import PipelineSpec
from tautochrone.spark.settings import CatalogSettings, SparkSettings

__all__ = ["Settings", "load_settings", "parse_duration_ms"]

FILE_NAME = "tautochrone.toml"
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*$")
_UNIT_MS = {"ms": 1, "s": 1_000, None: 1_000, "m": 60_000, "h": 3_600_000}
_KNOWN = {
    "run": {"interval", "parallelism", "job"},
    "refresh": {"policy"},
    "meta": {"url"},
    "lake": {"catalog", "options"},
    "spark": {"master", "conf"},
    "outsiders": {"tag", "tags_kept"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a run needs beside the project itself."""

    storage: str
    catalog: CatalogSettings
    spark: SparkSettings
    job: str
    meta_url: str
    interval_ms: int = 5_000
    parallelism: int = 4
    refresh_policy: RefreshPolicy = RefreshPolicy.AUTO
    tag_outsiders: bool = True
    outsider_tags_kept: int = 10
    confs: Mapping[str, str] = field(default_factory=dict)


def parse_duration_ms(text: str) -> int:
    """`5s`, `500ms`, `2m`, `1h`, or seconds as a number.

    Raises:
        SettingsError: `INVALID_DURATION`.
    """
    found = _DURATION.match(text)
    if found is None:
        raise SettingsError("INVALID_DURATION", f"{text!r} is no duration", hint="write 500ms, 5s, 2m or 1h")
    return round(float(found[1]) * _UNIT_MS[found[2]])


def load_settings(
    spec: PipelineSpec,
    *,
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
    interval: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Combine flags, environment and file.

    Args:
        conf: Spark settings given as `--conf`; they win over the file's.

    Raises:
        SettingsError: an unknown key or a value of the wrong kind.
    """
    variables = os.environ if environment is None else environment
    file = _read(Path(spec.root) / FILE_NAME)
    run, lake, spark = (file.get(name, {}) for name in ("run", "lake", "spark"))
    confs = {**{str(k): str(v) for k, v in spark.get("conf", {}).items()}, **(conf or {})}
    storage = spec.storage_path
    chosen_master = master or variables.get("TAUTOCHRONE_MASTER") or spark.get("master") or "local[*]"
    duration = interval or variables.get("TAUTOCHRONE_INTERVAL") or str(run.get("interval", "5s"))
    return Settings(
        storage=storage,
        catalog=_catalog(spec, lake, confs, storage),
        spark=SparkSettings(app_name=f"taut {spec.name}", master=str(chosen_master), conf=confs),
        job=str(variables.get("TAUTOCHRONE_JOB") or run.get("job") or spec.name),
        meta_url=str(
            variables.get("TAUTOCHRONE_META_URL")
            or file.get("meta", {}).get("url")
            or f"sqlite:///{storage}/meta.db"
        ),
        interval_ms=parse_duration_ms(duration),
        parallelism=int(variables.get("TAUTOCHRONE_PARALLELISM") or run.get("parallelism", 4)),
        refresh_policy=_policy(variables.get("TAUTOCHRONE_REFRESH_POLICY"), file),
        tag_outsiders=bool(file.get("outsiders", {}).get("tag", True)),
        outsider_tags_kept=int(file.get("outsiders", {}).get("tags_kept", 10)),
        confs=confs,
    )


def _policy(variable: str | None, file: Mapping[str, Any]) -> RefreshPolicy:
    text = str(variable or file.get("refresh", {}).get("policy", RefreshPolicy.AUTO))
    try:
        return parse_policy(text)
    except ValueError as error:
        raise SettingsError(
            "INVALID_REFRESH_POLICY",
            f"{text!r} is no refresh policy",
            location="TAUTOCHRONE_REFRESH_POLICY" if variable else FILE_NAME,
            hint=POLICY_HINT,
        ) from error


def _catalog(
    spec: PipelineSpec, lake: Mapping[str, Any], confs: dict[str, str], storage: str
) -> CatalogSettings:
    """The lake catalog: from the file, from `--conf spark.sql.catalog.<name>…`, or the default."""
    default = CatalogSettings.default(storage)
    name = str(lake.get("catalog") or _named(spec, confs) or default.name)
    if "options" in lake:
        return CatalogSettings(name, {str(k): str(v) for k, v in lake["options"].items()})
    prefix = f"spark.sql.catalog.{name}"
    if prefix in confs:
        options = {
            key[len(prefix) + 1 :]: value for key, value in confs.items() if key.startswith(prefix + ".")
        }
        return CatalogSettings(name, options)
    return CatalogSettings(name, default.options)


def _named(spec: PipelineSpec, confs: Mapping[str, str]) -> str | None:
    """The spec's catalog, when it is one that the user configured for Spark."""
    if spec.catalog and spec.catalog != "spark_catalog" and f"spark.sql.catalog.{spec.catalog}" in confs:
        return spec.catalog
    return None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            "INVALID_SETTINGS_FILE", f"{path.name} is not TOML: {error}", location=str(path)
        ) from error
    for section, values in data.items():
        if section not in _KNOWN or not isinstance(values, dict):
            raise SettingsError(
                "UNKNOWN_SETTING",
                f"[{section}] is no section of {path.name}",
                location=str(path),
                hint=f"sections are {', '.join(sorted(_KNOWN))}",
            )
        unknown = set(values) - _KNOWN[section]
        if unknown:
            raise SettingsError(
                "UNKNOWN_SETTING",
                f"[{section}] has no setting {', '.join(sorted(unknown))}",
                location=str(path),
                hint=f"settings are {', '.join(sorted(_KNOWN[section]))}",
            )
    return data
