"""Constants of the overlap slowdown, from ``data/overlap.toml`` or a user's file."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.presets import load_file, packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

__all__ = [
    "CLASSES",
    "SlowdownConstants",
    "class_of_family",
    "packaged_constants",
    "read_constants",
]

FILE = "overlap.toml"

CLASSES = ("matrix", "streaming", "reducing")
"""Classes of kernels: each has a constant of its own."""

_STREAMING = frozenset(
    (
        "elementwise",
        "elementwise_block_scales",
        "elementwise_row_copies",
        "elementwise_layout",
        "elementwise_row_sums",
        "elementwise_scales_apart",
        "elementwise_slice_writes",
        "elementwise_sort_passes",
        "elementwise_widening",
        "optimizer",
        "copy",
        "embedding",
        "norm_persistent",
    )
)
_REDUCING = frozenset(("softmax", "norm", "cross_entropy"))

_REDUCTIONS = frozenset((Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE))
_SENDS = frozenset((Operation.SEND_RECV, Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER))


@frozen
class SlowdownConstants:
    """Constants of the parametric model; each is explained in the data file.

    Attributes
    ----------
    gather, reduce, multicast, send : Quantity
        Bytes of the GPU's memory a byte that it sends.
    share : Quantity
        Of the memory's bandwidth, what a communication takes at most; below 1.
    block : Quantity
        Multiprocessors that a thread block holds.
    channels : Quantity
        Thread blocks of a communication where the network's model does not give them.
    matrix, streaming, reducing : Quantity
        Of the classes of kernels: the slowdown, less 1, that nothing else explains.
    communication : Quantity
        The slowdown, less 1, of a communication beside a kernel that fills the memory's bandwidth.
    most : Quantity
        The largest factor; 1 or more.
    """

    gather: Quantity
    reduce: Quantity
    multicast: Quantity
    send: Quantity
    share: Quantity
    block: Quantity
    channels: Quantity
    matrix: Quantity
    streaming: Quantity
    reducing: Quantity
    communication: Quantity
    most: Quantity

    def __post_init__(self) -> None:
        for each in fields(self):
            unit = getattr(self, each.name).unit
            if unit != "1":
                raise InputError(f"{each.name!r} has the unit {unit!r}; it is a pure number, '1'")
        if not self.share.value < 1:
            raise InputError(f"'share' is {self.share.value}; it must be below 1")
        if not self.most.value >= 1:
            raise InputError(f"'most' is {self.most.value}; it must be 1 or more")

    def traffic(self, operation: Operation, algorithm: str = "") -> Quantity:
        """Return the bytes of the GPU's memory for a byte that it sends.

        Parameters
        ----------
        operation : Operation
        algorithm : str
            NCCL's, as far as known.

        Examples
        --------
        >>> packaged_constants().traffic(Operation.ALL_REDUCE, "ring").value
        3.0
        """
        if algorithm.startswith("nvls"):
            return self.multicast
        if operation in _SENDS:
            return self.send
        return self.reduce if operation in _REDUCTIONS else self.gather


def class_of_family(family: str) -> int:
    """Return the entry of `CLASSES` of a kernel, by its `Kernel.qualified_family`."""
    if family in _STREAMING:
        return CLASSES.index("streaming")
    return CLASSES.index("reducing" if family in _REDUCING else "matrix")


@cache
def packaged_constants() -> SlowdownConstants:
    """Return the constants of ``data/overlap.toml``; `read_constants` reads a file of a user."""
    return build(SlowdownConstants, packaged(FILE), FILE)


def read_constants(path: str | Path) -> SlowdownConstants:
    """Read constants that ``mpisim calibrate overlap`` has written.

    Raises
    ------
    InputError
        If the file cannot be read, or is not of that form.
    """
    return build(SlowdownConstants, load_file(Path(path)), str(path))
