"""Computing plans of the algebra on Spark: materialized results, key look-ups, differences."""
