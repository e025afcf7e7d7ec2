"""Packages that are imported only where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from rwalk.errors import InputError


def optional(module: str, package: str) -> Any:
    """Import a module that may not be installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"this needs {package}: pip install {package}") from None
