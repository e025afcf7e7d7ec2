"""Trained classifiers with a description of their data: learned from files, applied to files."""

from __future__ import annotations

from rwalk.models.network_factory import Backbone, backbone, load_with, through
from rwalk.models.trained_on_files import begun, learn, predictions

__all__ = [
    "Backbone",
    "backbone",
    "begun",
    "learn",
    "load_with",
    "predictions",
    "through",
]
