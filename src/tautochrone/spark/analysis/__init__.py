"""Reading analysed and optimised plans: what a query reads and which properties it has."""
