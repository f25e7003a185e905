"""The test kit that adapter writers use too: conformance suites, crash points, oracles."""
