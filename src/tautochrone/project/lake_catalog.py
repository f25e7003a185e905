"""Which catalog of a project is its lake, and with which options.

The name comes from `[lake] catalog`, the spec's `catalog` or `spark.sql.defaultCatalog`, in this order. The
options come from `[lake.options]`, or from Spark's settings for a catalog of that name. Without any the lake
is Iceberg's JDBC catalog on SQLite in the storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from tautochrone.errors import SettingsError
from tautochrone.iceberg.sessions.catalog_settings import SPARK_CATALOG_CLASSES, CatalogSettings
from tautochrone.model.reason import ReasonCode
from tautochrone.project.session_settings import CATALOG_PREFIX
from tautochrone.project.setting_layers import (
    DEFAULT,
    IgnoredSetting,
    Value,
    ignored_setting,
    is_other_engine,
    shown,
)
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.sqltext import SESSION_CATALOG

__all__ = ["DEFAULT_CATALOG", "LakeCatalog", "lake_catalog"]

DEFAULT_CATALOG = "spark.sql.defaultCatalog"


@dataclass(frozen=True, slots=True)
class LakeCatalog:
    """The lake catalog as settings have it.

    Attributes:
        name: the name in SQL.
        options: Iceberg's catalog properties by name.
        confs: Spark's settings without those of the lake and of Spark's session catalog.
        ignored: settings of catalogs that do not apply.
    """

    name: Value
    options: Mapping[str, Value]
    confs: Mapping[str, Value]
    ignored: tuple[IgnoredSetting, ...]


def lake_catalog(
    spec: PipelineSpec,
    given_name: Value,
    given_options: Mapping[str, Value],
    confs: Mapping[str, Value],
    mapped_catalogs: Sequence[str] = (),
) -> LakeCatalog:
    """Choose the lake catalog.

    Args:
        spec: the pipeline.
        given_name: the setting `[lake] catalog`, perhaps its default.
        given_options: the settings below `[lake.options]`.
        confs: Spark's settings by name.
        mapped_catalogs: catalogs whose databases are in the lake: their settings do not apply.

    Raises:
        SettingsError: `CATALOG_NOT_ICEBERG`, the catalog of that name has another class.
    """
    remaining = dict(confs)
    default_catalog = remaining.pop(DEFAULT_CATALOG, None)
    name = _name(spec, given_name, default_catalog)
    session_catalog = _take(remaining, SESSION_CATALOG)
    own = _take(remaining, name.value) if name.value != SESSION_CATALOG else {}
    left_out: list[IgnoredSetting] = []
    for mapped in mapped_catalogs:
        settings = _take(remaining, mapped)
        if settings:
            reason = {"catalog": mapped, "lake_catalog": str(name.value)}
            left_out.append(ignored_setting(_class_of(settings), ReasonCode.CATALOG_MAPPED, **reason))
    options: Mapping[str, Value] = given_options
    if own and given_options:
        left_out.append(ignored_setting(_class_of(own), ReasonCode.CATALOG_SET_ELSEWHERE))
    elif own:
        options = _iceberg_options(name.value, own, left_out)
    if session_catalog:
        is_lake = not options and name.origin == DEFAULT and _is_complete(session_catalog)
        if is_lake:
            options = _without_cache(session_catalog, left_out)
        else:
            other_engine = is_other_engine(str(_class_of(session_catalog).value))
            code = ReasonCode.OTHER_ENGINE if other_engine else ReasonCode.SESSION_CATALOG_NOT_USED
            value = _class_of(session_catalog)
            left_out.append(
                ignored_setting(value, code, **({"part": str(value.text)} if other_engine else {}))
            )
    if options:
        options = {option: _below_spec(spec, option, value) for option, value in options.items()}
    else:
        options = {
            option: Value(
                path=("lake", "options", option), value=text, text=shown(option, text), origin=DEFAULT
            )
            for option, text in CatalogSettings.default(spec.storage_path).options.items()
        }
    return LakeCatalog(name, options, remaining, tuple(left_out))


def _name(spec: PipelineSpec, given: Value, default_catalog: Value | None) -> Value:
    if given.origin != DEFAULT:
        return given
    if spec.catalog is not None:
        if spec.catalog == SESSION_CATALOG:
            return given
        return replace(given, value=spec.catalog, text=spec.catalog, origin=spec.origin_of("catalog"))
    if default_catalog is not None and default_catalog.value != SESSION_CATALOG:
        return replace(default_catalog, path=given.path)
    return given


def _take(confs: dict[str, Value], catalog: str) -> dict[str, Value]:
    """Remove the settings of a catalog; the class is under the empty name, options under theirs."""
    prefix = CATALOG_PREFIX + catalog
    names = [name for name in confs if name == prefix or name.startswith(f"{prefix}.")]
    return {name[len(prefix) + 1 :]: confs.pop(name) for name in names}


def _class_of(settings: Mapping[str, Value]) -> Value:
    """The setting of the class, or the first option when there is no class."""
    return settings.get("", next(iter(settings.values())))


def _iceberg_options(
    name: str, own: Mapping[str, Value], left_out: list[IgnoredSetting]
) -> Mapping[str, Value]:
    class_name = str(own[""].value) if "" in own else ""
    if class_name in SPARK_CATALOG_CLASSES:
        return _without_cache(own, left_out)
    if is_other_engine(class_name):
        left_out.append(ignored_setting(own[""], ReasonCode.OTHER_ENGINE, part=class_name))
        return {}
    problem = f"has the class {class_name}" if class_name else "has options, but no class"
    raise SettingsError(
        "CATALOG_NOT_ICEBERG",
        f"The pipeline's catalog {name} {problem}, and its tables are Iceberg tables",
        location=_class_of(own).origin,
        hint="give it the class of Iceberg's Spark catalog, or name another catalog in the spec",
    )


def _without_cache(settings: Mapping[str, Value], left_out: list[IgnoredSetting]) -> dict[str, Value]:
    """The options of an Iceberg catalog. Its cache would hide the commits of other writers."""
    options = {name: value for name, value in settings.items() if name and not name.startswith("cache")}
    cache = settings.get("cache-enabled")
    if cache is not None and str(cache.value).lower() != "false":
        left_out.append(ignored_setting(cache, ReasonCode.CATALOG_CACHE_NOT_USED))
    return options


def _is_complete(session_catalog: Mapping[str, Value]) -> bool:
    """Whether the options of Spark's session catalog name an Iceberg catalog, not just Spark's metastore."""
    if str(_class_of(session_catalog).value) not in SPARK_CATALOG_CLASSES:
        return False
    kind = session_catalog.get("type")
    return (
        "catalog-impl" in session_catalog
        or "uri" in session_catalog
        or (kind is not None and kind.value != "hive")
    )


def _below_spec(spec: PipelineSpec, option: str, value: Value) -> Value:
    """A relative path as one that begins at the spec, so that each command means the same folder."""
    text = value.value
    if not isinstance(text, str):
        return value
    prefix = "jdbc:sqlite:" if option == "uri" and text.startswith("jdbc:sqlite:") else ""
    path = text.removeprefix(prefix)
    if not (option == "warehouse" or prefix) or urlsplit(path).scheme or Path(path).is_absolute() or not path:
        return value
    absolute = f"{prefix}{(spec.root / path).resolve()}"
    return replace(value, value=absolute, text=shown(option, absolute))
