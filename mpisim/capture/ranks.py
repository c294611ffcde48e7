"""Which ranks are captured for which: those at equal places do the same.

Rank 0 is captured first. Its process groups say which ranks are alike: those that have as many
groups of the same sizes, and the same position in each group with sends and receives (a pipeline).
The others get the small values that it broadcasts, with which programs check that ranks agree.
Of each such class the first and the last rank are captured; if they differ, so is the second, and
the rest is taken to do as it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from ..base.frozen import frozen
from ..mpi.parallel import Update, collective_errors
from .device import Device
from .job import Job
from .lower import Part
from .recording import FromRank0, ItemKind, Recording

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Script", "capture_parts"]

MOST_CLASSES = 128
"""Classes of ranks that are captured without being asked for one by one."""

_HIDDEN = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "MV2_", "JSM_", "CUDA_VISIBLE_DEVICES")
"""Beginnings of variables that scripts look at, of launchers and of this machine's GPUs."""


@frozen
class Script:
    """What is captured.

    Attributes
    ----------
    path : str
        Or the name of a module.
    arguments : tuple of str
    world, per_node : int
        Ranks, and GPUs of a node.
    steps : int
    device : Device
    values : tuple of (str, float)
        Places in the script, and the value read there.
    show : bool
        Whether the script's output is shown.
    module : bool
        Whether it is a module, as ``python -m`` has it.
    without : tuple of str
        Libraries of kernels that the job does not have, of those that are stood in for.
    """

    path: str
    arguments: tuple[str, ...]
    world: int
    per_node: int
    steps: int
    device: Device
    values: tuple[tuple[str, float], ...] = ()
    show: bool = False
    module: bool = False
    without: tuple[str, ...] = ()


def capture_parts(
    script: Script, comm: Intracomm, update: Update, ranks: Sequence[int] | None = None
) -> list[Part]:
    """Capture as many ranks of a script as differ. **Collective.**

    Parameters
    ----------
    script : Script
    comm : mpi4py.MPI.Intracomm
        The processes that share the ranks.
    update : Update
        Told how many ranks are captured.
    ranks : sequence of int, optional
        To be captured; by default those that differ. Others do as the nearest captured one of
        their class.

    Returns
    -------
    list of Part
        The same on all processes.

    Raises
    ------
    InputError
        On all processes, with the line in which a script failed.
    """
    first = _captured(script, [0], comm, update, FromRank0({}))[0]
    classes = _classes(first)
    if ranks is None:
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"{script.path}: {len(classes)} of {script.world} ranks differ by their place in "
                f"groups with sends and receives; at most {MOST_CLASSES} are captured unless "
                "--ranks lists them"
            )
        ends = {rank for members in classes for rank in (members[0], members[-1])} - {0}
        found = {0: first} | _together(script, ends, comm, update, first.for_others())
        seconds = {
            members[1]
            for members in classes
            if len(members) > 2 and found[members[0]].digest() != found[members[-1]].digest()
        }
        found |= _together(script, seconds, comm, update, first.for_others())
        _check_devices(script, found, first.for_others(), comm, update)
        return _parts(classes, found)
    lacking = [members[0] for members in classes if not set(ranks) & set(members)]
    if lacking:  # before minutes of others
        add = ",".join(map(str, lacking[:MOST_CLASSES]))
        add += ", …" * (len(lacking) > MOST_CLASSES)
        raise InputError(
            f"--ranks: no rank is captured of those that do as {'each of ' * (len(lacking) > 1)}"
            f"rank{'s' * (len(lacking) > 1)} {add} does; add {'them' if lacking[1:] else 'it'}"
        )
    found = {0: first} | _together(script, set(ranks) - {0}, comm, update, first.for_others())
    if 0 not in ranks:
        del found[0]
    _check_devices(script, found, first.for_others(), comm, update)
    return _parts(classes, found)


