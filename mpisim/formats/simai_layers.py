"""Policy and layers of a SimAI workload → passes of each rank and their communications.

`forward` and `backward` follow the state machines of SimAI's ``Workload.cc`` (functions
``iterate_…``), layer by layer; `backward` includes what checkpointing computes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from ..base.errors import InputError
from ..program import Operation, Phase
from .simai import SimaiWorkload

__all__ = [
    "MICRO_BATCH",
    "Act",
    "MicroBatches",
    "ParallelGroups",
    "backward",
    "forward",
    "micro_batches",
]

Pass = Literal["forward", "input_gradient", "weight_gradient"]

_TRANSFORMER = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
_DLRM = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")


class Act(NamedTuple):
    """One thing done for a layer.

    `what` is ``compute``; ``block``, a communication that what follows waits for; ``overlap``, one
    that it does not; or ``wait`` for an earlier ``overlap``.
    """

    what: Literal["compute", "block", "overlap", "wait"]
    layer: int
    part: Pass
    phase: Phase


def forward(workload: SimaiWorkload, layer: int, phase: Phase = Phase.FORWARD) -> Iterator[Act]:
    """Yield the forward pass through a layer.

    Parameters
    ----------
    workload : SimaiWorkload
    layer : int
        Index into the workload's layers, from 0.
    phase : Phase
        What its acts count as: ``RECOMPUTE`` where checkpointing repeats the pass.
    """
    policy = workload.policy
    if policy == "MICRO":
        return
    yield Act("compute", layer, "forward", phase)
    if policy in _DLRM:
        # Embeddings are exchanged while the bottom network computes.
        if workload.layers[layer].forward.communication.operation is Operation.ALL_TO_ALL:
            yield Act("overlap", layer, "forward", phase)
        elif layer == workload.last_bottom:
            yield Act("wait", 0, "forward", phase)
    elif policy != "DATA":
        yield Act("block", layer, "forward", phase)


def backward(workload: SimaiWorkload, layer: int) -> Iterator[Act]:
    """Yield the backward pass through a layer.

    Parameters
    ----------
    workload : SimaiWorkload
    layer : int
        Index into the workload's layers, from 0.
    """
    policy = workload.policy
    if policy == "MICRO":
        if layer == 0:
            yield Act("overlap", 0, "weight_gradient", Phase.BACKWARD)
    elif policy == "DISTRIBUTED_INFERENCE":
        return
    elif policy in _TRANSFORMER:
        if layer in workload.recomputes:
            start = max((c for c in workload.checkpoints if c <= layer), default=0)
            for again in range(start, layer):
                yield from forward(workload, again, Phase.RECOMPUTE)
        yield from _inputs(layer, "block")
        yield from _weights(layer)
    elif policy == "DATA":
        yield from _weights(layer)
        if layer:
            yield Act("compute", layer, "input_gradient", Phase.BACKWARD)
    elif policy in _DLRM:
        yield from _weights(layer)
        if policy == "HYBRID_DLRM":
            yield Act("wait", layer, "input_gradient", Phase.BACKWARD)
        if layer:
            yield Act("compute", layer, "input_gradient", Phase.BACKWARD)
        if layer == workload.last_bottom + 1:
            yield Act("overlap", 0, "input_gradient", Phase.BACKWARD)
    else:
        yield from _inputs(layer, "overlap" if layer else None)
        yield from _weights(layer, communicates=policy != "MODEL")
        yield Act("wait", layer, "input_gradient", Phase.BACKWARD)


def _inputs(layer: int, communication: Literal["block", "overlap"] | None) -> Iterator[Act]:
    yield Act("compute", layer, "input_gradient", Phase.BACKWARD)
    if communication:
        yield Act(communication, layer, "input_gradient", Phase.BACKWARD)


def _weights(layer: int, communicates: bool = True) -> Iterator[Act]:
    yield Act("compute", layer, "weight_gradient", Phase.WEIGHT)
    if communicates:
        yield Act("overlap", layer, "weight_gradient", Phase.WEIGHT)


# --- micro-batches ------------------------------------------------------------------------------


class MicroBatches(NamedTuple):
    """Where the micro-batches of a file lie: it has their layers one after the other.

    `first` is the first layer of the first, `length` how many layers each has, and `chunks` where
    its model chunks begin, from 0, with `length` at the end.
    """

    first: int
    length: int
    chunks: tuple[int, ...]


MICRO_BATCH = "embedding_layer"
"""With this layer each micro-batch begins."""
_BEHIND = ("cross_entropy", "optimizer")


def micro_batches(workload: SimaiWorkload) -> MicroBatches:
    """Find the micro-batches of a workload of several pipeline stages.

    Each begins with an ``embedding_layer``; behind the last come ``cross_entropy…`` and
    ``optimizer…``. A stage's chunks are cut at the layer that comes behind the embedding.

    Raises
    ------
    InputError
        If the layers do not repeat so.
    """
    names = [layer.name for layer in workload.layers]
    begins = [i for i, name in enumerate(names) if name == MICRO_BATCH]
    count = workload.micro_batches
    last = len(names)
    while last and names[last - 1].startswith(_BEHIND):
        last -= 1
    if len(begins) != count:
        raise InputError(
            f"{workload.path}: a pipeline of {workload.pipeline} stages needs its micro-batches: "
            f"'ga' is {count}, but {len(begins)} layers are called {MICRO_BATCH!r}"
        )
    length = last - begins[-1]
    one = names[begins[-1] : last]
    for number, begin in enumerate(begins):
        if names[begin : begin + length] != one or begin != begins[0] + number * length:
            raise InputError(
                f"{workload.path}: the layers of micro-batch {number} are not those of the last"
            )
    cuts = [i for i, name in enumerate(one) if length > 1 and name == one[1]]
    if not cuts or len(cuts) % workload.chunks:
        raise InputError(
            f"{workload.path}: 'vpp' is {workload.chunks}, which does not divide the "
            f"{len(cuts)} layers of a pipeline stage"
        )
    step = len(cuts) // workload.chunks
    return MicroBatches(begins[0], length, (0, *cuts[step::step], length))


# --- ranks --------------------------------------------------------------------------------------


class ParallelGroups:
    """Which ranks of a job communicate with each other.

    Rank ``tp + TP·(dp + DP·pp)``: tensor-parallel ranks side by side, then data-parallel ones, of
    which EP in a row share the experts; pipeline stages last. For one stage that is the layout of
    SimAI's ``MockNcclGroup.cc`` (for several, SimAI's groups cross stages).

    Parameters
    ----------
    workload : SimaiWorkload
    n_ranks : int

    Raises
    ------
    InputError
        If the sizes do not divide each other.
    """

    def __init__(self, workload: SimaiWorkload, n_ranks: int) -> None:
        self.policy, path = workload.policy, workload.path
        self.layers, self.n_ranks = workload.layers, n_ranks
        policies = {self.policy, *(layer.policy for layer in workload.layers)}
        grouped = sorted(policies & {*_TRANSFORMER, "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA"})
        if grouped and not workload.tensor:
            raise InputError(f"{path}: line 1: {grouped[0]} needs model_parallel_NPU_group")
        if self.policy in _DLRM and not 0 <= workload.last_bottom < len(workload.layers):
            raise InputError(
                f"{path}: line 1: {self.policy} needs DLRM_LAST_BOTTOM_LAYER, one of the "
                f"{len(workload.layers)} layers"
            )
        self.tensor = max(1, workload.tensor)
        self.stages = workload.pipeline
        if self.stages > 1 and self.policy not in _TRANSFORMER:
            raise InputError(
                f"{path}: line 1: 'pp' is {self.stages}, but {self.policy} has no pipeline"
            )
        if n_ranks % (self.tensor * self.stages):
            raise InputError(
                f"{path}: {n_ranks} ranks cannot be divided into groups of {self.tensor} "
                f"(model_parallel_NPU_group) × {self.stages} (pp)"
            )
        self.data = n_ranks // (self.tensor * self.stages)
        self.expert = workload.expert
        if self.data % self.expert:
            raise InputError(
                f"{path}: line 1: 'ep' is {self.expert}, which does not divide the {self.data} "
                "data-parallel ranks"
            )

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.tensor * self.data)

    def peer(self, rank: int, stage: int) -> int:
        """Return the rank of another stage with the same place in it.

        Parameters
        ----------
        rank : int
        stage : int
            Pipeline stage of the rank that is returned, from 0.
        """
        return rank + (stage - self.stage(rank)) * self.tensor * self.data

    def kind(self, layer: int, part: Pass, group: str) -> str:
        """Return which groups a communication is over; ``none`` if the policy does not have it.

        Parameters
        ----------
        layer : int
        part : {"forward", "input_gradient", "weight_gradient"}
        group : str
            As in the file: ``EP``, ``DP_EP`` or empty.
        """
        if group:
            return group
        policy = self.layers[layer].policy or self.policy
        weights = part == "weight_gradient"
        if policy in ("DATA", "MICRO"):
            return "ALL" if weights else "none"
        if policy in _DLRM:  # the first layer, the embeddings, is spread over all ranks
            return "ALL" if weights or layer == 0 else "none"
        if policy in ("MODEL", "DISTRIBUTED_INFERENCE"):
            return "none" if weights else "ALL"
        if policy == "HYBRID_MODEL_DATA":  # here data-parallel ranks are side by side
            return "INNER" if weights else "OUTER"
        return "DP" if weights else "TP"

    def members(self, kind: str, rank: int) -> range:
        """Return the ranks of a group that a rank is in.

        Parameters
        ----------
        kind : {"ALL", "TP", "EP", "DP_EP", "DP", "INNER", "OUTER"}
            As `kind` returns it, but not ``none``.
        rank : int

        Returns
        -------
        range
            In ascending order, the rank itself among them.
        """
        tensor, data, expert = self.tensor, self.data, self.expert
        begin = self.stage(rank) * tensor * data
        tp, dp = (rank - begin) % tensor, (rank - begin) // tensor
        if kind == "ALL":
            return range(self.n_ranks)
        if kind == "TP":
            return range(begin + dp * tensor, begin + (dp + 1) * tensor)
        if kind == "EP":
            chosen = range(dp - dp % expert, dp - dp % expert + expert)
        elif kind == "DP_EP":
            chosen = range(dp % expert, data, expert)
        elif kind == "DP":
            chosen = range(data)
        elif kind == "INNER":
            first = rank - rank % data
            return range(first, first + data)
        else:
            return range(rank % data, self.n_ranks, data)
        base = begin + tp
        return range(
            base + chosen.start * tensor, base + chosen.stop * tensor, chosen.step * tensor
        )
