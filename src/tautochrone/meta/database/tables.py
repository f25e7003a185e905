"""The MetaService's schema as SQLAlchemy tables. Nothing here may know how they are used.

Table names are stored as `catalog.namespace.table`, times as epoch milliseconds. From the
first release on a change of this file needs a migration beside it, for stores of older releases.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

__all__ = [
    "alarms",
    "builds",
    "checkpoint_jobs",
    "checkpoints",
    "dataset_details",
    "dataset_inputs",
    "datasets",
    "deliveries",
    "failures",
    "invariants",
    "invariants_broken",
    "jobs",
    "metadata",
    "pins",
    "refreshes",
    "registrations",
    "reports",
    "revisions",
    "stores",
    "versions",
]

metadata = MetaData()

# SQLite gives only INTEGER PRIMARY KEY columns a number of their own.
_ID = BigInteger().with_variant(Integer(), "sqlite")

stores = Table(
    "stores",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", String(36), nullable=False),
    Column("last_number", BigInteger, nullable=False),
)
"""One row. It is locked while a checkpoint number is given."""

jobs = Table(
    "jobs",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("pipeline", String(255), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("state", String(20), nullable=False, server_default="registered"),
    Column("owner", String(255)),
    Column("lease_until_ms", BigInteger),
    Column("heartbeat_ms", BigInteger),
    Column("started_ms", BigInteger),
    Column("observed_ms", BigInteger),
    Column("observations", JSON),
    Column("process", JSON),
    Column("lake", Text),
    Column("lake_fence", BigInteger),
    Column("report", JSON(none_as_null=True)),
    Column("ended", JSON(none_as_null=True)),
)
"""`process` has the fields of `RunProcess` for its owner, `report` those of `model.run_report.RunReport` of
its newest run, `ended` those of `RunEnd`; null while it runs. `observed_ms` is when its owner last
observed that its sources have nothing new. `observations` has by table with a source the time of the last
source observation: all that the source held then is in the reported version
(`meta.queries.source_observations`). `lake` is the address of the lake that has the job's tables
(`meta.sql.jobs`). `lake_fence` is the highest fence of the job in the lake's commit metadata when the
store was last reconciled (`meta.sql.recovery`)."""

datasets = Table(
    "datasets",
    metadata,
    Column("name", String(1000), primary_key=True),
    Column("job", String(255), nullable=False, index=True),
    Column("kind", String(40), nullable=False),
    Column("definition", Text, nullable=False),
    Column("retired", Boolean, nullable=False),
    Column("is_root", Boolean, nullable=False, server_default=text("false")),
    Column("last_mode", String(20)),
    Column("last_reason", Text),
    Column("last_reason_code", String(40)),
    Column("last_reason_params", JSON),
    Column("last_at_ms", BigInteger),
    Column("skipped_files", JSON),
    Column("expectations", JSON),
    Column("table_id", String(255)),
    Column("pending_change", JSON(none_as_null=True)),
)
"""`skipped_files` has by flow and reason how many files of its sources are not in the table, and which;
`table_id` tells the lake's table from another one of the same name; null until it is recorded.
`pending_change` is a decided `model.dataset_change.DatasetChange` that is not complete."""

dataset_inputs = Table(
    "dataset_inputs",
    metadata,
    Column("dataset", String(1000), primary_key=True),
    Column("input", String(1000), primary_key=True, index=True),
)

dataset_details = Table(
    "dataset_details",
    metadata,
    Column("dataset", String(1000), primary_key=True),
    Column("definition", Text, nullable=False),
    Column("location", Text, nullable=False),
    Column("definition_text", Text, nullable=False),
    Column("schema", JSON, nullable=False),
    Column("column_lineage", JSON, nullable=False),
)
"""For people only. `definition` is the fingerprint that the rest belongs to."""

invariants = Table(
    "invariants",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("location", Text, nullable=False),
    Column("definition", String(64), nullable=False),
    Column("tables", JSON, nullable=False),
)
"""The invariants that each job checks before it does its part of a checkpoint; `definition` is a
fingerprint."""

invariants_broken = Table(
    "invariants_broken",
    metadata,
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("job", String(255), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("location", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("at_least", Boolean, nullable=False),
    Column("sample", JSON, nullable=False),
    Column("problem", Text),
)
"""The invariants because of which a job gave up its part of a checkpoint: one
`model.checkpoint.BrokenInvariant` each."""

reports = Table(
    "reports",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("table_name", String(1000), primary_key=True),
    Column("version", String(255), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("times", JSON(none_as_null=True)),
)
"""The newest reported version of each table. Tables that were committed together change in one transaction.
`times` has the versions that an aligned cut may take, each with its source time, and until when
it is complete where that is known; null for tables that are not aligned."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("job", String(255), nullable=False),
    Column("state", String(20), nullable=False),
    Column("cut_at_ms", BigInteger, nullable=False),
    Column("published_at_ms", BigInteger),
    Column("opened_ms", BigInteger),
    Column("observations", JSON),
    Index("checkpoints_by_state", "state", "number"),
)
"""`job` opened it. `cut_at_ms` is by that job's clock, `opened_ms` by the store's. `observations` are
those of its roots."""

