"""The store's database: engine and transactions, tables, migrations, and the base of the SQL parts."""

from tautochrone.meta.database.engine import HEAD, StoreDatabase, parsed_url

__all__ = ["HEAD", "StoreDatabase", "parsed_url"]
