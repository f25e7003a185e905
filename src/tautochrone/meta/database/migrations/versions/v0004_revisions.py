"""Revisions: what was decided to be taken back, and how far that has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "revisions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("decided_at_ms", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
