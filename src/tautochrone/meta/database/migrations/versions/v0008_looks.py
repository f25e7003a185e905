"""When sources were looked at: for reads that must show what was written before a token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("looks", sa.JSON()))
    op.add_column("checkpoints", sa.Column("looks", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
