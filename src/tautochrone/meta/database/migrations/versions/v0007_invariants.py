"""Invariants: who checks what, what held at a checkpoint, what broke it. CPU time of each refresh."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "invariants",
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("definition", sa.String(64), nullable=False),
        sa.Column("tables", sa.JSON(), nullable=False),
    )
    op.add_column("checkpoint_jobs", sa.Column("held", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "invariants_broken",
        sa.Column("checkpoint", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("at_least", sa.Boolean(), nullable=False),
        sa.Column("sample", sa.JSON(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
    )
    op.add_column("refreshes", sa.Column("cpu_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
