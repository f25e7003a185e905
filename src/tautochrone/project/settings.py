"""A project's settings as typed values: flag > `TAUTOCHRONE_…` > `tautochrone.toml` > default.

They live outside `spark-pipeline.yml` because SDP refuses fields that it does not know. The sections
`[maintenance]`, `[transactions.participants.NAME]` and `[sinks.NAME]` have classes of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tautochrone.errors import SettingsError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings, check_supported
from tautochrone.iceberg.sessions.hadoop_files import s3_options
from tautochrone.model.alarms import AlarmLimits, NotificationForm
from tautochrone.model.checkpoint import RefreshPolicy
from tautochrone.model.definitions import OtherCatalogs, OtherFormats
from tautochrone.model.effects import Durability
from tautochrone.model.reason import Reason
from tautochrone.model.s3 import is_on_s3
from tautochrone.model.sink import PUBLICATIONS, DeliveryPolicy
from tautochrone.model.source import BadRecords, RecreatedTopic
from tautochrone.project.lake_catalog import DEFAULT_CATALOG, lake_catalog
from tautochrone.project.session_settings import CATALOG_PREFIX, STATIC_SQL_SETTINGS, may_change_rows
from tautochrone.project.setting_declarations import LIMITS, SETTINGS, Setting
from tautochrone.project.setting_layers import (
    DEFAULT,
    FILE_NAME,
    Given,
    IgnoredSetting,
    Value,
    applicable_settings,
    collect_values,
    declared_targets,
    in_order,
    read_spark_defaults,
    shown,
)
from tautochrone.project.setting_layers import SPARK_DEFAULTS_FILE_NAME as SPARK_DEFAULTS
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.targets import Target, TargetPlaces, check_apart, in_target, target_of
from tautochrone.redaction import keep_secret
from tautochrone.spark.session.settings import SparkSettings

__all__ = [
    "AlarmTarget",
    "BadRecordsSetting",
    "FlowLimits",
    "MaintenanceRules",
    "ParticipantSettings",
    "RecreatedTopicSetting",
    "Settings",
    "SinkSettings",
    "SinksOff",
    "confs_without_project",
    "effective_values",
    "json_schema",
    "load_settings",
    "participant_settings",
    "sink_settings",
    "with_publications",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    """The rules for expiring versions and compacting files. Times in milliseconds.

    The newest `keep_last` checkpoints stay readable, and those younger than `keep_ms` of which two are at
    least `spacing_ms` apart. Within `history_ms` every version of every table stays, for those who follow
    changes from outside. A run maintains its tables once in `every_ms`, and starts no further table after
    `budget_ms`; a table of which fewer than `min_versions` can expire is skipped. From `min_files` small
    files on they are rewritten as larger ones, about `max_files` of them at a time; 0 turns that off.
    Orphans are deleted when they are older than `orphans_ms`; a run looks for them once
    in `orphans_every_ms`, never when that is 0.
    """

    enabled: bool
    keep_ms: int
    keep_last: int
    spacing_ms: int
    history_ms: int
    every_ms: int
    budget_ms: int
    min_versions: int
    min_files: int
    max_files: int
    orphans_ms: int
    orphans_every_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSettings:
    """A section `[transactions.participants.NAME]`.

    Attributes:
        format: empty when the section does not say.
        options: passwords stay references: only `taut serve` reads them.
        origin: where the section begins, for errors.
    """

    format: str = ""
    options: Mapping[str, Value] = field(default_factory=dict, repr=False)
    origin: str = ""


def participant_settings(values: Mapping[tuple[str, ...], Value]) -> dict[str, ParticipantSettings]:
    """The sections, by name, from all settings in force."""
    formats: dict[str, str] = {}
    options: dict[str, dict[str, Value]] = {}
    origins: dict[str, str] = {}
    for path, value in values.items():
        if path[:2] != ("transactions", "participants"):
            continue
        name = path[2]
        origins.setdefault(name, value.origin)
        if path[3] == "options":
            options.setdefault(name, {})[path[4]] = value
        else:
            formats[name] = str(value.value)
    return {
        name: ParticipantSettings(format=formats.get(name, ""), options=options.get(name, {}), origin=origin)
        for name, origin in origins.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmTarget:
    """A section `[alarms.notify.NAME]`: who gets messages about alarms. It has a URL or a command."""

    name: str
    url: str | None = field(default=None, repr=False)
    command: str | None = field(default=None, repr=False)
    form: NotificationForm = NotificationForm.JSON


def alarm_targets(values: Mapping[tuple[str, ...], Value]) -> tuple[AlarmTarget, ...]:
    """The sections, from all settings in force.

    Raises:
        SettingsError: `INVALID_SETTING`, a section has no target, or two; `SECRET_NOT_FOUND`.
    """
    sections: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for path, value in values.items():
        if path[:2] == ("alarms", "notify"):
            sections.setdefault(path[2], {})[path[3]] = value.reveal()
            origins.setdefault(path[2], value.origin)
    for name, section in sections.items():
        url = section.get("url")
        if ("url" in section) == ("command" in section) or (url and not url.startswith(("http:", "https:"))):
            raise SettingsError(
                "INVALID_SETTING",
                f"[alarms.notify.{name}] names no target for messages, or more than one",
                location=origins[name],
                hint="give it either a url (http:// or https://) or a command",
            )
        for secret in (url, section.get("command")):
            keep_secret(secret or "")
    return tuple(AlarmTarget(name=name, **section) for name, section in sorted(sections.items()))


def _alarm_limits(setting: Callable[[str], Any]) -> AlarmLimits:
    return AlarmLimits(
        checkpoint_stuck_ms=setting("checkpoint_stuck"),
        dataset_late_ms=setting("dataset_late"),
        sink_behind_ms=setting("sink_behind"),
        retained_log_bytes=setting("retained_log"),
        quarantine_quiet_ms=setting("quarantine_quiet"),
        disk_free_bytes=setting("disk_free"),
        disk_free_percent=setting("disk_free_percent"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A section `[sinks.NAME]`. None for settings that it does not have.

    Attributes:
        keys: by table, as the section names it, the columns that identify its rows.
        reread: the options again, with what the files of secrets hold now.
        publishes_all: of a publication: it takes all tables of the project.
        publishes_format: of a publication: it takes the tables whose definition asks for this format.
    """

    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: tuple[str, ...] | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: DeliveryPolicy = DeliveryPolicy.RETRY
    attempts: int = 3
    catch_up_ms: int = 7 * 24 * 3_600_000
    origin: str = ""
    reread: Callable[[], Mapping[str, str]] | None = field(default=None, repr=False, compare=False)
    publishes_all: bool = False
    publishes_format: str | None = None


