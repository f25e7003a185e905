"""Changes of each program are counted, ids are used up without being kept, failures have a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "transaction_owners", sa.Column("serial", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column("transactions", sa.Column("failed_at_ms", sa.BigInteger()))
    op.create_table(
        "forgotten_transactions",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("series", sa.String(255), primary_key=True),
        sa.Column("position", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
