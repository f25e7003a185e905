"""The schema of the first release. A new store gets its tables from `tables`, so there is nothing to do."""

from __future__ import annotations

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is older."""


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
