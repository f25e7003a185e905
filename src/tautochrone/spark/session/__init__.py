"""Starting Spark and the sessions that share its one context: settings, jars, the Java process."""
