"""NCCL's algorithm, protocol, channels and bottleneck for each kind of communication, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.distinct import equal_columns
from ..base.text import quantity
from ..program import UNPRICED, Operation, Program

if TYPE_CHECKING:
    from ..topo.nccl import Nccl

__all__ = ["Chosen", "library_choices"]


class Chosen(NamedTuple):
    """NCCL's choice for a communication and its bottleneck, as text."""

    how: str
    limit: str


def library_choices(program: Program, network: Any, nccl: Nccl) -> dict[str, Chosen]:
    """Program on a network → algorithm, protocol and channels of each kind of communication. Local.

    Parameters
    ----------
    program : Program
    network : Network
        With classes that have a shape.
    nccl : Nccl

    Returns
    -------
    dict of str to Chosen
        ``"all-gather of 33.6 MB on 8 ranks, 1 node"`` → ``"ring simple, 16 channels"``, ``"NIC"``.
    """
    groups = program.communicators
    label, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
    found: dict[str, Chosen] = {}
    first = np.unique(program.table, return_index=True)[1]
    for rank in first.tolist():
        table = program.table_of(rank)
        rows = np.flatnonzero((table.slot >= 0) & (table.duration == UNPRICED))
        if not len(rows):
            continue
        at = label[program.slots_of(rank)[table.slot[rows]]]
        columns = np.stack([table.operation[rows].astype(np.int64), table.bytes[rows] + 1, at])
        kind, n = equal_columns(columns)
        which = np.zeros(n, np.int64)
        which[kind] = np.arange(len(kind))
        for operation, more, number in columns[:, which].T.tolist():
            shape = classes[number].shape
            if shape.ranks == 1:
                continue
            word = Operation(operation).name.lower().replace("_", "-")
            nodes = f"{shape.nodes} node" + ("s" if shape.nodes > 1 else "")
            name = f"{word} of {quantity(more - 1, 'B')} on {shape.ranks} ranks, {nodes}"
            did = nccl.choose(Operation(operation), more - 1, shape)
            words = f"{did.algorithm} {did.protocol}, {did.channels} channels"
            limit = network.limit_of(Operation(operation), more - 1, classes[number])
            found[name] = Chosen(words, limit.partition(" ")[0] if "link" in limit else limit)
    return found
