"""Plans → the distinct kernels and communications in them, and the GPU time to measure each once.

Plans share most of their work: micro-batches, layers, ranks and replicas repeat the same kernels
and messages. DistSim (arXiv:2306.08423, section 4) times each of them once, as an *event*:

- a kernel, by its description, on one GPU;
- a communication, by its operation, bytes, number of ranks and whether these lie on one node.

Collectives of more ranks than `most_ranks` are timed with so many, and take (n - 1)/n times as long
with n as a ring moves bytes. An event costs its time on the GPUs that it takes, a plan its step on
all of them. Times are predictions: a plan of what to measure needs no better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.kinds import Kind, Operation
from ..kernels.operations import Kernel
from ..prediction.extrapolation import step_time
from ..prediction.network import NetworkCache
from ..prediction.prepared import PreparedExperiment, prepare
from ..topo.network import class_of
from .explore import Candidates
from .space import SearchSpace

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["MAX_PLANS", "CommunicationEvent", "KernelEvent", "PlanCost", "Profiling", "profiling"]

MAX_PLANS = 4096
"""Plans that are gone through: each is generated and simulated."""

RING = {Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER}
"""Collectives that are timed with fewer ranks, and scaled."""


class KernelEvent(NamedTuple):
    """A distinct kernel of some plans, which is measured once.

    Attributes
    ----------
    gpu : str
        The name of its preset.
    kernel : Kernel or None
        Its description; None of work that has none, as a recorded kernel.
    name : str
        Its name in the first plan that runs it.
    duration : int
        Predicted time, in ps.
    """

    gpu: str
    kernel: Kernel | None
    name: str
    duration: int

    @property
    def cost(self) -> int:
        """GPU time of one measurement, in ps: that of one GPU."""
        return self.duration


class CommunicationEvent(NamedTuple):
    """A distinct communication of some plans, which is measured once.

    Attributes
    ----------
    operation : Operation
    bytes : int
        As the network counts them: see `Network.price`.
    ranks : int
    nodes : int
        Over which they lie: 1, or 2 for more than one.
    duration : int
        Predicted time with `ranks` ranks, in ps.
    timed_ranks : int
        Ranks that it is measured with.
    cost : int
        GPU time of one measurement, in ps: its duration with `timed_ranks` ranks times these.
    """

    operation: Operation
    bytes: int
    ranks: int
    nodes: int
    duration: int
    timed_ranks: int
    cost: int


Event = TypeVar("Event", KernelEvent, CommunicationEvent)


class PlanCost(NamedTuple):
    """GPU time of a plan's step, and of the measurements that no plan before it needs.

    Attributes
    ----------
    described : str
        What it sets.
    gpus, step : int
        Step in ps.
    kernels, communications : int
        Events that no plan before it has.
    cost : int
        Of these, in ps on GPUs.
    alone : int
        Of all of its events.
    """

    described: str
    gpus: int
    step: int
    kernels: int
    communications: int
    cost: int
    alone: int

    @property
    def direct(self) -> int:
        """Time of a step on all of its GPUs, in ps."""
        return self.gpus * self.step


@frozen
class Profiling:
    """Kernels and communications to time so that the steps of some plans are known.

    Attributes
    ----------
    plans : tuple of PlanCost
    kernels : tuple of (KernelEvent, int)
        Each with how often all ranks of all plans run it in a step; by cost, the largest first.
    communications : tuple of (CommunicationEvent, int)
        Likewise.
    refused : tuple of str
        Why combinations are no plans, or do not fit into memory: what each sets, and the reason
        for which ``mpisim run`` would refuse it.
    """

    plans: tuple[PlanCost, ...]
    kernels: tuple[tuple[KernelEvent, int], ...]
    communications: tuple[tuple[CommunicationEvent, int], ...]
    refused: tuple[str, ...]

    @property
    def cost(self) -> int:
        """Time of all events on their GPUs, in ps."""
        kernels = sum(each.cost for each, _ in self.kernels)
        return kernels + sum(each.cost for each, _ in self.communications)

    @property
    def alone(self) -> int:
        """Time of all events of every plan, if no plan knew of another."""
        return sum(each.alone for each in self.plans)

    @property
    def direct(self) -> int:
        """Time of a step of every plan on all of its GPUs, in ps."""
        return sum(each.direct for each in self.plans)


def profiling(
    space: SearchSpace,
    comm: Intracomm,
    *,
    most_ranks: int = 8,
    progress: Callable[[int], None] | None = None,
) -> Profiling:
    """Search space → events of its plans, and what these cost. **Collective.**

    Parameters
    ----------
    space : SearchSpace
        Of experiments; a search over a trace has nothing left to time.
    comm : mpi4py.MPI.Intracomm
        The processes that share each simulation.
    most_ranks : int
        Ranks that a collective is timed with at most, 2 or more.
    progress : callable, optional
        Called with the number of combinations that were gone through.

    Raises
    ------
    InputError
        If there are too many combinations, or none of them is a plan that fits.
    """
    if space.of_trace:
        raise InputError(f"{space.source}: is over a trace, whose kernels are timed already")
    if len(space) > MAX_PLANS:
        raise InputError(
            f"{space.source}: {len(space):,} combinations; at most {MAX_PLANS:,} are gone through"
        )
    candidates, networks = Candidates(space, allow_oom=False), NetworkCache()
    kernels: dict[KernelEvent, int] = {}
    communications: dict[CommunicationEvent, int] = {}
    known: dict[object, KernelEvent] = {}
    plans: list[PlanCost] = []
    refused: list[str] = []
    for number in range(len(space)):
        try:
            experiment, hardware = candidates.experiment(number)
            prepared = prepare(experiment, networks=networks)
        except InputError as error:
            why = str(error).removeprefix(f"{space.source}: ")
            refused.append(f"{space.described(number)}: {why}" if space.keys else why)
            continue
        finally:
            if progress is not None:
                progress(number + 1)
        step = step_time(experiment, comm, networks=networks, memory=prepared.memory).picoseconds
        kernels_here = _added_up(_kernels(prepared, list(hardware.named), known))
        communications_here = _added_up(_communications(prepared, most_ranks))
        new = [each for each in kernels_here if each not in kernels]
        new_messages = [each for each in communications_here if each not in communications]
        for event, runs in kernels_here.items():
            kernels[event] = kernels.get(event, 0) + runs
        for message, runs in communications_here.items():
            communications[message] = communications.get(message, 0) + runs
        plans.append(
            PlanCost(
                space.described(number),
                prepared.program.n_ranks,
                round(step),
                len(new),
                len(new_messages),
                _cost(new) + _cost(new_messages),
                _cost(kernels_here) + _cost(communications_here),
            )
        )
    if not plans:
        raise InputError(
            f"{space.source}: none of {len(space):,} combinations is a plan that fits: {refused[0]}"
        )
    return Profiling(
        tuple(plans),
        tuple(sorted(kernels.items(), key=lambda each: -each[0].cost)),
        tuple(sorted(communications.items(), key=lambda each: -each[0].cost)),
        tuple(refused),
    )


def _added_up(found: Iterable[tuple[Event, int]]) -> dict[Event, int]:
    """Events with numbers of runs → the same, each event once."""
    runs: dict[Event, int] = {}
    for event, many in found:
        runs[event] = runs.get(event, 0) + many
    return runs


def _cost(events: Iterable[Event]) -> int:
    """Events → time on all GPUs that they take, each once, in ps."""
    return sum(each.cost for each in events)


def _kernels(
    prepared: PreparedExperiment, gpus: Sequence[str], known: dict[object, KernelEvent]
) -> Iterator[tuple[KernelEvent, int]]:
    """Yield the kernels of a program, and how often all of its ranks run each.

    `gpus` names the kinds of GPUs; `known` has the event of each description, made by the plan in
    which it was met first.
    """
    program, workload = prepared.program, prepared.workload
    gpu_of = workload.layout.gpu_of
    kinds = np.zeros(program.n_ranks, np.int64) if gpu_of is None else gpu_of
    for number, table in enumerate(program.tables):
        ranks = np.flatnonzero(program.table == number)
        if table is None or not len(ranks):
            continue
        kind = int(kinds[ranks[0]])
        pricing, gpu = workload.pricings[kind], gpus[kind]
        rows = np.flatnonzero((table.kind == Kind.KERNEL) | (table.kind == Kind.COPY))
        pairs, counts = np.unique(
            np.stack([table.name[rows].astype(np.int64), table.duration[rows]]),
            axis=1,
            return_counts=True,
        )
        for name, took, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            text = program.names[name]
            kernel = pricing.kernels.get((text, took))
            key = (gpu, kernel) if kernel is not None else (gpu, text, took)
            event = known.setdefault(key, KernelEvent(gpu, kernel, text, took))
            yield event, count * len(ranks)


def _communications(
    prepared: PreparedExperiment, most_ranks: int
) -> Iterator[tuple[CommunicationEvent, int]]:
    """Yield the communications of a program, and how often they happen."""
    program, network = prepared.program, prepared.network
    groups = program.communicators
    nodes = _nodes(groups.index, groups.members, prepared.cluster.gpus_per_node)
    found: dict[tuple[int, int, int, int], tuple[int, int]] = {}  # members that ran it, an example
    for number, table in enumerate(program.tables):
        ranks = np.flatnonzero(program.table == number)
        if table is None or not len(ranks):
            continue
        rows = np.flatnonzero(table.is_communication & (table.operation != Operation.NONE))
        columns: list[NDArray[Any]] = [table.operation[rows], table.bytes[rows], table.slot[rows]]
        triples, counts = np.unique(
            np.stack([each.astype(np.int64) for each in columns]), axis=1, return_counts=True
        )
        first = program.slot_index[ranks]
        for operation, size, slot, count in zip(*triples.tolist(), counts.tolist(), strict=True):
            bound = program.slots[first + slot]
            kinds, example, many = np.unique(
                np.stack([groups.sizes[bound], nodes[bound]]),
                axis=1,
                return_index=True,
                return_counts=True,
            )
            for at, (members, over) in enumerate(kinds.T.tolist()):
                key = (operation, size, members, over)
                ran, of = found.get(key, (0, int(bound[example[at]])))
                found[key] = ran + count * int(many[at]), of
    for (operation, size, members, over), (ran, group) in found.items():
        if members < 2:
            continue
        what = Operation(operation)
        took = network.price(what, size, class_of(network, groups.group(group), what)).duration
        timed, duration = members, float(took)
        if what in RING and members > most_ranks:
            timed = most_ranks
            duration *= ((timed - 1) / timed) / ((members - 1) / members)
        event = CommunicationEvent(what, size, members, over, took, timed, round(timed * duration))
        yield event, ran // members


def _nodes(
    index: NDArray[np.int64], members: NDArray[np.int32], node_gpus: int
) -> NDArray[np.int64]:
    """Communicators → whether the members of each lie on one node (1), or on several (2)."""
    if not len(members):
        return np.ones(len(index) - 1, np.int64)
    node = members // node_gpus
    starts = index[:-1]
    several = np.maximum.reduceat(node, starts) != np.minimum.reduceat(node, starts)
    return 1 + several.astype(np.int64)
