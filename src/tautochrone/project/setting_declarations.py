"""Every setting, declared once: the loader, `taut config`, the JSON Schema and the
reference in `docs/settings.md` all read this list.

A `*` in a key stands for a name that the user chooses: of a flow, of a property.

To add one: declare it here, read it in `settings.load_settings`, and run `make docs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tautochrone.model.alarms import NotificationForm
from tautochrone.model.checkpoint import RefreshPolicy
from tautochrone.model.definitions import OtherCatalogs, OtherFormats
from tautochrone.model.effects import Durability
from tautochrone.model.sink import PUBLICATIONS, DeliveryPolicy
from tautochrone.model.source import BadRecords, RecreatedTopic
from tautochrone.project.setting_kinds import (
    Boolean,
    Choice,
    Duration,
    DurationOrNone,
    Kind,
    NameList,
    PropertyValue,
    Secret,
    Size,
    Text,
    WholeNumber,
)
from tautochrone.project.spec import PipelineSpec

__all__ = [
    "LIMITS",
    "OTHER_VARIABLES",
    "SETTINGS",
    "Setting",
    "is_table",
    "nearest",
    "override_of_target",
    "sections",
    "setting_of_path",
    "settings_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        key: `section.name` as in `tautochrone.toml`.
        kind: the type of its values.
        meaning: one sentence for people.
        default: in TOML's form; None when there is none, or when the project decides.
        of_project: a default that the project decides: its description and a function.
        variable: of the environment.
        flag: of the command line, besides `--set`.
        by_reference: may be a secret: `{ env = "NAME" }` or `{ file = "path" }`.
    """

    key: str
    kind: Kind
    meaning: str
    default: Any = None
    of_project: tuple[str, Callable[[PipelineSpec], Any]] | None = None
    variable: str | None = None
    flag: str | None = None
    by_reference: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))


