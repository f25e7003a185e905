"""The dialect of Databricks' pipelines: what their projects import and write beyond open-source Spark."""
