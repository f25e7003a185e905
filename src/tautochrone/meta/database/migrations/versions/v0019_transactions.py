"""Transactions that programs drive, their chunks, and the highest fence of each program."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "transaction_owners",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "transactions",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("participant", sa.String(255), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("changed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("needs_attention", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text()),
    )
    op.create_index("transactions_by_state", "transactions", ["state"])
    op.create_table(
        "transaction_chunks",
        sa.Column("transaction_id", sa.String(255), primary_key=True),
        sa.Column("chunk", sa.String(255), primary_key=True),
        sa.Column("table_name", sa.String(1000), nullable=False),
        sa.Column("partition", sa.String(1000), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.String(255), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