SETTINGS = (
    Setting(
        key="run.interval",
        kind=Duration(),
        default="5s",
        meaning="time between checkpoints with `--continuous`, and the trigger of streaming flows",
        variable="TAUTOCHRONE_INTERVAL",
        flag="--interval",
    ),
    Setting(
        key="run.parallelism",
        kind=WholeNumber(1),
        default=4,
        meaning="datasets refreshed at once",
        variable="TAUTOCHRONE_PARALLELISM",
    ),
    Setting(
        key="run.job",
        kind=Text(),
        of_project=("the pipeline's name", lambda spec: spec.name),
        meaning="the job that this process runs ([jobs](jobs.md))",
        variable="TAUTOCHRONE_JOB",
        flag="--job",
    ),
    Setting(
        key="run.target",
        kind=Text(),
        meaning="the [target](targets.md) that commands work on, one of `[targets]`",
        variable="TAUTOCHRONE_TARGET",
        flag="--target",
    ),
    Setting(
        key="run.lease",
        kind=Duration(at_least="1s"),
        default="15s",
        meaning="a job without a heartbeat for this long is taken for dead: other jobs don't wait for it",
        variable="TAUTOCHRONE_LEASE",
    ),
    Setting(
        key="run.patience",
        kind=Duration(),
        default="30s",
        meaning="how long jobs that are done wait for one that still works on a checkpoint",
        variable="TAUTOCHRONE_PATIENCE",
    ),
    Setting(
        key="run.align",
        kind=DurationOrNone(),
        default="none",
        meaning="how far the source times of a checkpoint's roots may be apart: of those that run ahead it "
        "takes older versions; for tables with the property `tautochrone.event-time`",
        variable="TAUTOCHRONE_ALIGN",
    ),
    Setting(
        key="jobs.*.datasets",
        kind=NameList(),
        meaning="the datasets of a job, `*` for any part; what no job names is the pipeline's own job's",
    ),
    Setting(
        key="targets.*.storage",
        kind=Text(),
        meaning="the target's own storage, as `storage` in the spec; one target may leave it out and has the "
        "spec's. All other settings may stand in `[targets.NAME]` too ([targets](targets.md))",
    ),
    Setting(
        key="targets.*.production",
        kind=Boolean(),
        meaning="the target delivers to sinks and publications; `false` without it",
    ),
    Setting(
        key="targets.*.sinks_enabled",
        kind=Boolean(),
        meaning="whether this target delivers to sinks and publications, whatever `production` says",
    ),
    Setting(
        key="targets.*.roots_from",
        kind=Text(),
        meaning="the target whose ingested tables this one reads, instead of ingesting itself "
        "([roots of another target](targets.md#roots-of-another-target))",
    ),
    Setting(
        key="targets.*.roots_checkpoint",
        kind=WholeNumber(1),
        meaning="the published checkpoint of that target; without it each run takes the newest one",
    ),
    Setting(
        key="targets.*.roots_pinned",
        kind=Duration(at_least="1m"),
        meaning="how long that checkpoint stays pinned in the other target's store; `24h` without it",
    ),
    Setting(
        key="lake.durability",
        kind=Choice(Durability),
        default="process",
        meaning="what published checkpoints survive: the end of any `process`, or `power_loss` too, for "
        "tables on local disks (Linux; [what is promised](running.md#power-cuts))",
        variable="TAUTOCHRONE_DURABILITY",
    ),
    Setting(
        key="lake.other_formats",
        kind=Choice(OtherFormats),
        default="map",
        meaning="what another format in a definition means (`format=`, `USING`): `map`, the table is written "
        "as an Iceberg table and an event says so; `publish`, the same, and it is "
        "[published](publications.md) in that format, if it is one of publications; or `fail` "
        "([formats](catalogs.md#formats))",
        variable="TAUTOCHRONE_OTHER_FORMATS",
    ),
    Setting(
        key="lake.publish",
        kind=NameList(),
        meaning="formats in which all tables are [published](publications.md): "
        + ", ".join(f"`{name}`" for name in PUBLICATIONS),
        variable="TAUTOCHRONE_PUBLISH",
    ),
    Setting(
        key="lake.other_catalogs",
        kind=Choice(OtherCatalogs),
        default="map",
        meaning="what a dataset's name `other.db.x` means if no setting defines the catalog `other`: `map`, "
        "the table `x` of the lake's database `other.db`, and an event says so; or `fail` "
        "([several catalogs](catalogs.md#datasets-in-several-catalogs))",
        variable="TAUTOCHRONE_OTHER_CATALOGS",
    ),
    Setting(
        key="lake.mapped_catalogs",
        kind=NameList(),
        meaning="catalogs that settings define, and that are databases of the lake all the same; their "
        "settings are left out ([several catalogs](catalogs.md#datasets-in-several-catalogs))",
        variable="TAUTOCHRONE_MAPPED_CATALOGS",
    ),
    Setting(
        key="refresh.policy",
        kind=Choice(RefreshPolicy, "INVALID_REFRESH_POLICY"),
        default="auto",
        meaning="how views are refreshed that do not say it themselves ([concepts](refreshing.md#policies))",
        variable="TAUTOCHRONE_REFRESH_POLICY",
    ),
    Setting(
        key="meta.url",
        kind=Text(),
        of_project=("`sqlite:///<storage>/meta.db`", lambda spec: f"sqlite:///{spec.storage_path}/meta.db"),
        meaning="the MetaService: `http(s)://host:port` of one that runs, or the SQLAlchemy URL of a store "
        "that this process opens itself ([the MetaService](service.md))",
        variable="TAUTOCHRONE_META_URL",
        by_reference=True,
    ),
    Setting(
        key="meta.token",
        kind=Text(),
        meaning="sent to the MetaService as a bearer token",
        variable="TAUTOCHRONE_META_TOKEN",
        by_reference=True,
    ),
    Setting(
        key="meta.retry",
        kind=Duration(),
        default="1m",
        meaning="how long a call is repeated while the MetaService cannot be reached",
        variable="TAUTOCHRONE_META_RETRY",
    ),
    Setting(
        key="transactions.keep_ids",
        # As long as a program may repeat a call: model.transactions.LONGEST_TIMEOUT_MS.
        kind=DurationOrNone(Duration(at_least="24h")),
        default="none",
        meaning="how long `taut serve` keeps [transactions](transactions.md#how-long-ids-are-kept) that "
        "ended; `none`: for ever",
        variable="TAUTOCHRONE_TRANSACTIONS_KEEP_IDS",
    ),
    Setting(
        key="transactions.participants.*.format",
        kind=Text(),
        meaning="the format of a participant of `taut serve`, `clickhouse` "
        "([transactions](transactions.md#participants-of-taut-serve))",
    ),
    Setting(
        key="transactions.participants.*.options.*",
        kind=PropertyValue(),
        meaning="an option of this participant's format",
        by_reference=True,
    ),
    Setting(
        key="events.openlineage",
        kind=Text(),
        meaning="where refreshes are reported as OpenLineage events: a URL, or a file that gets a line for "
        "each ([OpenLineage](service.md#openlineage))",
        variable="TAUTOCHRONE_EVENTS_OPENLINEAGE",
        by_reference=True,
    ),
    Setting(
        key="alarms.checkpoint_stuck",
        kind=Duration(),
        default="5m",
        meaning="a [checkpoint is stuck](alarms.md#rules) when it is open for longer, and for ten times as "
        "long as usual",
        variable="TAUTOCHRONE_ALARMS_CHECKPOINT_STUCK",
    ),
    Setting(
        key="alarms.dataset_late",
        kind=DurationOrNone(),
        default="none",
        meaning="a dataset may lack what its sources have for so long, also between the runs of a pipeline "
        "that runs once; `none`: there is no such alarm",
        variable="TAUTOCHRONE_ALARMS_DATASET_LATE",
    ),
    Setting(
        key="alarms.sink_behind",
        kind=Duration(),
        default="5m",
        meaning="a sink may lack a published checkpoint for so long",
        variable="TAUTOCHRONE_ALARMS_SINK_BEHIND",
    ),
    Setting(
        key="alarms.retained_log",
        kind=Size(),
        default="10GB",
        meaning="a database may keep so much log for a capture",
        variable="TAUTOCHRONE_ALARMS_RETAINED_LOG",
    ),
    Setting(
        key="alarms.quarantine_quiet",
        kind=Duration(),
        default="1h",
        meaning="the alarm about bad records is over when none came for so long",
        variable="TAUTOCHRONE_ALARMS_QUARANTINE_QUIET",
    ),
    Setting(
        key="alarms.disk_free",
        kind=Size(),
        default="20GB",
        meaning="with less free space where the storage is there is an alarm, if that is also less than "
        "`disk_free_percent` of the disk",
        variable="TAUTOCHRONE_ALARMS_DISK_FREE",
    ),
    Setting(
        key="alarms.disk_free_percent",
        kind=WholeNumber(0),
        default=10,
        meaning="see `disk_free`",
        variable="TAUTOCHRONE_ALARMS_DISK_FREE_PERCENT",
    ),
    Setting(
        key="alarms.notify.*.url",
        kind=Text(),
        meaning="a URL that gets a POST for each alarm that fires or is over "
        "([messages](alarms.md#messages)); it is masked in all texts",
        by_reference=True,
    ),
    Setting(
        key="alarms.notify.*.form",
        kind=Choice(NotificationForm),
        meaning="what is posted: `json` (as without it), or `slack`",
    ),
    Setting(
        key="alarms.notify.*.command",
        kind=Text(),
        meaning="instead of a URL, a command line that is run for each message, without a shell; it gets the "
        "JSON on its standard input",
        by_reference=True,
    ),
    Setting(
        key="meta.tokens.read.*",
        kind=Secret(),
        meaning="a token of the role `read` of `taut serve`; the name is for people",
        by_reference=True,
    ),
    Setting(
        key="meta.tokens.operate.*",
        kind=Secret(),
        meaning="a token of the role `operate`, which allows changes: for jobs and operators",
        by_reference=True,
    ),
    Setting(
        key="lake.catalog",
        kind=Text(),
        default="lake",
        meaning="the catalog's name in SQL",
        variable="TAUTOCHRONE_CATALOG",
    ),
    Setting(
        key="lake.options.*",
        kind=PropertyValue(),
        of_project=("JDBC on SQLite in the storage", lambda _: None),
        meaning="an Iceberg catalog property (`type`, `uri`, `warehouse`, …); any replaces the default",
        by_reference=True,
    ),
    Setting(
        key="spark.master",
        kind=Text(),
        default="local[*]",
        meaning="the Spark master",
        variable="TAUTOCHRONE_MASTER",
        flag="--master",
    ),
    Setting(
        key="spark.conf.*",
        kind=PropertyValue(),
        meaning="a Spark setting",
        flag="--conf",
        by_reference=True,
    ),
    Setting(
        key="external_tables.tag",
        kind=Boolean(),
        default=True,
        meaning="tag the version of each external table that a checkpoint names, so that the table's own "
        "maintenance does not expire it",
        variable="TAUTOCHRONE_EXTERNAL_TABLES_TAG",
    ),
    Setting(
        key="external_tables.tags_kept",
        kind=WholeNumber(1),
        default=10,
        meaning="how many such tags each external table keeps",
        variable="TAUTOCHRONE_EXTERNAL_TABLES_TAGS_KEPT",
    ),
    Setting(
        key="maintenance.enabled",
        kind=Boolean(),
        default=True,
        meaning="`taut run` keeps its tables small between checkpoints",
        variable="TAUTOCHRONE_MAINTENANCE_ENABLED",
    ),
    Setting(
        key="maintenance.keep",
        kind=Duration(),
        default="1h",
        meaning="checkpoints younger than that stay readable",
        variable="TAUTOCHRONE_MAINTENANCE_KEEP",
    ),
    Setting(
        key="maintenance.keep_last",
        kind=WholeNumber(1),
        default=10,
        meaning="minimum number of newest checkpoints that stay readable, whatever their age",
        variable="TAUTOCHRONE_MAINTENANCE_KEEP_LAST",
    ),
    Setting(
        key="maintenance.spacing",
        kind=Duration(),
        default="10s",
        meaning="of checkpoints that are nearer to each other than that, only the newest ones and one stay",
    ),
    Setting(
        key="maintenance.history",
        kind=Duration(),
        default="5m",
        meaning="every version of every table stays for this long, for outside readers that follow changes",
    ),
    Setting(
        key="maintenance.every",
        kind=Duration(),
        default="1m",
        meaning="time between two rounds of maintenance",
    ),
    Setting(
        key="maintenance.budget",
        kind=Duration(),
        default="2s",
        meaning="a round starts with no further table after this time",
    ),
    Setting(
        key="maintenance.min_versions",
        kind=WholeNumber(1),
        default=50,
        meaning="a table is left alone when fewer of its versions can be removed",
    ),
    Setting(
        key="maintenance.min_files",
        kind=WholeNumber(0),
        default=50,
        meaning="number of small files from which on they are rewritten as larger ones; 0: never",
    ),
    Setting(
        key="maintenance.max_files",
        kind=WholeNumber(1),
        default=500,
        meaning="approximate number of files that are rewritten at a time",
    ),
    Setting(
        key="maintenance.orphans",
        # A write that takes longer than this age is refused at its commit and done again.
        kind=Duration(at_least="24h"),
        default="72h",
        meaning="files that nothing refers to are deleted when they are older than that",
    ),
    Setting(
        key="maintenance.orphans_every",
        kind=Duration(),
        default="24h",
        meaning="how often `taut run` looks for such files; 0: never, only `taut maintain` does",
    ),
    Setting(
        key="flows.*.max_offsets_per_trigger",
        kind=WholeNumber(1),
        meaning="maximum records of each Kafka source of this flow in one batch",
    ),
    Setting(
        key="flows.*.max_files_per_trigger",
        kind=WholeNumber(1),
        meaning="maximum files of each file source of this flow in one batch",
    ),
    Setting(
        key="flows.*.max_bytes_per_trigger",
        kind=Size(),
        meaning="approximate maximum bytes of each file source of this flow in one batch; at least one file",
    ),
    Setting(
        key="flows.*.max_events_per_trigger",
        kind=WholeNumber(1),
        meaning="a batch of this flow's change log ends with the transaction that brings it to this many "
        "events; 100000 without it",
    ),
    Setting(
        key="flows.*.bad_records",
        kind=Choice(BadRecords),
        meaning="what becomes of Kafka records on which this flow's query fails, and of records of files "
        "that do not parse: `fail` (as without it: the flow fails at such a record of Kafka, and writes NULL "
        "for one of a file, as Spark does), or `quarantine` into its quarantine table "
        "([Kafka](kafka.md#bad-records), [files](files.md#records-that-do-not-parse)). With "
        "`quarantine` a flow of AUTO CDC also leaves out [events without key or "
        "sequence](auto-cdc.md#events-without-key-or-sequence)",
    ),
    Setting(
        key="flows.*.on_recreated_topic",
        kind=Choice(RecreatedTopic),
        meaning="what this flow does when a Kafka topic was deleted and created again: `fail` (as without "
        "it), or `earliest`: take in the new topic from its beginning ([Kafka](kafka.md#recreated-topics))",
    ),
    Setting(
        key="sinks.*.format",
        kind=Text(),
        meaning="the format of this sink ([sinks](sinks.md)); not needed for one of `create_sink`",
    ),
    Setting(
        key="sinks.*.key",
        kind=NameList(),
        meaning="the columns that identify a row, for formats that need to know",
    ),
    Setting(
        key="sinks.*.keys.*",
        kind=NameList(),
        meaning="the columns that identify a row of this table, where they are others than those of `key` "
        "([sinks](sinks.md#keys))",
    ),
    Setting(
        key="sinks.*.policy",
        kind=Choice(DeliveryPolicy),
        meaning="what a failed delivery means: `retry` (as without it), `skip_with_alarm`, or `hold_back`: "
        "the next checkpoint is not published before the sink has the last one ([sinks](sinks.md#failures))",
    ),
    Setting(
        key="sinks.*.attempts",
        kind=WholeNumber(1),
        meaning="failed tries in a row after which `skip_with_alarm` skips; 3 without it",
    ),
    Setting(
        key="sinks.*.catch_up",
        kind=Duration(),
        meaning="how long the changes that this sink lacks are kept; then it is rebuilt; `168h` without it",
    ),
    Setting(
        key="sinks.*.options.*",
        kind=PropertyValue(),
        meaning="an option of the format",
        by_reference=True,
    ),
)

