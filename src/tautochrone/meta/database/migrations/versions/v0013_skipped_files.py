"""Files that a flow's sources skipped: for `taut status`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("skipped_files", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
