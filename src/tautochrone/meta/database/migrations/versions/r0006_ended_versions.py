"""Which checkpoint ended the interval of a version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("versions", sa.Column("ended_by", sa.BigInteger()))
    # Only of an open checkpoint it will be asked.
    op.execute(
        "UPDATE versions SET ended_by = to_checkpoint + 1 "
        "WHERE to_checkpoint + 1 IN (SELECT number FROM checkpoints WHERE state = 'open')"
    )


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