LIMITS = {
    "max_offsets_per_trigger": "maxOffsetsPerTrigger",
    "max_files_per_trigger": "maxFilesPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
    "max_events_per_trigger": "maxEventsPerTrigger",
}
"""The limits of a flow, and the options of its sources for them: Spark's, but for a change log's."""

OTHER_VARIABLES = {
    "TAUTOCHRONE_HOME": "where jars are kept; the user's cache folder without it",
    "TAUTOCHRONE_META_TOKEN": "the token that commands and jobs show to `taut serve`",
    "TAUTOCHRONE_SERVE_READ_TOKEN": "a token that `taut serve` takes for the role `read`",
    "TAUTOCHRONE_SERVE_OPERATE_TOKEN": "a token that `taut serve` takes for the role `operate`",
    "TAUTOCHRONE_FAULT": "a fault for the crash tests",
}
"""Variables of ours that are not settings of a project."""


def setting_of_path(path: tuple[str, ...]) -> tuple[Setting, tuple[str, ...]] | None:
    """The setting of a concrete path, and the path with one part for each part of the setting's:
    the dots in a property's name belong to the last star."""
    for setting in SETTINGS:
        pattern = setting.path
        normalized = path
        if pattern[-1] == "*" and len(path) > len(pattern):
            normalized = (*path[: len(pattern) - 1], ".".join(path[len(pattern) - 1 :]))
        if len(normalized) == len(pattern) and _common_parts_match(pattern, normalized):
            return setting, normalized
    return None


