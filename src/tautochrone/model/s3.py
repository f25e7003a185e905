"""Locations on S3, and how its servers are asked."""

from __future__ import annotations

__all__ = ["S3_OPTIONS", "is_on_s3"]

S3_OPTIONS = (
    "s3.endpoint",
    "s3.region",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.path-style-access",
)
"""The options of a server, as Iceberg names them."""


def is_on_s3(location: str) -> bool:
    """
    >>> is_on_s3("s3a://bucket/key"), is_on_s3("/s3/key")
    (True, False)
    """
    return location.lower().startswith(("s3://", "s3a://", "s3n://"))