def _check_devices(
    script: Script,
    found: dict[int, Recording],
    received: FromRank0,
    comm: Intracomm,
    update: Update,
) -> None:
    """Refuse two ranks of a node that communicate from one device, as NCCL does. **Collective.**

    Where a rank has the device of its place in the node, so have the others; else all of its node
    are captured.
    """
    size = script.per_node
    suspects = [
        rank
        for rank, recording in sorted(found.items())
        if any(device != rank % size for device in recording.devices)
    ]
    for rank in suspects[:1]:
        node = range(rank - rank % size, min(rank - rank % size + size, script.world))
        more = _together(script, set(node) - found.keys(), comm, update, received)
        holders: dict[int, int] = {}
        for each in node:
            for device in (more.get(each) or found[each]).devices:
                if holders.setdefault(device, each) != each:
                    raise InputError(
                        f"{script.path}: ranks {holders[device]} and {each} both communicate from "
                        f"cuda:{device} of their node, which NCCL refuses; each needs its own: "
                        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
                    )


def _parts(classes: list[list[int]], found: dict[int, Recording]) -> list[Part]:
    """Give every rank the recording of its class; equal recordings are one."""
    parts: list[Part] = []
    for members in classes:
        held = [rank for rank in members if rank in found]
        digests = {rank: found[rank].digest() for rank in held}
        of: dict[str, list[int]] = {}
        for rank in members:
            # Those between do as the second, if that was captured, else as the one before.
            if rank in digests:
                of.setdefault(digests[rank], []).append(rank)
                continue
            between = [each for each in held if each not in (members[0], members[-1])] or held
            near = max((each for each in between if each <= rank), default=between[0])
            of.setdefault(digests[near], []).append(rank)
        for digest, ranks in of.items():
            source = next(rank for rank in held if digests[rank] == digest)
            parts.append(Part(found[source], tuple(ranks)))
    return parts


def _classes(first: Recording) -> list[list[int]]:
    """Return the ranks that may do the same, by the groups that rank 0 has made."""
    own: list[list[int]] = [[] for _ in range(first.world)]
    for number, members in enumerate(first.groups):
        for rank in members:
            own[rank].append(number)
    place = {number: i for i, number in enumerate(own[first.rank])}
    pipelines = {
        place[item.group] for item in first.items if item.kind in (ItemKind.SEND, ItemKind.RECV)
    }
    position = [{rank: i for i, rank in enumerate(members)} for members in first.groups]
    found: dict[Any, list[int]] = {}
    for rank in range(first.world):
        sizes = tuple(len(first.groups[number]) for number in own[rank])
        places = tuple(
            position[number][rank] for i, number in enumerate(own[rank]) if i in pipelines
        )
        found.setdefault((sizes, places), []).append(rank)
    return list(found.values())


def _together(
    script: Script, ranks: set[int], comm: Intracomm, update: Update, received: FromRank0
) -> dict[int, Recording]:
    """Capture ranks, each process its share. **Collective.**"""
    return _captured(script, sorted(ranks), comm, update, received)


def _captured(
    script: Script, ranks: Sequence[int], comm: Intracomm, update: Update, received: FromRank0
) -> dict[int, Recording]:
    mine: dict[int, Recording] = {}
    with collective_errors(comm):
        for rank in ranks[comm.rank :: comm.size]:
            mine[rank] = _run(script, rank, received)
            update(len(mine), f"rank {rank}")
    return {rank: each for part in comm.allgather(mine) for rank, each in part.items()}


def _run(script: Script, rank: int, received: FromRank0) -> Recording:
    """Run the script as one rank, in a process of its own. Local."""
    with tempfile.TemporaryDirectory(prefix="mpisim-capture-") as folder:
        job = Job(
            script.path,
            script.arguments,
            script.module,
            rank,
            script.world,
            script.per_node,
            script.steps,
            script.device,
            Path(folder, "recording"),
            Path(folder, "failure"),
            dict(script.values),
            script.show,
            received,
            script.without,
        )
        path = Path(folder, "job")
        job.save(path)
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(_HIDDEN)
        }
        output = None if script.show else subprocess.DEVNULL
        ended = subprocess.run(
            [sys.executable, "-m", "mpisim.capture.process", str(path)],
            # Libraries make folders when they are loaded, used or not, as PyTorch's compiler does.
            env={
                "PYTHONHASHSEED": "0",  # sets of names are in the same order on all ranks
                **environment,
                "TMPDIR": folder,
                "TORCHINDUCTOR_CACHE_DIR": folder,
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                **job.environment(),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        if job.failure.exists():
            raise InputError(job.failure.read_text())
        if ended.returncode or not job.recording.exists():
            raise InputError(
                f"{script.path}: the process of rank {rank} ended with code {ended.returncode} and "
                "without a recording; --show-output shows what it wrote"
            )
        return Recording.load(job.recording)
