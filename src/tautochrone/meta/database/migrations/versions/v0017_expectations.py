"""How many rows violate the expectations of each dataset, now and after each refresh."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("expectations", sa.JSON()))
    op.add_column("refreshes", sa.Column("expectations", sa.JSON()))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
