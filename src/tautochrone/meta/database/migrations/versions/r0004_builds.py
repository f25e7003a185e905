"""Plans that are built beside the deployed datasets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("job", sa.String(255), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
