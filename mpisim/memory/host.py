"""Parameters of a rank → host memory of its offloaded states, parameters and activations.

Bytes of a parameter of a rank's share, as DeepSpeed's documentation counts them
(docs/code-docs/source/memory.rst): 4 of the main parameter, 4 of its gradient, 8 of Adam's moments.
DeepSpeed has besides the gradient in the format of the passes: with stage 2 where several
micro-batches are added up (``accumulated_grads_in_cpu``), with stage 3 always, and of all
parameters even where a share of the states is offloaded (``grad_partitions_flat_buffer``). With
stages 1 and 2 it has the new weight in that format
(``param_buffer_of_bit16_for_cpu_offload_groups``). FSDP has its parameters on the host, and no
other copy of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.frozen import frozen
from ..experiment.plan import Plan
from ..workloads.optimizer import OPTIMIZER_STATES
from .states import FP32, ParameterCounts, framework, rates

__all__ = ["HostMemory", "host_memory"]


@frozen
class HostMemory:
    """Bytes of the host's memory that one rank takes.

    Attributes
    ----------
    gradients, optimizer : int
        Gradients in fp32; main parameters with the optimizer's states.
    parameters : int
        Parameters in the format of the passes.
    buffers : int
        Staging buffers of copies from and to the GPU.
    activations : int
        Activations kept on the host for the backward.
    """

    gradients: int = 0
    optimizer: int = 0
    parameters: int = 0
    buffers: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        states = self.gradients + self.optimizer + self.parameters
        return states + self.buffers + self.activations


def host_memory(
    counts: ParameterCounts, plan: Plan, sizes: Mapping[str, int], *, accumulates: bool
) -> HostMemory:
    """Parameters of a rank → bytes of the host's memory.

    Parameters
    ----------
    counts : ParameterCounts
        Before sharding.
    plan : Plan
    sizes : mapping of str to int
        Members of groups of ranks: ``shard`` and ``eshard`` (experts) shard states.
    accumulates : bool
        Whether a step has several micro-batches.
    """
    share = counts.sharded(sizes)
    updated = round(plan.offload.optimizer * share)
    if not updated:
        return HostMemory()
    each = rates(plan)
    parameters = (
        each.weight * (share + counts.frozen_share(sizes)) if plan.offload.parameters else 0
    )
    if framework(plan) == "fsdp":
        return HostMemory(each.gradient * share, each.optimizer * share, parameters)
    buffers = 0
    if framework(plan) == "deepspeed":
        kept = plan.zero == 3 or (plan.zero == 2 and accumulates)
        buffers += each.gradient * share if kept else 0
        buffers += each.weight * share if plan.zero < 3 else 0
    states = FP32 * (1 + OPTIMIZER_STATES[plan.optimizer])
    return HostMemory(FP32 * updated, states * updated, parameters, buffers)
