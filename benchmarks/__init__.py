"""Measurements of speed, as ratios taken in one run: `make bench`."""
