"""Where a dataset is defined, its text, columns and their origin: for people. Refreshes by checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dataset_details",
        sa.Column("dataset", sa.String(1000), primary_key=True),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("definition_text", sa.Text(), nullable=False),
        sa.Column("schema", sa.JSON(), nullable=False),
        sa.Column("column_lineage", sa.JSON(), nullable=False),
    )
    op.create_index("refreshes_by_checkpoint", "refreshes", ["checkpoint"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("stores only move forward")
