"""Captures for tests: a script of ``tests/captured`` → the parts, and sums of what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpisim.base.kinds import Operation, Phase
from mpisim.capture.device import device_of
from mpisim.capture.lower import Part
from mpisim.capture.ranks import Script, capture_parts
from mpisim.capture.recording import ItemKind, Recording
from mpisim.kernels import find_gpu
from mpisim.operators.table import kernels_of

SCRIPTS = Path(__file__).parent / "captured"


def script(path: Path | str, *arguments: str, world: int = 1, **options: Any) -> Script:
    """A script, as the command line has it."""
    device = device_of(find_gpu(options.pop("gpu", "h100-sxm")))
    return Script(str(path), arguments, world, 8, options.pop("steps", 1), device, **options)


def alone(what: Script, ranks: Iterable[int] | None = None) -> list[Part]:
    """Its parts, by this process alone."""
    from mpi4py import MPI

    chosen = None if ranks is None else list(ranks)
    return capture_parts(what, MPI.COMM_SELF, lambda done, said="": None, chosen)


def flops(recording: Recording, *phases: Phase) -> Counter[str]:
    """Matrix operations by family of kernels, of all phases or some."""
    found: Counter[str] = Counter()
    for item in recording.items:
        if item.kind is ItemKind.CALL and (not phases or item.phase in phases):
            for kernel in kernels_of(recording.calls[item.number]).kernels:
                found[kernel.family] += kernel.flops
    return +found


def sent(
    recording: Recording,
    kind: ItemKind = ItemKind.COLLECTIVE,
    *,
    size: int | None = None,
    least: int = 0,
) -> Counter[str]:
    """Bytes of communications by operation: of groups of a size, of messages of a least size."""
    found: Counter[str] = Counter()
    for item in recording.items:
        fits = size is None or size == len(recording.groups[max(item.group, 0)])
        if fits and item.kind is kind and item.bytes >= least:
            found[Operation(item.number).name] += item.bytes
    return found
