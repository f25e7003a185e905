"""The MetaService: the store over HTTP, with an API for programs and pages for people."""
