"""A checkpoint is shared by all jobs of a connected topology; jobs hold leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoint_jobs",
        sa.Column("checkpoint", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("finished_ms", sa.BigInteger(), nullable=True),
        sa.Column("cpu_ms", sa.BigInteger(), nullable=True),
        sa.Column("waits_for", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("checkpoint", "job"),
    )
    op.create_index("checkpoint_jobs_by_job", "checkpoint_jobs", ["job", "state", "checkpoint"])
    # So far every checkpoint was one job's own.
    op.execute(
        "INSERT INTO checkpoint_jobs (checkpoint, job, state, started_ms, finished_ms) "
        "SELECT number, job, CASE state WHEN 'open' THEN 'pending' WHEN 'aborted' THEN 'skipped' "
        "ELSE 'done' END, cut_at_ms, published_at_ms FROM checkpoints"
    )
    op.drop_index("checkpoints_one_open", table_name="checkpoints")
    op.add_column("checkpoints", sa.Column("opened_ms", sa.BigInteger(), nullable=True))
    op.execute("UPDATE checkpoints SET opened_ms = cut_at_ms")
    # Tables that no job writes belong to nobody: all jobs that read one see the same version of it.
    op.execute("UPDATE versions SET job = '' WHERE table_name NOT IN (SELECT name FROM datasets)")
    op.add_column(
        "datasets", sa.Column("is_root", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )
    op.add_column(
        "jobs", sa.Column("state", sa.String(length=20), nullable=False, server_default="registered")
    )
    for name, kind in (
        ("owner", sa.String(length=255)),
        ("lease_until_ms", sa.BigInteger()),
        ("heartbeat_ms", sa.BigInteger()),
        ("started_ms", sa.BigInteger()),
        ("looked_ms", sa.BigInteger()),
    ):
        op.add_column("jobs", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
