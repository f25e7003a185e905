"""Datasets that are being dropped or renamed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("pending_change", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
