"""From the files of a pipeline project to a dataflow graph."""
