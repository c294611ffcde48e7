"""Batch norms over several ranks: `torch.nn.SyncBatchNorm`.

Its forward pass gathers means, deviations and counts of all ranks, and leaves out the ranks whose
batch was empty, by a mask that the CPU waits for three times. Here every rank has samples, as this
one has.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install"]


def install(dispatch: Any) -> None:
    """Have masks of ranks with samples hold for every rank.

    Parameters
    ----------
    dispatch : Dispatch
    """
    from torch.nn.modules import _functions as functions

    anything: Any = functions.SyncBatchNorm
    forward = anything.forward

    def of_all_ranks(ctx: Any, *args: Any) -> Any:
        with dispatch.masks_hold():
            return forward(ctx, *args)

    anything.forward = staticmethod(of_all_ranks)
