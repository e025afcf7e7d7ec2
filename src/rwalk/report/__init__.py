"""Results → something to look at: terminal tables, figures, one HTML page."""
