"""Which ranks are captured for which: those at equal places do the same.

Rank 0 is captured first. Its process groups say which ranks are alike: those that have as many
groups of the same sizes, and the same position in each group with sends and receives (a pipeline).
The others get the small values that it broadcasts, with which programs check that ranks agree.
Of each such class the first and the last rank are captured; if they differ, so is the second, and
the rest is taken to do as it does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from ..base.frozen import frozen
from ..mpi.parallel import Update, collective_errors
from .device import Device
from .job import Job
from .lower import Part
from .rank_processes import RankProcesses
from .recording import FromRank0, ItemKind, Recording

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Script", "capture_parts"]

MOST_CLASSES = 128
"""Classes of ranks that are captured without being asked for one by one."""


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
    warm_up : int, optional
        Steps before those that are recorded, at least, if a number was asked for.
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
    warm_up: int | None = None


class _Runs:
    """Runs of a script as ranks, which processes share.

    Parameters
    ----------
    script, comm, update, processes
        As `capture_parts` takes them.
    """

    def __init__(
        self, script: Script, comm: Intracomm, update: Update, processes: RankProcesses
    ) -> None:
        self.script, self._comm, self._update, self._processes = script, comm, update, processes

    def of(self, ranks: Iterable[int], received: FromRank0) -> dict[int, Recording]:
        """Run the script as each of these ranks → their recordings. **Collective.**

        Parameters
        ----------
        ranks : iterable of int
        received : FromRank0
            What rank 0 has sent to others.
        """
        mine: dict[int, Recording] = {}
        with collective_errors(self._comm):
            for rank in sorted(ranks)[self._comm.rank :: self._comm.size]:
                with TemporaryDirectory(prefix="mpisim-capture-") as folder:
                    mine[rank] = self._processes.record(self._job(rank, received, folder))
                self._update(len(mine), f"rank {rank}")
        return {rank: each for part in self._comm.allgather(mine) for rank, each in part.items()}

    def _job(self, rank: int, received: FromRank0, folder: str) -> Job:
        script = self.script
        return Job(
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
            os.getcwd(),
            script.warm_up,
        )


def capture_parts(
    script: Script,
    comm: Intracomm,
    update: Update,
    processes: RankProcesses,
    ranks: Sequence[int] | None = None,
) -> list[Part]:
    """Capture as many ranks of a script as differ. **Collective.**

    Parameters
    ----------
    script : Script
    comm : mpi4py.MPI.Intracomm
        The processes that share the ranks.
    update : Update
        Told how many ranks are captured.
    processes : RankProcesses
        In which those of this process run.
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
    runs = _Runs(script, comm, update, processes)
    first = runs.of([0], FromRank0({}, {}))[0]
    classes = _classes(first)
    if ranks is None:
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"{script.path}: {len(classes)} of {script.world} ranks differ by their place in "
                f"groups with sends and receives; at most {MOST_CLASSES} are captured unless "
                "--ranks lists them"
            )
        ends = {rank for members in classes for rank in (members[0], members[-1])} - {0}
        found = {0: first} | runs.of(ends, first.for_others())
        seconds = {
            members[1]
            for members in classes
            if len(members) > 2 and found[members[0]].digest() != found[members[-1]].digest()
        }
        found |= runs.of(seconds, first.for_others())
        _check_devices(runs, found, first.for_others())
        return _parts(classes, found)
    lacking = [members[0] for members in classes if not set(ranks) & set(members)]
    if lacking:  # before minutes of others
        add = ",".join(map(str, lacking[:MOST_CLASSES]))
        add += ", …" * (len(lacking) > MOST_CLASSES)
        raise InputError(
            f"--ranks: no rank is captured of those that do as {'each of ' * (len(lacking) > 1)}"
            f"rank{'s' * (len(lacking) > 1)} {add} does; add {'them' if lacking[1:] else 'it'}"
        )
    found = {0: first} | runs.of(set(ranks) - {0}, first.for_others())
    if 0 not in ranks:
        del found[0]
    _check_devices(runs, found, first.for_others())
    return _parts(classes, found)


def _check_devices(runs: _Runs, found: dict[int, Recording], received: FromRank0) -> None:
    """Refuse two ranks of a node that communicate from one device, as NCCL does. **Collective.**

    Where a rank has the device of its place in the node, so have the others; else all of its node
    are captured.
    """
    script = runs.script
    size = script.per_node
    suspects = [
        rank
        for rank, recording in sorted(found.items())
        if any(device != rank % size for device in recording.devices)
    ]
    for rank in suspects[:1]:
        node = range(rank - rank % size, min(rank - rank % size + size, script.world))
        more = runs.of(set(node) - found.keys(), received)
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
