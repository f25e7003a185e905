"""Reasons and failures with a code and parameters beside their text.

Rows of before have none, except those by which code decides: the beginnings of the history of a definition.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_BEGINNINGS = {"first build": "FIRST_BUILD", "the definition changed": "DEFINITION_CHANGED"}


def upgrade() -> None:
    for table, name in (
        ("datasets", "last_reason"),
        ("refreshes", "reason"),
        ("refreshes", "error"),
        ("failures", "error"),
    ):
        op.add_column(table, sa.Column(f"{name}_code", sa.String(40), nullable=True))
        op.add_column(table, sa.Column(f"{name}_params", sa.JSON(), nullable=True))
    refreshes = sa.table("refreshes", sa.column("reason"), sa.column("reason_code"))
    for text, code in _BEGINNINGS.items():
        op.execute(refreshes.update().where(refreshes.c.reason == text).values(reason_code=code))


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
