"""Queries of other engines' public SQL test suites, as views over changing tables."""
