"""What tells a store's tables and what the lake last said to it: for restored and swapped stores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lake_fence", sa.BigInteger()))
    op.add_column("datasets", sa.Column("table_id", sa.String(255)))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
