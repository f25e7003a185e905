"""Calls into Spark's JVM over Py4J: classes, Scala values, Catalyst trees, exceptions."""
