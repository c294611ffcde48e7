"""One measured communication, and which side of a split it is on."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from mpisim.program import Operation

__all__ = ["TEST", "TRAIN", "Measurement", "Split", "select", "split_of"]

Split = Literal["train", "test"]
TRAIN: Split = "train"
TEST: Split = "test"


@dataclass(frozen=True)
class Measurement:
    """One row of a table: one operation, one size, one group.

    Attributes
    ----------
    operation : Operation
    bytes : int
        The full buffer: what a rank ends up with (all-gather), starts from (reduce-scatter) or
        both (all-reduce); in an all-to-all what one rank sends to all, itself included.
    seconds : float
    gpus, nodes : int
        Of the group.
    gpu : str
        As its author writes it.
    inside, across : str
        What joins the GPUs of a node, and the nodes, in the author's words.
    curve : str
        The run that the row is part of: whole curves are fitted or tested, never single rows.
    file : str
        Name of the table, without folders.
    line : int
        Of the table, the header being line 1.
    library : str
        What ran: ``"nccl"``, ``"rccl"``, or a kernel of DeepEP's.
    grade : str
        A, B or C of the index of curves; empty where nobody graded it.
    version : str
        Of the library, as printed; empty where not stated.
    notes : str
    settings : tuple of (str, str)
        ``NCCL_*`` variables that the author set.
    source : str
    """

    operation: Operation
    bytes: int
    seconds: float
    gpus: int
    nodes: int
    gpu: str
    inside: str
    across: str
    curve: str
    file: str
    line: int
    library: str = "nccl"
    grade: str = ""
    version: str = ""
    notes: str = ""
    settings: tuple[tuple[str, str], ...] = field(default=())
    source: str = ""

    @property
    def split(self) -> Split:
        """The half that its curve belongs to."""
        return split_of(self.curve)

    @property
    def id(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


def split_of(curve: str) -> Split:
    """Return the half of a curve, by its identity alone: the same for anybody, in any order.

    Examples
    --------
    >>> split_of("all_reduce, H100-SXM-80GB, 16 GPUs, 2 nodes") in ("train", "test")
    True
    """
    return TEST if zlib.crc32(curve.encode()) % 2 else TRAIN


def select(
    measurements: Iterable[Measurement], *, split: str = "all", grades: Iterable[str] = ()
) -> list[Measurement]:
    """Return the rows of a half (``"all"``: both) and of some grades (none named: all)."""
    wanted = {each.upper() for each in grades}
    return [
        each
        for each in measurements
        if split in ("all", each.split) and (not wanted or each.grade in wanted)
    ]
