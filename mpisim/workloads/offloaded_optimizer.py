"""Optimizer step on the CPU (`plan.offload.optimizer`) → CPU work and copies to and from the GPU.

DeepSpeed (``stage_1_and_2.py`` and ``stage3.py`` in deepspeed/runtime/zero): reduced gradients have
gone to the host during the backward (`DeepSpeed.offload`). The CPU scales them, updates the main
parameters and converts them to the format of the passes; then they go to the GPU, which waits for
all that, unless parameters are offloaded, too.

Megatron-LM (`HybridDeviceOptimizer`, megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py):
gradients, which the GPU has clipped, go to the host after the last backward. The GPU updates its
own part while the CPU does the other, which is converted and goes to the GPU. With
``offload.overlap`` each parameter has a CPU optimizer of its own, and copies of others run beside
it.

FSDP (``CPUOffload``, ``CPUOffloadPolicy``): all parameters are on the host, where an optimizer of
torch.optim updates them: all in one kernel with ``fused``, otherwise one operation after the other
(``_single_tensor_adam``), and ``clip_grad_norm_`` works there as well.

The CPU reads and writes all numbers once (``data/offload.toml`` has how fast). Where tensors of two
formats are copied between devices, PyTorch converts before the copy if that goes to the GPU
(`copy_requires_temporaries` in aten/src/ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import BYTES, Copy

from ..experiment.plan import Plan
from .blocks import BlockBuilder
from .data_parallel import Strategy
from .host import Host
from .operators import Compute

__all__ = [
    "CPU_OPTIMIZER",
    "cpu_bytes",
    "offloaded_parameters",
    "write_cpu_optimizer",
    "write_gradients_to_host",
]

FP32 = BYTES["fp32"]

CPU_OPTIMIZER = "optimizer on CPU"
"""Name of the rows of what the CPU does."""

WAIT = "wait for optimizer on CPU"

TO_HOST, FROM_HOST = "gradients to host", "weights from host"

COPY_STREAMS = "host to device", "device to host"
"""Streams of copies that run beside each other."""


def offloaded_parameters(plan: Plan, strategy: Strategy) -> int:
    """Plan, strategy → parameters that this rank's CPU updates.

    Parameters
    ----------
    plan : Plan
    strategy : Strategy
        Of the stage's data parallelism.
    """
    return round(plan.offload.optimizer * strategy.updated_parameters)


def cpu_bytes(states: int, weight: int, *, scales: bool) -> int:
    """Return the bytes that the CPU reads and writes for each parameter.

    The gradient is read, the main parameter and the states are read and written, all in fp32; the
    main parameter is read and written again where it is converted.

    Parameters
    ----------
    states : int
        Numbers that the optimizer keeps of a parameter.
    weight : int
        Bytes of a weight as the passes read it.
    scales : bool
        Whether the gradient is scaled before, by a pass of its own.

    Examples
    --------
    >>> cpu_bytes(2, 4, scales=False), cpu_bytes(2, 2, scales=True)
    (28, 42)
    """
    update = FP32 * (1 + 2 * (1 + states))
    converts = FP32 + weight if weight != FP32 else 0
    return update + converts + (2 * FP32 if scales else 0)


def write_cpu_optimizer(
    block: BlockBuilder,
    plan: Plan,
    strategy: Strategy,
    host: Host,
    states: int,
    gradients: Sequence[int],
    *,
    clips: bool = False,
) -> None:
    """Append the CPU's update of offloaded parameters, and their copies to the GPU.

    Parameters
    ----------
    block : BlockBuilder
    plan : Plan
    strategy : Strategy
        Of the stage's data parallelism.
    host : Host
    states : int
        Numbers that the optimizer keeps of a parameter.
    gradients : sequence of int
        What `write_gradients_to_host` has returned.
    clips : bool
        Whether gradients are clipped by their norm, which FSDP does on the CPU.
    """
    parameters = offloaded_parameters(plan, strategy)
    if strategy.style == "fsdp":
        _write_torch(block, plan, host, states, parameters, gradients, clips=clips)
        return
    each = cpu_bytes(states, strategy.weight_size, scales=strategy.style == "deepspeed")
    pieces = _pieces(plan, strategy)
    if pieces > 1:
        _write_pieces(block, strategy, host, each, parameters, pieces, gradients)
        return
    done = block.host_work(CPU_OPTIMIZER, host.duration(each * parameters), waits=gradients)
    block.host_wait([done], WAIT)
    if plan.offload.parameters:  # they stay where they are until they are gathered
        return
    size = strategy.weight_size * parameters
    block.compute(Compute(FROM_HOST, Copy(size, "host", host.sharers)))


def _write_torch(
    block: BlockBuilder,
    plan: Plan,
    host: Host,
    states: int,
    parameters: int,
    gradients: Sequence[int],
    *,
    clips: bool,
) -> None:
    """Append the step of an optimizer of torch.optim, whose parameters are on the host."""
    update = cpu_bytes(states, FP32, scales=False) * parameters
    duration = host.duration(update, plan)
    if clips:  # the norm reads, clipping reads and writes
        duration += host.duration(3 * FP32 * parameters)
    block.host_wait([block.host_work(CPU_OPTIMIZER, duration, waits=gradients)], WAIT)


def write_gradients_to_host(
    block: BlockBuilder, plan: Plan, strategy: Strategy, host: Host
) -> Sequence[int]:
    """Append the copies of gradients to the host before the update (Megatron-LM: all at once).

    Parameters
    ----------
    block : BlockBuilder
    plan : Plan
    strategy : Strategy
        Of the stage's data parallelism.
    host : Host

    Returns
    -------
    sequence of int
        Rows of the block, or ports, after which the gradients of offloaded parameters are there: on
        the host, or where they go by parts on the GPU.
    """
    if strategy.style == "megatron" and _pieces(plan, strategy) == 1:
        size = strategy.optimizer_gradient_size * offloaded_parameters(plan, strategy)
        return [block.compute(Compute(TO_HOST, Copy(size, "host", host.sharers)))]
    return [block.last, *block.pending]


def _pieces(plan: Plan, strategy: Strategy) -> int:
    """Return the parts in which the CPU updates offloaded parameters: shares of them."""
    if not plan.offload.overlap:
        return 1
    tensors = sum(len(chunk) for chunk in strategy.parameters)
    ranks = strategy.shard_ranks(False)
    return max(1, round(plan.offload.optimizer * tensors / ranks))


def _write_pieces(
    block: BlockBuilder,
    strategy: Strategy,
    host: Host,
    each: int,
    parameters: int,
    pieces: int,
    ready: Sequence[int],
) -> None:
    """Append parts one after another on the CPU, with copies of others beside them."""
    up, down = COPY_STREAMS
    shares = [parameters * (i + 1) // pieces - parameters * i // pieces for i in range(pieces)]
    arrived = []
    for share in shares:
        copy = Copy(strategy.optimizer_gradient_size * share, "host", host.sharers)
        arrived.append(block.compute_beside(Compute(TO_HOST, copy), down, waits=ready))
    back = []
    for share, gradients in zip(shares, arrived, strict=True):
        done = block.host_work(CPU_OPTIMIZER, host.duration(each * share), waits=[gradients])
        block.host_wait([done], WAIT)
        copy = Copy(strategy.weight_size * share, "host", host.sharers)
        back.append(block.compute_beside(Compute(FROM_HOST, copy), up, waits=[done]))
    block.await_next(back)
