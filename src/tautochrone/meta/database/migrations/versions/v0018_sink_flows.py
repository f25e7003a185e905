"""Sinks that Spark writes: the last batch and the rows of each flow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("flows", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
