"""Trained classifiers with a description of their data: learned from files, applied to files."""

from __future__ import annotations

from rwalk.models.network_factory import Backbone, backbone, load_with, through
from rwalk.models.trained_on_files import FileClassifier, learn, load, predictions

__all__ = [
    "Backbone",
    "FileClassifier",
    "backbone",
    "learn",
    "load",
    "load_with",
    "predictions",
    "through",
]
