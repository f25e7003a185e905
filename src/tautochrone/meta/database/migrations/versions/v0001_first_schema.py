"""The first schema of the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("cut_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("published_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("checkpoints_by_state", "checkpoints", ["state", "number"], unique=False)
    op.create_index(
        "checkpoints_one_open",
        "checkpoints",
        ["job"],
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "dataset_inputs",
        sa.Column("dataset", sa.String(length=1000), nullable=False),
        sa.Column("input", sa.String(length=1000), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "input"),
    )
    op.create_index(op.f("ix_dataset_inputs_input"), "dataset_inputs", ["input"], unique=False)
    op.create_table(
        "datasets",
        sa.Column("name", sa.String(length=1000), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("retired", sa.Boolean(), nullable=False),
        sa.Column("last_mode", sa.String(length=20), nullable=True),
        sa.Column("last_reason", sa.Text(), nullable=True),
        sa.Column("last_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index(op.f("ix_datasets_job"), "datasets", ["job"], unique=False)
    op.create_table(
        "failures",
        sa.Column("dataset", sa.String(length=1000), nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(length=20), nullable=True),
        sa.PrimaryKeyConstraint("dataset", "checkpoint"),
    )
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("pipeline", sa.String(length=255), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "pins",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), nullable=True),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_pins_checkpoint"), "pins", ["checkpoint"], unique=False)
    op.create_table(
        "refreshes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("dataset", sa.String(length=1000), nullable=False),
        sa.Column("version", sa.String(length=255), nullable=True),
        sa.Column("mode", sa.String(length=20), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("rows_inserted", sa.BigInteger(), nullable=False),
        sa.Column("rows_deleted", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("refreshes_by_dataset", "refreshes", ["dataset", "id"], unique=False)
    op.create_table(
        "reports",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("table_name", sa.String(length=1000), nullable=False),
        sa.Column("version", sa.String(length=255), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "table_name"),
    )
    op.create_table(
        "stores",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.String(length=36), nullable=False),
        sa.Column("last_number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("table_name", sa.String(length=1000), nullable=False),
        sa.Column("version", sa.String(length=255), nullable=False),
        sa.Column("from_checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("to_checkpoint", sa.BigInteger(), nullable=True),
        sa.Column("confirmed", sa.BigInteger(), nullable=False),
        sa.Column("is_root", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job", "table_name", "from_checkpoint", name="versions_start"),
    )
    op.create_index("versions_by_end", "versions", ["to_checkpoint"], unique=False)
    op.create_index("versions_by_table", "versions", ["table_name", "from_checkpoint"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
