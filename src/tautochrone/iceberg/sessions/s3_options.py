"""Hadoop's settings of S3 as the options by which PyIceberg opens the same files.

Spark reads `s3a://` through Hadoop. The service that answers where tables are has no Spark, and reads their
metadata files itself.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["s3_options"]

_PREFIX = "spark.hadoop.fs.s3a."
_OPTIONS = {
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "endpoint": "s3.endpoint",
    "endpoint.region": "s3.region",
}


def s3_options(conf: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's options for Spark's settings `spark.hadoop.fs.s3a.…`; empty when there are none.

    >>> s3_options({"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"})
    {'s3.region': 'eu-west-1'}
    """
    options = {
        option: conf[f"{_PREFIX}{name}"] for name, option in _OPTIONS.items() if f"{_PREFIX}{name}" in conf
    }
    endpoint = options.get("s3.endpoint", "")
    if endpoint and "://" not in endpoint:
        secure = conf.get(f"{_PREFIX}connection.ssl.enabled", "true").lower() == "true"
        options["s3.endpoint"] = f"{'https' if secure else 'http'}://{endpoint}"
    if options and f"{_PREFIX}path.style.access" in conf:
        virtual = conf[f"{_PREFIX}path.style.access"].lower() != "true"
        options["s3.force-virtual-addressing"] = str(virtual)
    return options
