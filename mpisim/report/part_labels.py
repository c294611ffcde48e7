"""Parts of the step → what people call them: kinds of communicators by what they are for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program import Operation
from ..results import PartKind, Results, StepParts
from ..results.step_parts import communicator_kinds

__all__ = ["CommunicatorKinds", "part_label", "part_labels"]

RINGS = {"cp", "tp", "ep", "dp"}
"""Kinds of communicators on which messages go round: no pipelines."""


WORDS = {"instance": "optimizer instance"}
"""Kinds whose name says too little: Megatron-LM's '--num-distributed-optimizer-instances'."""


class CommunicatorKinds(NamedTuple):
    """Kinds of communicators, as they are called (`mpisim.results.step_parts`)."""

    names: list[str]
    kind: NDArray[np.int64]  # of each row of `Results.communications`
    pairs: set[str]  # on which stages of a pipeline send each other messages

    @classmethod
    def of(cls, results: Results) -> CommunicatorKinds:
        """Results → the kinds of their communicators."""
        columns = results.communications
        names, kinds = communicator_kinds(results.communicators.names)
        kind = kinds[columns["communicator"]]
        messages = kind[columns["operation"] == Operation.SEND_RECV]
        pairs = {names[each] for each in set(messages.tolist())}
        return cls(names, kind, pairs - RINGS)


def part_labels(parts: StepParts, kinds: CommunicatorKinds) -> list[str]:
    """Return what people call each part; several may have one label.

    Parameters
    ----------
    parts : StepParts
    kinds : CommunicatorKinds
        Of the same results.
    """
    columns = zip(parts.names, parts.kinds.tolist(), strict=True)
    return [part_label(name, PartKind(kind), pairs=name in kinds.pairs) for name, kind in columns]


def part_label(name: str, kind: PartKind, *, pairs: bool) -> str:
    """Part of a step → its label in reports.

    Parameters
    ----------
    name : str
        A phase, or what communicators carry.
    kind : PartKind
    pairs : bool
        Whether it is of messages between stages of a pipeline.
    """
    name = WORDS.get(name, name)
    if kind == PartKind.WIRE:
        return "messages between stages" if pairs else f"{name} communication"
    if kind == PartKind.WAITING:
        return "pipeline bubble" if pairs else f"waiting in {name}"
    if kind == PartKind.INPUT:
        return "waiting for input"
    if kind == PartKind.IDLE:
        return "idle: nothing runs"
    return "weight gradients" if name == "weight" else name
