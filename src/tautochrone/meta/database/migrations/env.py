"""Alembic runs this inside the transaction that `Database.migrate` already holds."""

from __future__ import annotations

from alembic import context

from tautochrone.meta.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter columns: alembic then copies the table.
    render_as_batch=True,
)
context.run_migrations()
