"""Which paths are of the Iceberg catalog. Its clients expect errors in Iceberg's form."""

from __future__ import annotations

__all__ = ["TRANSACTIONS", "is_catalog_path"]

TRANSACTIONS = "/v1/transactions"


def is_catalog_path(path: str) -> bool:
    """Whether the catalog answers this path; the transactions lie beside it.

    >>> is_catalog_path("/v1/config"), is_catalog_path("/v1/transactions/t/begin")
    (True, False)
    """
    return path.startswith("/v1/") and path != TRANSACTIONS and not path.startswith(f"{TRANSACTIONS}/")
