"""The MetaService's schema as SQLAlchemy tables. Nothing here may know how they are used.

Table names are stored as `catalog.namespace.table`, times as epoch milliseconds. A change of this
file needs a migration beside it; a test compares the two.
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
    "checkpoints",
    "dataset_inputs",
    "datasets",
    "failures",
    "jobs",
    "metadata",
    "pins",
    "refreshes",
    "reports",
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
"""One row. It is also the lock under which checkpoint numbers are handed out."""

jobs = Table(
    "jobs",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("pipeline", String(255), nullable=False),
    Column("fence", BigInteger, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("name", String(1000), primary_key=True),
    Column("job", String(255), nullable=False, index=True),
    Column("kind", String(40), nullable=False),
    Column("definition", Text, nullable=False),
    Column("retired", Boolean, nullable=False),
    Column("last_mode", String(20)),
    Column("last_reason", Text),
    Column("last_at_ms", BigInteger),
)

dataset_inputs = Table(
    "dataset_inputs",
    metadata,
    Column("dataset", String(1000), primary_key=True),
    Column("input", String(1000), primary_key=True, index=True),
)

reports = Table(
    "reports",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("table_name", String(1000), primary_key=True),
    Column("version", String(255), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""The newest reported version of each table; all tables of one unit change in one transaction."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("job", String(255), nullable=False),
    Column("state", String(20), nullable=False),
    Column("cut_at_ms", BigInteger, nullable=False),
    Column("published_at_ms", BigInteger),
    Index("checkpoints_by_state", "state", "number"),
    Index(
        "checkpoints_one_open",
        "job",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
)

versions = Table(
    "versions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("job", String(255), nullable=False),
    Column("table_name", String(1000), nullable=False),
    Column("version", String(255), nullable=False),
    Column("from_checkpoint", BigInteger, nullable=False),
    Column("to_checkpoint", BigInteger),
    Column("confirmed", BigInteger, nullable=False),
    Column("is_root", Boolean, nullable=False),
    UniqueConstraint("job", "table_name", "from_checkpoint", name="versions_start"),
    Index("versions_by_table", "table_name", "from_checkpoint"),
    Index("versions_by_end", "to_checkpoint"),
)
"""A version of a table as a job sees it, over an interval of checkpoints; no end: still current.

`confirmed` is the newest checkpoint for which the version was recorded: an interval without an end
reaches over an open target before anybody has said that it holds there.
"""

failures = Table(
    "failures",
    metadata,
    Column("dataset", String(1000), primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("error", Text, nullable=False),
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
    Column("rows_inserted", BigInteger, nullable=False),
    Column("rows_deleted", BigInteger, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("estimate_ms", BigInteger),
    Column("delta_rows", BigInteger, nullable=False, server_default=text("0")),
    Column("nodes", JSON, nullable=False),
    Column("error", Text),
    Column("finished_at_ms", BigInteger, nullable=False),
    Index("refreshes_by_dataset", "dataset", "id"),
)

pins = Table(
    "pins",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("checkpoint", BigInteger, index=True),
    Column("owner", String(255), nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("versions", JSON, nullable=False),
)
