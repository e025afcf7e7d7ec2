"""Drift: probes, divergences, the controller of a budget, the reference model."""
