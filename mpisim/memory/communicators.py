"""Communicators of a stage → memory of NCCL's, DeepEP's and HybridEP's buffers.

NCCL has some for each connection of its communicators; DeepEP and HybridEP, whose kernels exchange
the tokens of experts, have their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..base.frozen import frozen
from ..experiment.plan import Plan
from ..program import Operation
from ..workloads.data_parallel.buckets import experts_apart
from ..workloads.grid import Grid
from ..workloads.operators import Communicate, Layer, Operator
from .constants import MemoryConstants
from .states import sharding

__all__ = ["Connections", "connections", "own_connections", "with_neighbours"]

PEER_TO_PEER = (Operation.ALL_TO_ALL, Operation.SEND_RECV)
"""Operations that NCCL composes of messages; others use rings and trees."""


@frozen
class Connections:
    """Connections of one rank.

    Attributes
    ----------
    collective : int
        Communicators that do collectives.
    peers : int
        Ranks of the same node that it exchanges messages with, over all communicators.
    network : int
        Communicators on which it exchanges messages with other nodes.
    deepep : bool
        Whether it exchanges tokens by DeepEP.
    hybridep : int
        Bytes of HybridEP's buffer.
    """

    collective: int
    peers: int
    network: int
    deepep: bool = False
    hybridep: int = 0

    def bytes(self, known: MemoryConstants) -> int:
        """Return the bytes of all communicators."""
        return round(sum(value for value, _ in self.terms(known)))

    def error(self, known: MemoryConstants) -> float:
        """Return one standard deviation of that, in bytes."""
        return float(sum((value * error) ** 2 for value, error in self.terms(known)) ** 0.5)

    def terms(self, known: MemoryConstants) -> list[tuple[float, float]]:
        """Return bytes and relative error bar of each kind."""
        return [
            (self.collective * known.collective.si, known.collective.error),
            (self.peers * known.peer.si, known.peer.error),
            (self.network * known.network.si, known.network.error),
            (self.deepep * known.deepep.si, known.deepep.error),
            (self.hybridep * known.hybridep.value, known.hybridep.error),
        ]


def connections(
    layers: Sequence[Layer],
    stage: int,
    plan: Plan,
    grid: Grid,
    sizes: Mapping[str, int],
    node: int,
) -> Connections:
    """Layers of a stage → connections of its rank; communicators connect when they are first used.

    Parameters
    ----------
    layers : sequence of Layer
        What the stage holds.
    stage : int
    plan : Plan
    grid : Grid
    sizes : dict of str to int
        Members of each group of ranks.
    node : int
        GPUs of a node.
    """
    return with_neighbours(own_connections(layers, plan, grid, sizes, node), stage, grid, node)


def with_neighbours(own: Connections, stage: int, grid: Grid, node: int) -> Connections:
    """Connections of a stage's own groups → these, and those with the stages beside it.

    Parameters
    ----------
    own : Connections
    stage : int
    grid : Grid
    node : int
        GPUs of a node.
    """
    if grid.pp == 1:
        return own
    ranks = grid.groups("pp")[0].tolist()
    beside = {(stage + 1) % grid.pp, (stage - 1) % grid.pp}
    near = sum(ranks[each] // node == ranks[stage] // node for each in beside)
    return replace(own, peers=own.peers + near, network=own.network + (near < len(beside)))


def own_connections(
    layers: Sequence[Layer], plan: Plan, grid: Grid, sizes: Mapping[str, int], node: int
) -> Connections:
    """Layers of a stage → connections of its rank, but for those with other stages.

    Parameters
    ----------
    layers, plan, grid, sizes, node
        As of `connections`.
    """
    collective: set[str] = set(_data_parallel_groups(layers, plan, sizes))
    between: dict[str, Operation] = {}
    communications = list(_communications(layers))
    for task in communications:
        if sizes[task.group] == 1:
            continue
        if task.operation is Operation.ALL_TO_ALL and plan.framework.dispatches_by_kernels:
            continue  # DeepEP's or HybridEP's, with buffers of their own
        if task.operation in PEER_TO_PEER:
            between[task.group] = task.operation
        else:
            collective.add(task.group)
    peers = network = 0
    for group, operation in between.items():
        members = grid.groups(group)[0].tolist()
        if operation is Operation.SEND_RECV:
            members = [members[0], members[1], members[-1]]  # a ring: next and previous
        near = sum(each // node == members[0] // node for each in dict.fromkeys(members)) - 1
        peers += near
        network += near < len(dict.fromkeys(members)) - 1
    own = any(
        task.operation is Operation.ALL_TO_ALL and sizes[task.group] > 1 for task in communications
    )
    return Connections(
        len(collective),
        peers,
        network,
        deepep=own and plan.framework.moe_dispatcher == "flex",
        hybridep=_hybridep(layers, sizes)
        if own and plan.framework.moe_dispatcher == "hybrid-ep"
        else 0,
    )


def _hybridep(layers: Sequence[Layer], sizes: Mapping[str, int]) -> int:
    """Return the bytes of HybridEP's buffer: room for every token of all ranks, in 16 bits.

    Dispatch and combine share it (`max_num_of_tokens_for_experts`, csrc/hybrid_ep of DeepEP).
    """
    return sizes["ep"] * max(layer.output for layer in layers if layer.role == "block")


def _communications(layers: Sequence[Layer]) -> Iterator[Communicate]:
    """Yield the communications of each kind of layer."""
    for operators in _kinds(layers):
        for operator in operators:
            for task in (*operator.forward, *operator.backward):
                if isinstance(task, Communicate):
                    yield task


def _kinds(layers: Sequence[Layer]) -> Iterable[tuple[Operator, ...]]:
    """Return the operators of each kind of layer."""
    # By the tuples themselves: layers of one kind have one, and hashing it takes longer.
    return {id(layer.operators): layer.operators for layer in layers}.values()


def _data_parallel_groups(
    layers: Sequence[Layer], plan: Plan, sizes: Mapping[str, int]
) -> Iterator[str]:
    """Yield the groups on which gradients, parameters and the gradient's norm are exchanged."""
    held = (p for kind in _kinds(layers) for each in kind for p in each.parameters)
    parameters = [p for p in held if sharding(plan)[0] or not p.frozen]
    # Experts that are not told apart use the groups of all others.
    apart = experts_apart(plan, sizes)
    if any(not (p.local or (p.expert and apart)) for p in parameters):
        names = ("shard", "replica") if any(sharding(plan)) else ("dp",)
        yield from (name for name in names if sizes[name] > 1)
    if apart and any(p.expert for p in parameters):
        names = ("eshard", "ereplica") if any(sharding(plan)) else ("edp",)
        yield from (name for name in names if sizes[name] > 1)
    if sizes["model"] > 1:
        yield "model"
    if any(p.tied for p in parameters) and sizes["embedding"] > 1:
        yield "embedding"
