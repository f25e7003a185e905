"""Pins whose holder follows the changes since their versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pins", sa.Column("followed", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
