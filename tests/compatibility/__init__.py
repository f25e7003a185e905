"""Small projects, each run by `spark-pipelines` and by `taut`: rows and refusals are compared."""