def sink_settings(values: Mapping[tuple[str, ...], Any]) -> dict[str, SinkSettings]:
    """The sections, from all settings in force (`setting_layers.Value` by path)."""
    sections: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    keys: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        if path[0] != "sinks":
            continue
        section = sections.setdefault(path[1], {"origin": value.origin})
        if path[2] == "options":
            options.setdefault(path[1], {})[path[3]] = value
        elif path[2] == "keys":
            keys.setdefault(path[1], {})[path[3]] = value.value
        else:
            section[{"catch_up": "catch_up_ms"}.get(path[2], path[2])] = value.value
    for name, given in options.items():
        sections[name] |= {"options": _revealed(given), "reread": partial(_revealed, given)}
    for name, columns in keys.items():
        sections[name]["keys"] = columns
    return {name: SinkSettings(**section) for name, section in sections.items()}


def with_publications(
    sinks: Mapping[str, SinkSettings],
    formats: Collection[str],
    other_formats: OtherFormats,
    storage: str,
    s3_options: Mapping[str, str],
) -> dict[str, SinkSettings]:
    """The sections, with those of publications, which need not be written.

    Args:
        formats: in which all tables are published.
        storage: the default of their folder is in it.
        s3_options: of the lake. A folder on S3 has them too, where its section says nothing else.

    Raises:
        SettingsError: `INVALID_SETTING`, there is no such format.
    """
    unknown = sorted(set(formats) - PUBLICATIONS.keys())
    if unknown:
        raise SettingsError(
            "INVALID_SETTING",
            f"lake.publish names {', '.join(unknown)}",
            hint=f"Tables can be published as {', '.join(PUBLICATIONS)}.",
        )
    publications = {}
    for name, sink in PUBLICATIONS.items():
        section = sinks.get(sink, SinkSettings())
        publications[sink] = replace(
            section,
            format=section.format or sink,
            options=_publication_options(f"{storage}/publications/{name}", section.options, s3_options),
            publishes_all=name in formats,
            publishes_format=name if other_formats is OtherFormats.PUBLISH else None,
        )
    return {**sinks, **publications}


