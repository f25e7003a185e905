"""How far the sources of roots have come: for aligned cuts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reports", sa.Column("times", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
