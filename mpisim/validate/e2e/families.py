"""Families: rows that came about in the same way, so that one says much about the others."""

from __future__ import annotations

from .experiments import SUFFIXES, Mapped, unnamed

__all__ = ["Family", "family"]

Family = tuple[str, str, str]


def family(mapped: Mapped) -> Family:
    """Return a row's source, model and framework.

    Cut-down copies of a model and its fine-tuning are the same model; of models that have no name
    but their kind's (``GPT``) those of one width are. Number of GPUs, their kind, batch, format and
    plan do not matter: what is measured of one model in one place is left out, or in, together.
    """
    name = mapped.row.texts["model"]
    for suffix in SUFFIXES:
        name = name.partition(suffix)[0]
    if unnamed(name):
        name = f"{name} {mapped.row.texts['hidden']}"
    return mapped.source, name.casefold(), mapped.experiment.calibration.framework or ""
