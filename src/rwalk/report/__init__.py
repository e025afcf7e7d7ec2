"""Results → something to look at: terminal tables and figures."""
