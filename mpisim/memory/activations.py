"""Layer, model chunk → bytes of activations and temporaries that a pass through it holds.

    tasks ─► operator ─► layer (`LayerMemory`) ─► chunk (`ChunkMemory`)

Inside an operator
    A framework frees a temporary once its last reader is done. Here every result lives until the
    task after the next begins, and what an overlapped communication gathers until the operator
    ends; so at any task there are its own result and the one before.
Inside a pass
    Layers come one after another, and within a layer operators. Forward, each leaves what it saves;
    backward, each first gets back what was recomputed, works on top of it, and frees it.

Each level needs of the one below only its peak and its net change, beyond what was held before;
that is why a layer is worked out once for all micro-batches and chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..base.frozen import frozen
from ..experiment.plan import Plan
from ..kernels.operations import (
    BYTES,
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    Softmax,
    operand_bytes,
)
from ..program import Operation
from ..workloads.layout import ModelChunk
from ..workloads.offloaded_activations import windows
from ..workloads.offloaded_checkpoints import check_number
from ..workloads.operators import (
    Await,
    BackwardPart,
    Communicate,
    Compute,
    Layer,
    Operator,
    Task,
)
from ..workloads.recomputation import kept_bytes, recomputed_layers

__all__ = [
    "ChunkMemory",
    "chunk_memory",
    "kept",
    "output_bytes",
    "result_bytes",
    "weight_gradient_inputs",
    "working_bytes",
]

MOST_LAYERS = 512
"""Entries of the cache of layer memories (one a kind of layer and plan); least recently used go."""


# --- operators ------------------------------------------------------------------------------------


def result_bytes(kernel: Kernel) -> int:
    """Kernel → bytes that its result allocates.

    A result added to an existing buffer allocates none (gradients of weights, the optimizer's
    step). Of kernels with one number for bytes read and written, half is taken as written.
    """
    match kernel:
        case Gemm():
            if kernel.accumulate:
                return 0
            return BYTES[kernel.output] * kernel.batch * kernel.m * kernel.n
        case GroupedGemm():
            if kernel.accumulate:
                return 0
            elements = (
                kernel.groups * kernel.n * kernel.k if kernel.weight else kernel.rows * kernel.n
            )
            return BYTES[kernel.output] * elements
        case Attention():
            queries = kernel.heads * kernel.queries
            keys = kernel.kv_heads * kernel.keys
            if kernel.backward:
                elements = queries * kernel.head_size + keys * (
                    kernel.head_size + kernel.value_size
                )
            else:
                elements = queries * kernel.value_size
            return BYTES[kernel.dtype] * kernel.batch * elements
        case Softmax() | Norm():
            return BYTES[kernel.dtype] * kernel.rows * kernel.columns
        case CrossEntropy():
            dtype = kernel.dtype if kernel.backward or kernel.gradient else "fp32"
            return BYTES[dtype] * kernel.rows * kernel.columns
        case Embedding():
            if kernel.backward:
                return 0  # added to a gradient filled with zeros, or to the table itself
            rows = kernel.outputs or -(-kernel.lookups // kernel.pooling)
            return BYTES[kernel.dtype] * kernel.width * rows
        case Convolution():
            pixels = kernel.batch * kernel.height * kernel.width
            if kernel.direction == "forward":
                elements = pixels * kernel.outputs
            elif kernel.direction == "input":
                elements = pixels * kernel.stride**2 * kernel.inputs
            else:
                elements = kernel.outputs * (kernel.inputs // kernel.groups) * kernel.kernel**2
            return BYTES[kernel.dtype] * elements
        case Elementwise():
            return kernel.bytes // 2
        case Copy():
            return kernel.bytes if kernel.path in ("device", "fill") else 0
    return 0


def _received(task: Communicate, size: int) -> int | None:
    """Return the bytes of a communication's result; None where it works in place."""
    if task.operation in (Operation.ALL_GATHER, Operation.ALL_TO_ALL, Operation.SEND_RECV):
        return task.bytes
    if task.operation is Operation.REDUCE_SCATTER:
        return task.bytes // size
    return None


def working_bytes(tasks: Iterable[Task], sizes: Mapping[str, int], given: int = 0) -> int:
    """Tasks of an operator → peak bytes of the results that are alive at once.

    Parameters
    ----------
    tasks : iterable of Task
        Of one operator and one direction.
    sizes : mapping of str to int
        Members of each group; communications in groups of one are left out.
    given : int
        Bytes of the first task's input, where no one else counts them.
    """
    before, most, beside = given, given, 0
    for task in tasks:
        if isinstance(task, Await):
            continue
        if isinstance(task, Communicate):
            if sizes[task.group] == 1:
                continue
            found = _received(task, sizes[task.group])
            if found is None:
                continue
            if task.token and task.operation is Operation.ALL_GATHER:
                beside += found
                most = max(most, before + beside)
                continue
        else:
            found = result_bytes(task.kernel)
        most = max(most, before + found + beside)
        before = found or before
    return most


