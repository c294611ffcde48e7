"""`Measurement`: one measured communication, with its machine, group, size and time."""

from __future__ import annotations

from dataclasses import field

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

__all__ = ["Measurement"]


@frozen
class Measurement:
    """A measured communication: one operation, one size, one group.

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
        A, B or C of the index of curves; empty where not graded.
    version : str
        Of the library, as printed; empty where not stated.
    notes : str
    settings : tuple of (str, str)
        ``NCCL_*`` variables that the author set.
    source : str
    setup : str
        What runs that repeat each other have in common; empty: the curve is one of its kind.
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
    setup: str = ""

    @property
    def id(self) -> str:
        """Where the measurement stands: ``file:line``."""
        return f"{self.file}:{self.line}"
