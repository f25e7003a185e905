"""Unit tests of views: their rows, the evaluation of a view over them, and what differs."""
