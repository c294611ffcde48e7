"""Layers in one loop: what each keeps goes into arrays of all layers, and comes from there.

``jax.lax.scan`` compiles a layer once. What the backward loop reads of it, the forward loop has
written into an array with a place for each: XLA's dynamic-update-slice, a kernel of its own behind
products and attention, which are libraries' and do not write there themselves. (That they do,
``xla_gpu_enable_dynamic_slice_fusion``, once ``xla_gpu_enable_address_computation_fusion``, is off
by default.) Before, the array is filled with zeros. The backward loop copies out of it what
products and attention read (dynamic-slice); kernels that XLA generates read the place itself.

A profile of MaxText's Llama 2 70B shows just these (github:AI-Hypercomputer/maxtext
MaxText/configs/a3/llama_2_70b/bf16/pgle/64vm.pbtxt, remat_policy save_qkv_proj): layer input,
queries, keys and values are written forward; queries, keys and values are copied backward; arrays
of 80 layers are filled at once, which is a share for each layer here.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import Elementwise

from ..experiment.plan import Plan
from .operators import Compute, Operator
from .recomputation import STACK, kept_bytes

__all__ = ["stacked"]

READ_BY_LIBRARIES = frozenset({"qkv", "query", "key", "value", "attention"})
"""Operators whose results attention or a product reads in the backward pass; norms, activations and
residual sums read the others."""

UNREAD = "feed-forward out"
"""The operator whose result is in the next layer's input, and read there."""


def stacked(plan: Plan, operators: Sequence[Operator], checkpoint: int) -> tuple[Operator, ...]:
    """Operators of a layer → the same, with the kernels by which a loop over layers keeps results.

    Parameters
    ----------
    plan : Plan
        Without `framework.stacked_layers` and whole layers recomputed nothing changes.
    operators : sequence of Operator
    checkpoint : int
        Bytes of the layer's input, which is kept, too.
    """
    if not (plan.framework.stacked_layers and plan.recompute.granularity == "full"):
        return tuple(operators)
    written = [("layer input", checkpoint)]
    copied = []
    for each in operators:
        size = kept_bytes(plan, [each])
        if size and each.name != UNREAD:
            written.append((each.name, size))
            if each.name in READ_BY_LIBRARIES:
                copied.append((each.name, size))
    forward = tuple(
        kernel
        for name, size in written
        for kernel in (
            Compute(f"{name} stack fill", Elementwise(size), launches=0),
            Compute(f"{name} to stack", Elementwise(2 * size, variant="slice_writes")),
        )
    )
    backward = tuple(Compute(f"{name} from stack", Elementwise(2 * size)) for name, size in copied)
    # The arrays are what the layer keeps, which is counted as such.
    return (*operators, Operator(STACK, forward, backward, alive=(0, 0)))
