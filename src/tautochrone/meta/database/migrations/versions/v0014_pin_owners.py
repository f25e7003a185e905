"""Who holds a pin, as the service knows it: nobody else but an operator may renew or release it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Pins from before have no holder: only operators release them, or their lease ends.
    op.add_column("pins", sa.Column("holder", sa.String(64)))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
