"""Drift: probes, divergences, the pull of an anchor, the reference model."""
