"""A command → what its ranks issue, kept in a folder → its step and memory by today's models.

`captured_rows.py` and `captured_programs.py` use it. Capturing takes minutes and needs PyTorch and
the framework; pricing what was captured takes seconds and needs neither. With a folder, each
capture is kept there under its name, and after a change of kernels or of networks only the second
part is done again. A kept capture says from which state of `mpisim/capture` and of the scripts it
is; where that has changed since, `Prediction.stale` says so, and deleting the file captures anew.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

from mpisim import capture
from mpisim.base.rank_ranges import parse_ranges
from mpisim.capture.device import device_of
from mpisim.capture.lower import Part, program_of
from mpisim.capture.memory import memory_of
from mpisim.capture.rank_processes import RankProcesses
from mpisim.capture.ranks import Script, capture_parts
from mpisim.experiment import ProgramExperiment
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import analytical_model
from mpisim.kernels.scaled import rated_gpu
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.report.figures import figures
from mpisim.simulate import simulate
from mpisim.topo import find_cluster
from mpisim.workloads.host import cluster_host

SCRIPTS = Path(__file__).parents[2] / "tests" / "captured"


class Command(NamedTuple):
    """What `mpisim capture` is told.

    Attributes
    ----------
    words : tuple of str
        After ``python``; a script is one of tests/captured.
    world : int
    cluster : str
    ranks : str
        As ``--ranks``.
    without : tuple of str
        As ``--without``.
    """

    words: tuple[str, ...]
    world: int
    cluster: str = "dgx-h100"
    ranks: str = "auto"
    without: tuple[str, ...] = ()


class Captured(NamedTuple):
    """What a command's ranks issue.

    Attributes
    ----------
    command : Command
    parts : list of Part
    cpu : float
        Seconds of CPU time of all processes that ran ranks.
    resident : float
        GiB of the largest of them.
    sources : str
        Digest of what captured it.
    """

    command: Command
    parts: list[Part]
    cpu: float
    resident: float
    sources: str


class Prediction(NamedTuple):
    """What the models of today say of it.

    Attributes
    ----------
    seconds, uncertainty : float
        Of a step; the uncertainty is its half width as a share.
    reserved : float
        GiB that PyTorch's allocator reserves at most on the fullest captured rank.
    cpu, resident : float
        As `Captured`.
    stale : bool
        Whether it was captured by other sources than those that are here.
    """

    seconds: float
    uncertainty: float
    reserved: float
    cpu: float
    resident: float
    stale: bool


def captured(command: Command, name: str, folder: Path | None) -> Captured:
    """Return what the command's ranks issue: what `folder` keeps of that name, else captured now.

    Parameters
    ----------
    command : Command
    name : str
    folder : Path, optional
        Made if it is not there.

    Raises
    ------
    mpisim.base.errors.InputError
        If the script fails.
    """
    file = None if folder is None else folder / f"{name}.pickle"
    if file is not None and file.exists():
        found = pickle.loads(file.read_bytes())
        if found.command == command:
            return found
    # A process of its own, so that the largest of its children is one of this capture.
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        found = fresh.submit(_captured_now, command).result()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL))
    return found


def _captured_now(command: Command) -> Captured:
    """Return what the command's ranks issue, with the resources of this process's children."""
    cluster = find_cluster(command.cluster)
    module = command.words[0] == "-m"
    path, *arguments = command.words[1:] if module else command.words
    ranks = None
    if command.ranks != "auto":
        ranks = parse_ranges(command.ranks, "--ranks", "rank", command.world)
    script = Script(
        path if module else str(SCRIPTS / path),
        tuple(arguments),
        command.world,
        cluster.gpus_per_node,
        1,
        device_of(rated_gpu(find_gpu(cluster.gpu))),
        module=module,
        without=command.without,
    )
    with _finds_scripts(), RankProcesses(show=False) as processes:
        parts = capture_parts(script, MPI.COMM_SELF, lambda done, said="": None, processes, ranks)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    return Captured(command, parts, cpu, used.ru_maxrss / 2**20, _sources())


def predicted(found: Captured) -> Prediction:
    """Return the step and the memory of what was captured, by the models of today."""
    command, parts = found.command, found.parts
    cluster = find_cluster(command.cluster)
    gpu = rated_gpu(find_gpu(cluster.gpu))
    host = cluster_host(command.cluster, cluster.gpus_per_node, command.world)
    program = program_of(parts, analytical_model(gpu), host=host)
    choices = ProgramExperiment("", {"cluster": {"preset": command.cluster}}, "", source="")
    results = simulate(prepare_captured(choices, program), MPI.COMM_SELF)
    assert results is not None
    held, said = memory_of(parts, gpu), figures(results)
    return Prediction(
        said["step_time"],
        said["uncertainty"],
        0.0 if held is None else held.as_dict()["simulated"]["peak_reserved"] / 2**30,
        found.cpu,
        found.resident,
        found.sources != _sources(),
    )


@contextmanager
def _finds_scripts() -> Iterator[None]:
    """Have the captured processes find the modules of tests/captured."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([before or "", str(SCRIPTS)])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@cache
def _sources() -> str:
    """Digest of the sources that capture, and of the scripts."""
    folders: Sequence[Path] = (Path(str(capture.__file__)).parent, SCRIPTS)
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
