"""Tables that a job said it will read and write, before it runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "registrations",
        sa.Column("job", sa.String(length=255), nullable=False),
        sa.Column("table_name", sa.String(length=1000), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.Column("registered_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "table_name", "role"),
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
