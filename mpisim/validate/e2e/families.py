"""Row → its family (source, model, framework), whose rows have correlated errors."""

from __future__ import annotations

from .experiments import SUFFIXES, Mapped, unnamed

__all__ = ["Family", "Way", "family", "way"]

Family = tuple[str, str, str]

Way = tuple[str | int, ...]


def family(mapped: Mapped) -> Family:
    """Row → its source, model and framework.

    Measurements of one model by one source are held out together; number and type of GPUs, batch,
    format and plan do not matter.

    Parameters
    ----------
    mapped : Mapped

    Returns
    -------
    source, model, framework : str
        Shortened copies of a model and its fine-tuning count as that model; models with a generic
        name (``GPT``) are distinguished by hidden size. The framework is empty if none is named.
    """
    name = mapped.row.texts["model"]
    for suffix in SUFFIXES:
        name = name.partition(suffix)[0]
    if unnamed(name):
        name = f"{name} {mapped.row.texts['hidden']}"
    return mapped.source, name.casefold(), mapped.experiment.software or ""


def way(mapped: Mapped) -> Way:
    """Row → its configuration: GPU type, number format and degrees of parallelism.

    Rows of one family and configuration run the same kernels and communications, so their errors
    are correlated; number of GPUs and batch sizes do not matter.

    Parameters
    ----------
    mapped : Mapped

    Returns
    -------
    gpu, format : str
    tp, pp, vpp, cp, ep : int
    """
    plan = mapped.experiment.plan
    sizes = plan.tp, plan.pp, plan.vpp, plan.cp, plan.ep
    return mapped.row.texts["gpu"], plan.precision.products, *sizes
