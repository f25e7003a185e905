"""Which process runs a job, told apart from every other one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("process", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