def _publication_options(
    folder: str, options: Mapping[str, str], s3_options: Mapping[str, str]
) -> dict[str, str]:
    chosen = {"folder": folder, **options}
    return {**s3_options, **chosen} if is_on_s3(chosen["folder"]) else chosen


def _revealed(options: Mapping[str, Any]) -> dict[str, str]:
    return {option: str(value.reveal()) for option, value in options.items()}


_OPTIONS = ("lake", "options")
T = TypeVar("T")
_CONF = ("spark", "conf")


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """The limits of one flow's batches: Spark's source options, and where they were set."""

    options: Mapping[str, int]
    origin: str


@dataclass(frozen=True, slots=True)
class BadRecordsSetting:
    """What one flow does with bad records, and where that was set."""

    policy: BadRecords
    origin: str


@dataclass(frozen=True, slots=True)
class RecreatedTopicSetting:
    """What one flow does with a recreated topic, and where that was set."""

    policy: RecreatedTopic
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a run needs besides the project itself. It contains secrets: never print it whole.

    Tokens and participants of the service stay references: only `taut serve` reads them.

    Attributes:
        target: None: the project has no targets.
        foreign_folders: where other targets of the project keep their files. Nothing is written there.
    """

    storage: str
    storage_root: str
    catalog: CatalogSettings = field(repr=False)
    durability: Durability
    other_formats: OtherFormats
    other_catalogs: OtherCatalogs
    spark: SparkSettings = field(repr=False)
    job: str
    jobs: Mapping[str, tuple[str, ...]]
    lease_ms: int
    patience_ms: int
    align_ms: int | None
    meta_url: str = field(repr=False)
    meta_token: str | None = field(repr=False)
    meta_retry_ms: int
    openlineage: str | None = field(repr=False)
    read_tokens: tuple[Value, ...] = field(repr=False)
    operate_tokens: tuple[Value, ...] = field(repr=False)
    interval_ms: int
    parallelism: int
    refresh_policy: RefreshPolicy
    tag_external_tables: bool
    external_table_tags_kept: int
    maintenance: MaintenanceRules
    confs: Mapping[str, str] = field(repr=False)
    limits: Mapping[str, FlowLimits]
    bad_records: Mapping[str, BadRecordsSetting]
    recreated_topics: Mapping[str, RecreatedTopicSetting]
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: tuple[IgnoredSetting, ...] = ()
    sinks: Mapping[str, SinkSettings] = field(default_factory=dict)
    keep_transaction_ids_ms: int | None = None
    participants: Mapping[str, ParticipantSettings] = field(default_factory=dict, repr=False)
    alarm_limits: AlarmLimits = field(default_factory=AlarmLimits)
    alarm_targets: tuple[AlarmTarget, ...] = field(default=(), repr=False)
    target: Target | None = None
    sinks_off: SinksOff | None = None
    foreign_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinksOff:
    """Why nothing is delivered, and to which sinks and publications that `tautochrone.toml` names."""

    reason: Reason
    names: tuple[str, ...]


def effective_values(
    spec: PipelineSpec, flags: Sequence[Given] = (), environment: Mapping[str, str] | None = None
) -> dict[tuple[str, ...], Value]:
    """Every setting in force with its origin, the lake catalog's own included. Secrets stay references.

    Raises:
        SettingsError: an unknown key or an invalid value.
    """
    return _in_force(spec, flags, environment)[0]


def load_settings(
    spec: PipelineSpec, flags: Sequence[Given] = (), environment: Mapping[str, str] | None = None
) -> Settings:
    """Combine flags, environment, file and defaults, and resolve secrets.

    Args:
        flags: of the command line.
        environment: the process's when absent.

    Raises:
        SettingsError: an unknown key, an invalid value, a secret that does not exist.
    """
    values, ignored = _in_force(spec, flags, environment)

    def setting(section: str, name: str) -> Any:
        return values[section, name].reveal()

    def optional_setting(section: str, name: str) -> Any:
        """None for a setting without a default that nobody set."""
        return setting(section, name) if (section, name) in values else None

    def tokens(role: str) -> tuple[Value, ...]:
        return tuple(_below(values, ("meta", "tokens", role)).values())

    confs = {key: value.reveal() for key, value in _below(values, _CONF).items()}
    options = {key: value.reveal() for key, value in _below(values, _OPTIONS).items()}
    catalog = CatalogSettings(setting("lake", "catalog"), options, s3_options(confs))
    check_supported(catalog)
    if spec.storage_root != spec.storage_path:
        _check_not_in_storage(spec, values)
    target = target_of(spec, values)
    others = _other_targets(spec, values, environment)
    sinks_off = None if target is None else _sinks_off(target, values)
    return Settings(
        storage=spec.storage_path,
        storage_root=spec.storage_root,
        catalog=catalog,
        durability=setting("lake", "durability"),
        other_formats=setting("lake", "other_formats"),
        other_catalogs=setting("lake", "other_catalogs"),
        spark=SparkSettings(
            app_name=f"taut {spec.name}",
            master=confs.get("spark.master", setting("spark", "master")),
            conf=confs,
        ),
        job=setting("run", "job"),
        jobs={path[1]: value.value for path, value in values.items() if path[0] == "jobs"},
        lease_ms=setting("run", "lease"),
        patience_ms=setting("run", "patience"),
        align_ms=setting("run", "align"),
        keep_transaction_ids_ms=setting("transactions", "keep_ids"),
        alarm_limits=_alarm_limits(partial(setting, "alarms")),
        alarm_targets=alarm_targets(values),
        meta_url=setting("meta", "url"),
        meta_token=optional_setting("meta", "token"),
        meta_retry_ms=setting("meta", "retry"),
        openlineage=optional_setting("events", "openlineage"),
        read_tokens=tokens("read"),
        operate_tokens=tokens("operate"),
        interval_ms=setting("run", "interval"),
        parallelism=setting("run", "parallelism"),
        refresh_policy=setting("refresh", "policy"),
        tag_external_tables=setting("external_tables", "tag"),
        external_table_tags_kept=setting("external_tables", "tags_kept"),
        maintenance=_maintenance_rules(partial(setting, "maintenance")),
        confs=confs,
        limits=_limits(values),
        bad_records=_by_flow(values, "bad_records", BadRecordsSetting),
        recreated_topics=_by_flow(values, "on_recreated_topic", RecreatedTopicSetting),
        configuration=_evaluation_settings(spec, values, ignored),
        ignored=ignored,
        sinks=with_publications({}, (), OtherFormats.MAP, spec.storage_root, catalog.s3_options)
        if sinks_off is not None
        else with_publications(
            sink_settings(values),
            optional_setting("lake", "publish") or (),
            setting("lake", "other_formats"),
            spec.storage_root,
            catalog.s3_options,
        ),
        target=target,
        sinks_off=sinks_off,
        foreign_folders=tuple(dict.fromkeys(folder for other in others for folder in other.folders)),
        participants=participant_settings(values),
    )


def _sinks_off(target: Target, values: Mapping[tuple[str, ...], Value]) -> SinksOff | None:
    reason = target.sinks_off
    if reason is None:
        return None
    formats = values.get(("lake", "publish"))
    names = {path[1] for path in values if path[0] == "sinks"}
    return SinksOff(reason, tuple(sorted(names | set(() if formats is None else formats.value))))


def _other_targets(
    spec: PipelineSpec, values: Mapping[tuple[str, ...], Value], environment: Mapping[str, str] | None
) -> list[TargetPlaces]:
    """Where the other targets of the project keep what they write.

    Raises:
        SettingsError: `TARGETS_NOT_APART`, the chosen one would write there.
    """
    if spec.target is None:
        return []
    targets = declared_targets(spec)
    others = []
    for name in targets.keys() - {spec.target}:
        other, flags, variables = in_target(spec, name, environment)
        others.append(_places(other, _in_force(other, flags, variables)[0]))
    others.sort(key=lambda other: other.target)
    check_apart(_places(spec, values), others, targets[spec.target])
    return others


def _places(spec: PipelineSpec, values: Mapping[tuple[str, ...], Value]) -> TargetPlaces:
    catalog = str(values["lake", "catalog"].value)
    return TargetPlaces.of(spec, values["meta", "url"], catalog, _below(values, _OPTIONS))


def _maintenance_rules(setting: Callable[[str], Any]) -> MaintenanceRules:
    return MaintenanceRules(
        enabled=setting("enabled"),
        keep_ms=setting("keep"),
        keep_last=setting("keep_last"),
        spacing_ms=setting("spacing"),
        history_ms=setting("history"),
        every_ms=setting("every"),
        budget_ms=setting("budget"),
        min_versions=setting("min_versions"),
        min_files=setting("min_files"),
        max_files=setting("max_files"),
        orphans_ms=setting("orphans"),
        orphans_every_ms=setting("orphans_every"),
    )


def _by_flow(
    values: Mapping[tuple[str, ...], Value], name: str, setting_type: Callable[[Any, str], T]
) -> dict[str, T]:
    """A setting of flows, by flow, as a value that has the setting's origin."""
    return {
        path[1]: setting_type(value.value, value.origin)
        for path, value in values.items()
        if path[0] == "flows" and path[2] == name
    }


