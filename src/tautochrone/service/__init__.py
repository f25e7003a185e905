"""Reading at an instant, over HTTP and in process."""
