"""One guarded step."""