checkpoint_jobs = Table(
    "checkpoint_jobs",
    metadata,
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("job", String(255), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("started_ms", BigInteger),
    Column("finished_ms", BigInteger),
    Column("cpu_ms", BigInteger),
    Column("waits_for", String(255)),
    Column("passed_invariants", JSON(none_as_null=True)),
    Index("checkpoint_jobs_by_job", "job", "state", "checkpoint"),
)
"""What each job of the topology did for a checkpoint; `state` is a `model.jobs.Part`, `waits_for` the job
whose tables it needs to go on. `passed_invariants` has by name their definitions."""

versions = Table(
    "versions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("job", String(255), nullable=False),
    Column("table_name", String(1000), nullable=False),
    Column("version", String(255), nullable=False),
    Column("from_checkpoint", BigInteger, nullable=False),
    Column("to_checkpoint", BigInteger),
    Column("ended_by", BigInteger),
    Column("confirmed", BigInteger, nullable=False),
    Column("is_root", Boolean, nullable=False),
    UniqueConstraint("job", "table_name", "from_checkpoint", name="versions_start"),
    Index("versions_by_table", "table_name", "from_checkpoint"),
    Index("versions_by_end", "to_checkpoint"),
)
"""A version of a table over an interval of checkpoints; without an end it is the current one. `job` writes
the table; for external tables it is empty. `ended_by` is the checkpoint that has another version or none;
it is empty where something else ended the interval, such as a revision.

`confirmed` is the newest checkpoint for which the version was recorded: an interval without an end also
covers an open checkpoint for which no version of the table was recorded yet.
"""

failures = Table(
    "failures",
    metadata,
    Column("dataset", String(1000), primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("error", Text, nullable=False),
    Column("error_code", String(40)),
    Column("error_params", JSON),
    Column("mode", String(20)),
)
"""Datasets that have no version for a checkpoint, and why. A repair removes the row."""

refreshes = Table(
    "refreshes",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("checkpoint", BigInteger, nullable=False),
    Column("dataset", String(1000), nullable=False),
    Column("version", String(255)),
    Column("mode", String(20)),
    Column("reason", Text),
    Column("reason_code", String(40)),
    Column("reason_params", JSON),
    Column("rows_inserted", BigInteger, nullable=False),
    Column("rows_deleted", BigInteger, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("estimate_ms", BigInteger),
    Column("delta_rows", BigInteger, nullable=False, server_default=text("0")),
    Column("nodes", JSON, nullable=False),
    Column("cpu_ms", BigInteger),
    Column("expectations", JSON),
    Column("error", Text),
    Column("error_code", String(40)),
    Column("error_params", JSON),
    Column("finished_at_ms", BigInteger, nullable=False),
    Index("refreshes_by_dataset", "dataset", "id"),
    Index("refreshes_by_checkpoint", "checkpoint"),
)

pins = Table(
    "pins",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("checkpoint", BigInteger, index=True),
    Column("owner", String(255), nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("versions", JSON, nullable=False),
    Column("holder", String(64)),
    Column("followed", Boolean, nullable=False, server_default=text("false")),
)

registrations = Table(
    "registrations",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("table_name", String(1000), primary_key=True),
    Column("role", String(10), primary_key=True),
    Column("registered_at_ms", BigInteger, nullable=False),
)
"""Tables that jobs announced to read or write. They join the topology when the job starts. `role` is a
`TableRole`."""

revisions = Table(
    "revisions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("plan", JSON, nullable=False),
    Column("decided_at_ms", BigInteger, nullable=False),
)
"""Decided revisions. Any run of a job of the plan carries a decision out that is not done."""

builds = Table(
    "builds",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("state", String(20), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("content", JSON, nullable=False),
)
"""Built plans, and the last ones that were dropped or taken over: `model.project_build.ProjectBuild`."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("sink", String(255), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("format", String(255), nullable=False),
    Column("tables", JSON, nullable=False),
    Column("policy", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("catch_up_ms", BigInteger, nullable=False),
    Column("incarnation", String(36)),
    Column("checkpoint", BigInteger),
    Column("versions", JSON(none_as_null=True)),
    Column("delivered_at_ms", BigInteger),
    Column("intent", JSON(none_as_null=True)),
    Column("failures", Integer, nullable=False),
    Column("skipped", Integer, nullable=False),
    Column("error", Text),
    Column("failed_at_ms", BigInteger),
    Column("flows", JSON(none_as_null=True)),
)
"""The state of each sink. `flows` has by name the fields of `model.sink.SinkFlow`. `incarnation`,
`checkpoint` and `versions` are what the sink showed when last read; `intent` is the `model.sink.Intent` of a
transaction whose result is not known yet."""

transaction_owners = Table(
    "transaction_owners",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("serial", BigInteger, nullable=False, server_default="0"),
)
"""`serial` counts the changes of the owner's transactions: a client that has seen a higher one knows that the
store is an older copy."""

forgotten_transactions = Table(
    "forgotten_transactions",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("series", String(255), primary_key=True),
    Column("position", Text, nullable=False),
)
"""Ids of ended transactions that are not kept: of each owner and series the highest position that is used
up (`model.transactions`)."""

transactions = Table(
    "transactions",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("participant", String(255), nullable=False),
    Column("state", String(20), nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("changed_at_ms", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("needs_attention", Boolean, nullable=False),
    Column("error", Text),
    Column("failed_at_ms", BigInteger),
    Index("transactions_by_state", "state"),
)

transaction_chunks = Table(
    "transaction_chunks",
    metadata,
    Column("transaction_id", String(255), primary_key=True),
    Column("chunk", String(255), primary_key=True),
    Column("table_name", String(1000), nullable=False),
    Column("partition", String(1000), nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("content_hash", String(255), nullable=False),
    Column("server", String(255), nullable=False),
)

alarms = Table(
    "alarms",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("rule", String(40), nullable=False),
    Column("subject", String(1000), nullable=False),
    Column("job", String(255), nullable=False),
    Column("level", String(20), nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("reason", JSON, nullable=False),
    Column("command", Text, nullable=False),
    Column("fired_at_ms", BigInteger, nullable=False),
    Column("acknowledged_by", String(255)),
    Column("acknowledged_at_ms", BigInteger),
    Column("resolved_at_ms", BigInteger),
    Column("notified", JSON, nullable=False),
    Index("alarms_by_end", "resolved_at_ms", "id"),
)
"""Each alarm that ever fired; without `resolved_at_ms` it is open, and there is at most one open alarm of a
rule and a subject. `reason` is that of when it fired. `notified` has by target the fields of
`model.alarms.Notified`."""
