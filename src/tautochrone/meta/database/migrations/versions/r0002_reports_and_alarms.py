"""What a run says of itself, how it ended, and alarms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("report", sa.JSON()))
    op.add_column("jobs", sa.Column("ended", sa.JSON()))
    # SQLite numbers the rows of an INTEGER key by itself, and of no other type.
    identity = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "alarms",
        sa.Column("id", identity, primary_key=True),
        sa.Column("rule", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(1000), nullable=False),
        sa.Column("job", sa.String(255), nullable=False),
        sa.Column("level", sa.String(20), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("fired_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged_by", sa.String(255)),
        sa.Column("acknowledged_at_ms", sa.BigInteger()),
        sa.Column("resolved_at_ms", sa.BigInteger()),
        sa.Column("notified", sa.JSON(), nullable=False),
    )
    op.create_index("alarms_by_end", "alarms", ["resolved_at_ms", "id"])


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