def output_bytes(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Operator → bytes of its output, which its backward pass gets as a gradient.

    Parameters
    ----------
    operator : Operator
    sizes : mapping of str to int
        Members of each group; communications in groups of one are left out.
    """
    for task in reversed(operator.forward):
        if isinstance(task, Compute):
            return result_bytes(task.kernel)
        if isinstance(task, Communicate) and sizes[task.group] > 1:
            found = _received(task, sizes[task.group])
            if found is not None:
                return found
    return 0


def weight_gradient_inputs(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Operator → bytes that the gradients of its weights read: its inputs and gradients.

    A schedule that delays these gradients (arXiv:2401.10241) keeps them from the one backward to
    the other: 32sbh of a GPT layer, table 1 there. What is gathered for them is kept as a share.
    Gradients of biases are sums of what their matrices need too.

    Parameters
    ----------
    operator : Operator
    sizes : mapping of str to int
        Members of each group.
    """
    kept = 0
    for task in operator.backward:
        if not task.weight or isinstance(task, Await):
            continue
        if isinstance(task, Communicate):
            if task.operation is Operation.ALL_GATHER:
                kept -= task.bytes - task.bytes // sizes[task.group]
            continue
        match task.kernel:
            case Gemm() as gemm:
                kept += gemm.batch * operand_bytes(gemm.dtype, gemm.k * (gemm.m + gemm.n))
            case GroupedGemm() as gemm:
                kept += operand_bytes(gemm.dtype, gemm.rows * (gemm.n + gemm.k))
            case Convolution() as filters:
                pixels = filters.batch * filters.height * filters.width
                channels = filters.outputs + filters.inputs * filters.stride**2
                kept += BYTES[filters.dtype] * pixels * channels
    return max(kept, 0)


# --- layers and chunks ----------------------------------------------------------------------------


@frozen
class ChunkMemory:
    """Bytes that the passes of one micro-batch through a model chunk hold.

    Attributes
    ----------
    kept : int
        Left by a forward for the backward.
    for_weights : int
        Left by a backward of inputs (split backward) for the gradients of weights.
    forward, backward, inputs, weights : int
        The most a forward, a whole backward, one of the inputs alone, and one of the weights hold
        at any moment beyond what the stage holds before it.
    forward_by_layer, backward_by_layer : tuple of int
        The most that is held while the forward is in each layer, and the whole backward, which
        begins with the last layer; beyond what the stage holds before them.
    offloaded : int
        In the host's memory between the passes.
    """

    kept: int
    for_weights: int
    forward: int
    backward: int
    inputs: int
    weights: int
    forward_by_layer: tuple[int, ...]
    backward_by_layer: tuple[int, ...]
    offloaded: int = 0


def kept(layer: Layer, plan: Plan, whole: bool) -> int:
    """Return the bytes a layer keeps of one micro-batch; `whole`: it is recomputed as a whole.

    Parameters
    ----------
    layer : Layer
    plan : Plan
    whole : bool
        Whether the layer is recomputed as a whole, from its checkpoint.
    """
    if whole:
        return layer.checkpoint + kept_bytes(plan, layer.operators)
    return layer.saved_selective if plan.recompute.granularity == "selective" else layer.saved


class LayerMemory(NamedTuple):
    """Bytes that the passes of one layer hold at most, beyond what was held before each.

    Attributes
    ----------
    for_weights, forward, backward, inputs, weights : int
        As of `ChunkMemory`.
    """

    for_weights: int
    forward: int
    backward: int
    inputs: int
    weights: int


def layer_memory(layer: Layer, plan: Plan, whole: bool, sizes: Mapping[str, int]) -> LayerMemory:
    """Layer → peak bytes of its forward and backward passes.

    Parameters
    ----------
    layer : Layer
    plan : Plan
    whole : bool
        Whether it is recomputed as a whole.
    sizes : mapping of str to int
        Members of each group of ranks.
    """
    groups = {
        task.group
        for operator in layer.operators
        for task in (*operator.forward, *operator.backward)
        if isinstance(task, Communicate)
    }
    return _of_operators(
        layer.operators,
        layer.checkpoint,
        whole,
        plan.recompute.granularity == "selective",
        tuple((name, sizes[name]) for name in sorted(groups) if name in sizes),
    )


@lru_cache(maxsize=MOST_LAYERS)
def _of_operators(
    operators: tuple[Operator, ...],
    checkpoint: int,
    whole: bool,
    selective: bool,
    sizes_of: tuple[tuple[str, int], ...],
) -> LayerMemory:
    """Operators of a layer → peak bytes of its passes; cached: plans of a search share layers."""
    sizes = dict(sizes_of)
    forward, held = 0, checkpoint if whole else 0
    for operator in operators:
        drops = whole or (selective and operator.selective)
        saved = 0 if drops else operator.saved
        # What it saves are its inputs or its own results: besides these, only the last is new.
        if operator.alive is None:
            found = working_bytes(operator.forward, sizes)
            own = max(found, saved + output_bytes(operator, sizes))
        else:
            own = operator.alive[0]
        forward = max(forward, held + own)
        held += saved
    for_weights = [weight_gradient_inputs(each, sizes) for each in operators]
    weights, held = 0, 0
    for operator, inputs in zip(reversed(operators), reversed(for_weights), strict=True):
        tasks = [task for task in operator.backward if task.weight]
        weights = max(weights, held + working_bytes(tasks, sizes))
        held -= inputs

    def back(part: BackwardPart) -> int:
        # The input of a layer that is recomputed is the first thing its operators save.
        everything = sum(operator.saved for operator in operators)
        held = most = max(everything - checkpoint, 0) if whole else 0
        for operator, inputs in zip(reversed(operators), reversed(for_weights), strict=True):
            if not whole and selective and operator.selective:
                held += operator.saved
            tasks = [task for task in operator.backward if part == "all" or not task.weight]
            if operator.alive is None:
                found = working_bytes(tasks, sizes, given=output_bytes(operator, sizes))
            else:
                found = operator.alive[1]
            most = max(most, held + found)
            held -= operator.saved
            if part == "input":
                held += inputs
                most = max(most, held)
        return most

    return LayerMemory(sum(for_weights), forward, back("all"), back("input"), weights)


def chunk_memory(chunk: ModelChunk, plan: Plan, sizes: Mapping[str, int]) -> ChunkMemory:
    """Model chunk → bytes that the passes of one micro-batch through it hold.

    Parameters
    ----------
    chunk : ModelChunk
    plan : Plan
    sizes : mapping of str to int
        Members of each group of ranks.
    """
    recomputes = recomputed_layers(plan, chunk.numbers)
    # By the operators themselves first: layers of one kind have one tuple, which is slow to hash.
    seen: dict[tuple[int, int, bool], tuple[LayerMemory, int]] = {}
    keeps, each = [], []
    for layer, whole in zip(chunk.layers, recomputes, strict=True):
        same = id(layer.operators), layer.checkpoint, whole
        if same not in seen:
            seen[same] = layer_memory(layer, plan, whole, sizes), kept(layer, plan, whole)
        found, left = seen[same]
        each.append(found)
        keeps.append(left)

    moved = _moved(chunk, plan, keeps)
    held, forward_by_layer, backward_by_layer = 0, [], []
    for found, left, away in zip(each, keeps, moved, strict=True):
        forward_by_layer.append(held + found.forward)
        held += left - away
    # Backward: what is held changes by the layers behind, which are done.
    inputs = weights = 0
    done = done_inputs = done_weights = 0
    for found, left, back in zip(reversed(each), reversed(keeps), reversed(moved), strict=True):
        done += back
        done_inputs += back
        backward_by_layer.append(done + found.backward)
        inputs = max(inputs, done_inputs + found.inputs)
        weights = max(weights, done_weights + found.weights)
        done -= left
        done_inputs += found.for_weights - left
        done_weights -= found.for_weights
    return ChunkMemory(
        kept=held,
        for_weights=-done_weights,
        forward=max([held, *forward_by_layer]),
        backward=max([0, *backward_by_layer]),
        inputs=max(inputs, done_inputs),
        weights=weights,
        forward_by_layer=tuple(forward_by_layer),
        backward_by_layer=tuple(backward_by_layer),
        offloaded=sum(moved),
    )


def _moved(chunk: ModelChunk, plan: Plan, keeps: Sequence[int]) -> list[int]:
    """Return the bytes that are on the host from the end of each layer to its backward.

    They are those of an earlier layer (`windows`), on its way until then, and asked for again from
    then on. The input of a layer that is computed again goes as that begins, and comes back one
    layer early where copies run beside kernels (torchtune frees it four layers later in the
    forward, which is not where most is held).
    """
    moved = [0] * len(keeps)
    if plan.offloads_checkpoints:
        blocks = [i for i, layer in enumerate(chunk.layers) if layer.role == "block"]
        check_number(len(blocks), plan.offload.activations)
        for i in range(plan.offload.activations):
            end = min(i + plan.offload.overlap, len(blocks) - 1)
            moved[blocks[end]] += chunk.layers[blocks[i]].checkpoint
    elif plan.offload.activations:
        blocks = [i for i, layer in enumerate(chunk.layers) if layer.role == "block"]
        for i, end in enumerate(windows(len(blocks), plan.offload.activations)):
            moved[blocks[end]] = keeps[blocks[i]]
    return moved
