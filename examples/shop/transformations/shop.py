from tautochrone.sources import postgresql

postgresql.capture("shop", url=spark.conf.get("shop.url"), tables="public.*")  # noqa: F821
