"""The lake that a job's tables are in: a copy of a project is not the project."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lake", sa.Text()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
