"""Presets, calibrations, validation tables and small example traces.

``text(name)``
    The contents of a data file.
``path(name)``
    The path of a data file, for readers that want one.
``names(folder)``
    What there is.

Names are relative to this folder, with forward slashes: ``"experiments/llama3-8b-8-h100.toml"``.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["names", "path", "text"]

FOLDER = Path(__file__).parent
"""An installed package is a folder of files, too: `setuptools` never leaves it zipped."""


def text(name: str) -> str:
    """Return the contents of a text file of this folder (UTF-8)."""
    return path(name).read_text(encoding="utf-8")


def path(name: str) -> Path:
    """Return the path of a file of this folder."""
    return FOLDER / name


def names(folder: str, suffix: str = ".toml") -> list[str]:
    """Return the names of the files of a subfolder that end in `suffix`, sorted, without it."""
    entries = os.listdir(path(folder))
    return sorted(each.removesuffix(suffix) for each in entries if each.endswith(suffix))
