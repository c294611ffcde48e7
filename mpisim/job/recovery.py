"""How long an interruption takes where ``[job]`` does not say (``data/recovery.toml``)."""

from __future__ import annotations

from functools import cache

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build

__all__ = ["Recovery", "recovery"]

FILE = "recovery.toml"


@frozen
class Recovery:
    """Times of an interruption; the data file explains each.

    Attributes
    ----------
    detection : Quantity
        Until the cause is found.
    restart : Quantity
        From there to the first step, without loading the checkpoint.
    swap : Quantity
        To put a spare in the place of a node.
    repair : Quantity
        Until a node that left is a spare again.
    maintenance : Quantity
        Of a planned interruption.
    stall : Quantity
        Of an asynchronous checkpoint, beside the copy to the host.
    host : Quantity
        What a GPU copies to its host, where the cluster does not say.
    """

    detection: Quantity
    restart: Quantity
    swap: Quantity
    repair: Quantity
    maintenance: Quantity
    stall: Quantity
    host: Quantity


@cache
def recovery() -> Recovery:
    """Return the times of ``data/recovery.toml``: what passes from a failure to the next step."""
    return build(Recovery, packaged(FILE), FILE)
