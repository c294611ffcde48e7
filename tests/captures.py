"""Captures for tests: a script, a file or a text → its parts, and sums of what they hold."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mpisim.base.kinds import Operation, Phase
from mpisim.capture.device import device_of
from mpisim.capture.lower import Part
from mpisim.capture.rank_processes import RankProcesses
from mpisim.capture.ranks import Script, capture_parts
from mpisim.capture.recording import ItemKind, Recording
from mpisim.kernels import find_gpu
from mpisim.kernels.operations import Kernel
from mpisim.operators.table import kernels_of
from mpisim.topo import find_cluster

SCRIPTS = Path(__file__).parent / "captured"

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")

ONE_GPU = """
import torch
model = torch.nn.Linear(1024, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(512, 1024)
data = torch.utils.data.DataLoader(rows, batch_size=128, shuffle=True, num_workers=4)
for x in data:
    loss = model(x.cuda(non_blocking=True)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A script that trains one matrix on one GPU."""


def needs(*packages: str) -> pytest.MarkDecorator:
    """Names of packages → the mark that skips a test where PyTorch or one of them is missing.

    What counts is the package: a module of the tests is called transformers, too.
    """
    missing = []
    for name in ("torch", *packages):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def script(path: Path | str, *arguments: str, world: int = 1, **options: Any) -> Script:
    """A script, as the command line has it: on nodes of 8 with the links of a DGX H100."""
    gpu = find_gpu(options.pop("gpu", "h100-sxm"))
    device = device_of(gpu, find_cluster("dgx-h100").rates())
    return Script(str(path), arguments, world, 8, options.pop("steps", 1), device, **options)


@cache
def rank_processes() -> RankProcesses:
    """What runs the ranks of all captures of this process: PyTorch is loaded once."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(RankProcesses(show=False))


def alone(
    what: Script, ranks: Iterable[int] | None = None, processes: RankProcesses | None = None
) -> list[Part]:
    """Its parts, by this process alone."""
    from mpi4py import MPI

    chosen = None if ranks is None else list(ranks)
    processes = processes or rank_processes()
    return capture_parts(what, MPI.COMM_SELF, lambda done, said="": None, processes, chosen)


def written(folder: Path, text: str) -> Path:
    """Text of a script → its file."""
    path = folder / "train.py"
    path.write_text(text)
    return path


def captured(
    folder: Path,
    text: str,
    *arguments: str,
    ranks: Iterable[int] | None = None,
    **options: Any,
) -> Recording:
    """Text of a script → what the first of some ranks does, by default of all."""
    return alone(script(written(folder, text), *arguments, **options), ranks)[0].recording


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


def kernels_in(recording: Recording, *phases: Phase) -> Counter[Kernel]:
    """Kernels of a recording, of all phases or some; every operator must be known."""
    found: Counter[Kernel] = Counter()
    for item in recording.items:
        if item.kind is ItemKind.CALL and (not phases or item.phase in phases):
            launched = kernels_of(recording.calls[item.number])
            assert launched.known, recording.calls[item.number].name
            found.update(launched.kernels)
    return found


def unknown(recording: Recording) -> set[str]:
    """Operators that the table does not know."""
    return {call.name for call in recording.calls if not kernels_of(call).known}


def operators_in(recording: Recording) -> Counter[str]:
    """Operators of a recording, by name."""
    return Counter(
        recording.calls[item.number].name for item in recording.items if item.kind is ItemKind.CALL
    )
