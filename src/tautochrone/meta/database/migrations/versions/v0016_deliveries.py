"""Sinks: who delivers to them, how far, and which transaction is under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deliveries",
        sa.Column("sink", sa.String(255), primary_key=True),
        sa.Column("job", sa.String(255), nullable=False),
        sa.Column("format", sa.String(255), nullable=False),
        sa.Column("tables", sa.JSON(), nullable=False),
        sa.Column("policy", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("catch_up_ms", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.String(36)),
        sa.Column("checkpoint", sa.BigInteger()),
        sa.Column("versions", sa.JSON(none_as_null=True)),
        sa.Column("delivered_at_ms", sa.BigInteger()),
        sa.Column("intent", sa.JSON(none_as_null=True)),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("failed_at_ms", sa.BigInteger()),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
