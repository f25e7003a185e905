"""Reading analyzed and optimized plans: what a query reads and which properties it has."""
