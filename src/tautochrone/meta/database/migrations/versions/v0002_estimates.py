"""What a refresh was expected to take, and how many rows had changed below it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("refreshes", sa.Column("estimate_ms", sa.BigInteger(), nullable=True))
    # Existing rows need a value; SQLite adds a NOT NULL column only with a default.
    op.add_column(
        "refreshes", sa.Column("delta_rows", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
