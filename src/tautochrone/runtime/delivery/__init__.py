"""Deliveries: each published checkpoint goes to the sinks, by one transaction each. Start at `Deliveries`."""
