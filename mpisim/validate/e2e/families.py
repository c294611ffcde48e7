"""Families: rows that came about in the same way, so that one says much about the others."""

from __future__ import annotations

from .experiments import SUFFIXES, Mapped, unnamed

__all__ = ["Family", "Way", "family", "way"]

Family = tuple[str, str, str]

Way = tuple[str | int, ...]


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


def way(mapped: Mapped) -> Way:
    """Return how a row ran: kind of GPU, format and plan of parallelism.

    Rows of one family that ran in one way rest on the same kernels and communications, so that
    these are off alike: number of GPUs and batches do not matter.
    """
    plan = mapped.experiment.plan
    sizes = plan.tp, plan.pp, plan.vpp, plan.cp, plan.ep
    return mapped.row.texts["gpu"], plan.precision, *sizes
