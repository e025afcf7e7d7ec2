"""Learning in closed form: exact, in any order, with nothing kept but sums."""
