"""Trained classifiers with a description of their data: learned from files, applied to files, kept by studies."""

from __future__ import annotations

from rwalk.models.kept import Keeper
from rwalk.models.parts import learn_in_parts
from rwalk.models.trained import Trained, learn, load, predictions

__all__ = ["Keeper", "Trained", "learn", "learn_in_parts", "load", "predictions"]
