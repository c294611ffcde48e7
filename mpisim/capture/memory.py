"""Recordings of captured ranks → what PyTorch's allocator makes of it, and whether it fits.

The allocations of a rank, from the first line of the script to the last recorded step, run through
the simulated allocator (`mpisim.memory.allocations`). The rank that reserves most is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from ..base.frozen import frozen
from ..base.kinds import Operation, Phase
from ..base.quantity import GIB
from ..base.text import WIDTH, aligned
from ..kernels import Gpu
from ..memory import capacity
from ..memory.allocations import Allocations, Recorded, holders, replay
from ..memory.allocator_settings import parse_settings
from ..memory.configurations import AllocatorUsage, Room, outcome, remedies
from .lower import Part
from .recording import GATHERED, GRADIENTS, STATES, WEIGHTS, ItemKind, Recording

__all__ = ["CapturedMemory", "memory_of"]

BEFORE = "before the recorded steps"
_PASSES = {
    Phase.FORWARD: "forward",
    Phase.RECOMPUTE: "backward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "the optimizer's step",
    Phase.NONE: "between steps",
}


@frozen
class CapturedMemory:
    """What the tensors of a captured rank take.

    Attributes
    ----------
    rank, ranks : int
        The captured one that reserves most, and of how many.
    recorded : Recorded
        Its allocations.
    chosen : AllocatorUsage
        With the settings that it runs with.
    others : tuple of AllocatorUsage
        With others.
    passes : tuple of (str, int, int)
        Parts of the run: bytes allocated and reserved at most in each.
    sharded : bool
        Whether gradients are reduced to shards.
    """

    rank: int
    ranks: int
    recorded: Recorded
    chosen: AllocatorUsage
    others: tuple[AllocatorUsage, ...]
    passes: tuple[tuple[str, int, int], ...]
    sharded: bool

    def at_peak(self) -> dict[str, int]:
        """Return the bytes that each holder has when most is allocated, the largest first."""
        usage = self.chosen.usage
        if not len(usage.allocated):
            return {}
        peak = int(usage.allocated.argmax())
        return {each.label: each.bytes for each in holders(self.recorded.allocations, peak)}

    def pass_table(self) -> str:
        """Return the parts of the run as text."""
        rows = [("part of the run", "allocated, GiB at most", "reserved")]
        rows += [(name, f"{one / GIB:,.2f}", f"{two / GIB:,.2f}") for name, one, two in self.passes]
        return "\n".join(aligned(rows))

    def help(self) -> str:
        """Return what would help a program that does not fit easily, beside settings."""
        held = self.at_peak()
        states = sum(held.get(name, 0) for name in (WEIGHTS, GRADIENTS, STATES))
        rest = sum(held.values()) - states - held.get(GATHERED, 0)
        lines = []
        if states and not self.sharded and self.ranks > 1:
            saved = states * (self.ranks - 1) / self.ranks
            lines.append(
                f"weights, gradients and optimizer's states sharded over all {self.ranks:,} ranks "
                f"(fully_shard, ZeRO-3): up to {saved / GIB:,.1f} GiB less"
            )
        if rest:
            lines.append(
                f"activation checkpointing (torch.utils.checkpoint) or a smaller batch: up to "
                f"{rest / GIB:,.1f} GiB less, which modules and the script hold at the peak"
            )
        said = "; ".join(lines)
        return "\n".join(wrap(f"What else would help: {said}.", WIDTH)) if lines else ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, for JSON; bytes are integers."""
        return {
            "rank": self.rank,
            "simulated": self.chosen.as_dict(),
            "others": [each.as_dict() for each in self.others],
            "at_peak": [{"label": name, "bytes": size} for name, size in self.at_peak().items()],
            "passes": [
                {"part": name, "allocated": one, "reserved": two} for name, one, two in self.passes
            ],
        }


def allocations_of(recording: Recording) -> Allocations:
    """Recording → the allocations of its rank, each with what holds it.

    Times are not known: the column holds positions among `Recording.allocations`.
    """
    labels = list(recording.labels)
    number = {label: i for i, label in enumerate(labels)}
    for name in recording.holders.values():
        if name not in number:
            number[name] = len(labels)
            labels.append(name)
    events = recording.allocations
    return Allocations.of_events(
        [each.storage for each in events],
        [each.bytes for each in events],
        [each.stream for each in events],
        list(range(len(events))),
        [number[recording.holders.get(each.storage, labels[each.label])] for each in events],
        labels,
    )


def memory_of(parts: Sequence[Part], gpu: Gpu, settings: str = "") -> CapturedMemory | None:
    """Captured ranks, GPU → the memory of the one that reserves most; None without allocations.

    Parameters
    ----------
    parts : sequence of Part
    gpu : Gpu
    settings : str
        As PYTORCH_CUDA_ALLOC_CONF.

    Raises
    ------
    UsageError
        If the GPU has no room for CUDA's context and NCCL's buffers.
    """
    parsed = parse_settings(settings)
    found = [(part.recording, allocations_of(part.recording)) for part in parts]
    found = [(recording, table) for recording, table in found if len(table)]
    if not found:
        return None
    usages = [replay(table, parsed) for _, table in found]
    most = max(range(len(found)), key=lambda i: usages[i].peak_reserved)
    recording, table = found[most]
    usage = usages[most]
    communicators = {
        item.group
        for item in recording.items
        if item.kind is ItemKind.COLLECTIVE and len(recording.groups[item.group]) > 1
    }
    room = Room.of(gpu.title, capacity(gpu), len(communicators))
    event = table.time[: len(usage.allocated)]
    names = [
        BEFORE if each.item < 0 else _PASSES[Phase(each.phase)] for each in recording.allocations
    ]
    passes = []
    for name in dict.fromkeys(names):
        chosen = np.array([names[i] == name for i in event.tolist()], bool)
        one, two = (int(column[chosen].max()) for column in (usage.allocated, usage.reserved))
        passes.append((name, one, two))
    untimed = Allocations(
        table.action, table.block, table.bytes, table.stream, np.zeros_like(table.time),
        table.label, table.labels,
    )  # fmt: skip
    return CapturedMemory(
        rank=recording.rank,
        ranks=recording.world,
        recorded=Recorded(untimed, settings=settings),
        chosen=outcome(untimed, settings, room),
        others=tuple(remedies(untimed, settings, room)),
        passes=tuple(passes),
        sharded=any(
            item.kind is ItemKind.COLLECTIVE and item.number == Operation.REDUCE_SCATTER
            for item in recording.items
        ),
    )