_TARGETS = "targets"


def override_of_target(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The setting that `[targets.NAME]` gives another value; None for other paths.

    >>> override_of_target(("targets", "dev", "run", "interval"))
    ('run', 'interval')
    """
    if path[0] != _TARGETS or len(path) < 4 or setting_of_path(path) is not None:
        return None
    return path[2:]


def is_table(path: tuple[str, ...]) -> bool:
    """Whether settings may be below this path."""
    if path[0] == _TARGETS:
        return len(path) <= 2 or (path[2] != _TARGETS and is_table(path[2:]))
    return any(
        len(path) < len(setting.path) and _common_parts_match(setting.path, path) for setting in SETTINGS
    )


def _common_parts_match(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether the path agrees with the pattern in the parts that both have."""
    return all(expected in ("*", name) for expected, name in zip(pattern, path, strict=False))


def sections() -> tuple[str, ...]:
    """The sections in the order of declaration."""
    return tuple(dict.fromkeys(setting.path[0] for setting in SETTINGS))


def settings_of(section: str) -> tuple[str, ...]:
    """The names of a section: `interval`, `parallelism`, …"""
    return tuple(dict.fromkeys(s.path[1] for s in SETTINGS if s.path[0] == section))


def nearest(name: str, known: Iterable[str], noun: str) -> str:
    """A hint: the nearest of the known names, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"{noun} are {', '.join(names)}"
