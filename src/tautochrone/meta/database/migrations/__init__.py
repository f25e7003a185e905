"""Alembic's environment and revisions of the MetaService's store; run on open, never by hand."""
