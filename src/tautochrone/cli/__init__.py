"""Arguments in, output out."""
