"""Families: rows that came about in the same way, so that one says much about the others."""

from __future__ import annotations

import re

from .experiments import Mapped

__all__ = ["Family", "family"]

Family = tuple[str, str, str]


def family(mapped: Mapped) -> Family:
    """Return a row's source, the family of its model (the letters its name begins with) and
    framework."""
    name = re.match(r"[A-Za-z]*", mapped.row.texts["model"])
    assert name is not None
    framework = mapped.experiment.calibration.framework or ""
    return mapped.source, name[0].casefold(), framework