def _check_not_in_storage(spec: PipelineSpec, values: Mapping[tuple[str, ...], Value]) -> None:
    """Refuse defaults that are databases in the storage, when it is no local folder.

    Raises:
        SettingsError: `STORAGE_NOT_LOCAL`.
    """
    in_storage = {
        "the store (meta.url)": values["meta", "url"].origin,
        "the lake's catalog (lake.options)": next(iter(_below(values, _OPTIONS).values())).origin,
    }
    missing = [subject for subject, origin in in_storage.items() if origin == DEFAULT]
    if missing:
        raise SettingsError(
            "STORAGE_NOT_LOCAL",
            f"{' and '.join(missing)} would be a database file in {spec.storage}, which is no local folder",
            location=spec.origin_of("storage"),
            hint="set meta.url to postgresql://… or to a MetaService, and a catalog of type jdbc on "
            "PostgreSQL or of type rest, with its warehouse",
            sqlstate="42K03",
        )


def confs_without_project(
    given: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The Spark settings of a command outside of a project: those of `spark-defaults.conf` that would apply
    in one, without catalogs, and the ones that are given.

    Raises:
        SettingsError: `INVALID_SETTINGS_FILE`, the file cannot be read.
    """
    texts = {
        name: (text, origin)
        for name, text, origin in read_spark_defaults(os.environ if environment is None else environment)
    }
    texts |= {name: (text, "--conf") for name, text in given.items()}
    values = {
        name: Value(path=(*_CONF, name), value=text, text=shown(name, text), origin=origin)
        for name, (text, origin) in texts.items()
        if not name.startswith(CATALOG_PREFIX) and name != DEFAULT_CATALOG
    }
    return {name: str(value.value) for name, value in applicable_settings(values)[0].items()}


def _below(values: Mapping[tuple[str, ...], Value], prefix: tuple[str, ...]) -> dict[str, Value]:
    return {path[-1]: value for path, value in values.items() if path[:-1] == prefix}


def _in_force(
    spec: PipelineSpec, flags: Sequence[Given], environment: Mapping[str, str] | None
) -> tuple[dict[tuple[str, ...], Value], tuple[IgnoredSetting, ...]]:
    """Every setting in force, and the Spark settings that do not apply."""
    values = collect_values(spec, flags, environment)
    confs, ignored = applicable_settings(_below(values, _CONF))
    mapped_catalogs = values.get(("lake", "mapped_catalogs"))
    catalog = lake_catalog(
        spec,
        values["lake", "catalog"],
        _below(values, _OPTIONS),
        confs,
        mapped_catalogs.value if mapped_catalogs is not None else (),
    )
    confs = dict(catalog.confs)
    master = confs.get("spark.master")
    if master is not None and _is_of_project(spec, master) and values["spark", "master"].origin != DEFAULT:
        del confs["spark.master"]
    kept = {path: value for path, value in values.items() if path[:-1] not in (_CONF, _OPTIONS)}
    kept["lake", "catalog"] = catalog.name
    kept |= {
        (*_OPTIONS, key): replace(value, path=(*_OPTIONS, key)) for key, value in catalog.options.items()
    }
    kept |= {(*_CONF, key): value for key, value in confs.items()}
    return in_order(kept), (*ignored, *catalog.ignored)


def _is_of_project(spec: PipelineSpec, value: Value) -> bool:
    """Whether a Spark setting comes from the spec or from `spark-defaults.conf`."""
    file = value.origin.partition(":")[0]
    return file == spec.path.name or file.endswith(SPARK_DEFAULTS)


def _evaluation_settings(
    spec: PipelineSpec, values: Mapping[tuple[str, ...], Value], ignored: Collection[IgnoredSetting]
) -> dict[str, str]:
    """What is set while definitions are evaluated: the spec's `configuration`, and whatever else may change
    the rows of a query. A flag or `tautochrone.toml` may give another value than the spec.

    Of `spark-defaults.conf` only SQL settings: clusters have names of their own there.
    """
    not_applied = {setting.name for setting in ignored}
    confs = _below(values, _CONF)
    settings = {
        name: str(confs[name].reveal()) if name in confs and not _is_of_project(spec, confs[name]) else text
        for name, text in spec.configuration.items()
        if name not in not_applied and not name.startswith(CATALOG_PREFIX) and name not in STATIC_SQL_SETTINGS
    }
    return settings | {
        name: str(value.reveal())
        for name, value in confs.items()
        if name not in spec.configuration
        and may_change_rows(name)
        and (name.startswith("spark.sql.") or not _is_of_project(spec, value))
    }


def _limits(values: Mapping[tuple[str, ...], Value]) -> dict[str, FlowLimits]:
    limits_by_flow: dict[str, dict[str, Value]] = {}
    for path, value in values.items():
        if path[0] == "flows" and path[2] in LIMITS:
            limits_by_flow.setdefault(path[1], {})[path[2]] = value
    limits: dict[str, FlowLimits] = {}
    for flow, given in limits_by_flow.items():
        origin = next(iter(given.values())).origin
        if {"max_files_per_trigger", "max_bytes_per_trigger"} <= given.keys():
            raise SettingsError(
                "INVALID_SETTING",
                f"Flow {flow} is limited by files and by bytes",
                location=origin,
                hint="Spark takes one of max_files_per_trigger and max_bytes_per_trigger",
            )
        limits[flow] = FlowLimits({LIMITS[name]: value.value for name, value in given.items()}, origin)
    return limits


_REFERENCE = {
    "description": "a secret by reference: where it is",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {"env": {"type": "string", "minLength": 1}, "file": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the whole file, with which editors complete and check it."""
    root = _table({}, f"{FILE_NAME}: settings of a Tautochrone project")
    for setting in SETTINGS:
        table = root
        for part in setting.path[:-1]:
            table = _child(table, part)
        _put(table, setting.path[-1], _value(setting))
    # A target gives any setting another value.
    target = _child(root["properties"]["targets"], "*")
    for section, schema in root["properties"].items():
        if section != "targets":
            _put(target, section, schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        **root,
        "$defs": {"reference": _REFERENCE},
    }


def _table(properties: Mapping[str, Any], description: str | None = None) -> dict[str, Any]:
    documentation = {} if description is None else {"description": description}
    return {**documentation, "type": "object", "properties": dict(properties), "additionalProperties": False}


def _child(table: dict[str, Any], part: str) -> dict[str, Any]:
    child = table["additionalProperties"] if part == "*" else table["properties"].get(part)
    if not child:
        child = _table({})
        _put(table, part, child)
    assert isinstance(child, dict)
    return child


def _put(table: dict[str, Any], part: str, schema: dict[str, Any]) -> None:
    if part == "*":
        table["additionalProperties"] = schema
    else:
        table["properties"][part] = schema


def _value(setting: Setting) -> dict[str, Any]:
    schema = dict(setting.kind.schema())
    if setting.by_reference:
        schema = {"anyOf": [schema, {"$ref": "#/$defs/reference"}]}
    if setting.default is not None:
        schema["default"] = setting.default
    return {"description": setting.meaning, **schema}
