"""Taking over tables and pipelines that exist already."""
