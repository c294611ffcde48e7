"""Experiment, graph, protocol → iterations with and without the protocol, for random bandwidths.

Each data-parallel replica of the experiment is a worker of one GPU: its step is that of a plan with
one replica, its updates are all parameters in the format of the weights. GPUs can be slowed as in
TrioSim's study of Hop (doi:10.1145/3695053.3731082): the bandwidth of all links of each GPU is
divided by a random factor, here uniform between two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment import Dlrm, Experiment, VariationChoice
from ..experiment.load import load
from ..kernels.operations import BYTES, Elementwise
from ..memory.states import parameter_counts
from ..mpi.parallel import collective_errors
from ..mpi.parallel import progress as show_progress
from ..prediction.hardware import Hardware, hardware_of
from ..prediction.network import NetworkCache
from ..prediction.prepared import PreparedExperiment, prepare
from ..prediction.variation import with_variation
from .graphs import Graph, find_graph
from .program import WorkerStep, decentralized_program
from .protocol import Protocol
from .simulation import WorkerTimeline, simulate_decentralized

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Comparison", "Draw", "Slowdown", "compare_protocols"]

MAX_DRAWS = 1000

ALONE = ("plan.dp=1", "plan.zero=0", "cluster.nodes=1", "cluster.gpus=1")
"""Changes by which an experiment is that of one of its workers, beside its batch."""


@frozen
class Slowdown:
    """Random factors by which the bandwidths of GPUs are divided.

    Attributes
    ----------
    least, most : float
    draws : int
        Sets of factors.
    seed : int

    Raises
    ------
    InputError
        For factors below 1 or in the wrong order, or no draws or too many.
    """

    least: float = 1.0
    most: float = 1.0
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most < float("inf"):
            raise InputError(
                f"--slow is {self.least:g}-{self.most:g}; allowed are two numbers of 1 and more, "
                "the smaller one first"
            )
        if not 1 <= self.draws <= MAX_DRAWS:
            raise InputError(f"--draws is {self.draws}; allowed is 1 to {MAX_DRAWS}")
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"--seed is {self.seed}; allowed is 0 to 2^64 - 1")

    def factors(self, draw: int, workers: int) -> tuple[float, ...]:
        """Return the factors of one draw, rounded to hundredths; the same everywhere."""
        random = np.random.Generator(np.random.Philox(key=[self.seed, draw]))
        return tuple(random.uniform(self.least, self.most, workers).round(2).tolist())


@frozen(eq=False)
class Draw:
    """Outcomes with and without the protocol, for one draw of slow workers.

    Attributes
    ----------
    factors : tuple of float
        By which the bandwidth of each worker's GPU is divided.
    baseline : WorkerTimeline
        Every update of an iteration is waited for.
    protocol : WorkerTimeline
    """

    factors: tuple[float, ...]
    baseline: WorkerTimeline
    protocol: WorkerTimeline

    @property
    def speed_up(self) -> float:
        """Mean iteration of all workers without the protocol over that with it."""
        return self.baseline.iteration_time / self.protocol.iteration_time


@frozen(eq=False)
class Comparison:
    """Iterations with and without a protocol.

    Attributes
    ----------
    experiment : Experiment
    text : str
        Of its file.
    graph_name : str
    graph : Graph
    protocol : Protocol
    iterations : int
    update_bytes : int
    compute : int
        Kernels of a worker's step together, in ps.
    draws : tuple of Draw
    """

    experiment: Experiment
    text: str
    graph_name: str
    graph: Graph
    protocol: Protocol
    iterations: int
    update_bytes: int
    compute: int
    draws: tuple[Draw, ...]


def compare_protocols(
    file: str,
    changes: Sequence[str],
    graph_name: str,
    protocol: Protocol,
    slowdown: Slowdown,
    iterations: int,
    comm: Intracomm,
    *,
    show: bool = False,
) -> Comparison:
    """Simulate an experiment as decentralized training. **Collective.**

    Parameters
    ----------
    file : str
        An experiment, or the name of one.
    changes : sequence of str
        As of ``--set``.
    graph_name : str
        As of `find_graph`.
    protocol : Protocol
    slowdown : Slowdown
    iterations : int
        Of each worker.
    comm : mpi4py.MPI.Intracomm
    show : bool
        Show progress, if a person is watching.

    Raises
    ------
    InputError
        For an experiment whose workers are not single GPUs, and all that its parts refuse.
    """
    with collective_errors(comm):
        text, experiment = load(file, changes)
        workers = _workers(experiment)
        graph = find_graph(graph_name, workers)
        protocol.check(graph)
        batch = experiment.plan.global_batch // workers
        _, alone = load(file, [*changes, *ALONE, f"plan.global_batch={batch}"])
        # How GPUs differ belongs to the program of all.
        step = worker_step(prepare(replace(alone, variation=VariationChoice())))
        programs = []
        for each in (Protocol(max_gap=protocol.max_gap), protocol):
            plain = decentralized_program(step, graph, each, iterations)
            varied = with_variation(plain.program, experiment.variation)
            programs.append(replace(plain, program=varied))
        hardware = hardware_of(experiment)
        if hardware.cluster.fabric is not None and hardware.cluster.fabric.kind == "circuit":
            raise InputError(
                f"{experiment.source}: cluster.preset is {experiment.cluster.preset!r}, whose GPUs "
                "are joined by optical circuits; decentralized training does not set these up"
            )
    networks, draws = NetworkCache(), []
    with show_progress(comm, "simulating" if show else "", slowdown.draws) as update:
        for number in range(slowdown.draws):
            factors = slowdown.factors(number, workers)
            with collective_errors(comm):
                changed = _with_factors(experiment, hardware, factors)
                network = networks.network_of(
                    hardware.cluster,
                    experiment.cluster.nodes,
                    changed.network,
                    Path(experiment.source).parent,
                )
            contention = experiment.network.contention
            outcomes = [
                simulate_decentralized(each, network, comm, contention=contention)
                for each in programs
            ]
            draws.append(Draw(factors, *outcomes))
            update(number + 1)
    return Comparison(
        experiment,
        text,
        graph_name,
        graph,
        protocol,
        iterations,
        step.update_bytes,
        int(step.table.duration.sum()),
        tuple(draws),
    )


def _workers(experiment: Experiment) -> int:
    """Return the number of data-parallel replicas, each of which is to be one GPU."""
    plan = experiment.plan
    if isinstance(experiment.model, Dlrm):
        raise InputError(
            f"{experiment.source}: is of a recommendation model, whose tables are spread over all "
            "GPUs; workers of decentralized training have the whole model"
        )
    for key in ("tp", "pp", "cp", "ep"):
        size = getattr(plan, key)
        if size != 1:
            raise InputError(
                f"{experiment.source}: plan.{key} is {size}; a worker of decentralized training is "
                "one GPU: allowed is 1"
            )
    for key, given in (
        ("cluster.other_gpus", experiment.cluster.other_gpus),
        ("plan.replica_batch", plan.replica_batch),
    ):
        if given:
            raise InputError(
                f"{experiment.source}: {key} is given; workers of decentralized training have one "
                "kind of GPU and one batch, and may differ in speed (variation) and links (--slow)"
            )
    hardware = hardware_of(experiment)
    return plan.dp or hardware.gpus


def worker_step(prepared: PreparedExperiment) -> WorkerStep:
    """Prepared experiment of one GPU → what a worker computes and sends. Local."""
    layers = [layer for network in prepared.workload.layout.networks for layer in network.layers]
    size = parameter_counts(layers).total * BYTES[prepared.experiment.plan.weight_format]
    model = prepared.workload.pricings[0].model

    def averaging(updates: int) -> int:
        # Reads the updates and the worker's own, and writes the mean.
        return model.estimate(Elementwise(bytes=(updates + 2) * size)).duration

    return WorkerStep(prepared.program.table_of(0), prepared.program.names, size, averaging)


def _with_factors(
    experiment: Experiment, hardware: Hardware, factors: Sequence[float]
) -> Experiment:
    """Return the experiment with the bandwidths of its GPUs divided."""
    if all(factor == 1 for factor in factors):
        return experiment
    if experiment.network.model != "nccl":
        raise InputError(
            f"{experiment.source}: network.model is {experiment.network.model!r}, which has no "
            "links of single GPUs to slow; --slow needs 'nccl'"
        )
    topology = hardware.cluster.topology(experiment.cluster.nodes)
    slower = np.ones(len(topology.names))
    slower[topology.gpu[: len(factors)]] = factors
    # A link between two GPUs is as slow as the slower of them.
    divided = np.maximum(slower[topology.source], slower[topology.target])
    changes = experiment.network.changes | {
        f"links.{topology.link_name(link)}.bandwidth": f"{1 / divided[link]:.9f} x"
        for link in np.flatnonzero(divided > 1).tolist()
    }
    return replace(experiment, network=replace(experiment.network, changes=changes))
