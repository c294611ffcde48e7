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

from importlib.resources import as_file, files
from pathlib import Path

__all__ = ["names", "path", "text"]


def text(name: str) -> str:
    """Return the contents of a text file of this folder (UTF-8)."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def path(name: str) -> Path:
    """Return the path of a file of this folder.

    An installed package is a folder of files (`setuptools` never leaves it zipped), so the path
    stays valid.
    """
    with as_file(files(__name__).joinpath(name)) as found:
        return found


def names(folder: str, suffix: str = ".toml") -> list[str]:
    """Return the names of the files of a subfolder that end in `suffix`, sorted, without it."""
    entries = files(__name__).joinpath(folder).iterdir()
    return sorted(e.name.removesuffix(suffix) for e in entries if e.name.endswith(suffix))
