"""Linear functions of fixed features, solved for from sums: what needs no gradient, and forgets nothing."""
