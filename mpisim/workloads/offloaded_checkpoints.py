"""Copies of checkpointed layer inputs to host memory and back (PyTorch, torchtune).

`plan.offload.activations` of PyTorch. A checkpoint keeps the input of a layer. Hooks of saved
tensors copy it to pinned memory as the layer begins, and back as its backward does.

Without ``offload.overlap`` they are ``torch.autograd.graph.save_on_cpu`` with ``pin_memory``, which
FSDP's ``offload_wrapper``, Transformers and Accelerate put around checkpoints: copies are on the
stream of the kernels, and the CPU waits for those to the host.

With it they are torchtune's ``OffloadActivations``: copies have a stream of their own. As a layer
begins, kernels wait for the copy of the fifth layer before it (``max_fwd_stash_size``), whose input
is freed. Before a backward all of them have to be there, and an input comes while the layer behind
is at work: not earlier, since the stream waits for that layer's own input to be freed.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import Copy

from ..base.errors import InputError
from ..experiment.plan_options import OffloadOptions
from .blocks import BlockBuilder
from .operators import Compute, Layer

__all__ = ["CheckpointOffload", "check_number"]

TO_HOST, FROM_HOST = "layer input to host", "layer input from host"
STREAM = "layer inputs"
WAIT = "wait for layer input on host"

STASH = 5
"""Inputs that are kept alive until their copies are awaited (torchtune's default)."""


def check_number(blocks: int, offloaded: int) -> None:
    """Refuse to offload the inputs of more layers than there are.

    Parameters
    ----------
    blocks : int
        Of the transformer.
    offloaded : int

    Raises
    ------
    InputError
    """
    if offloaded > blocks:
        raise InputError(
            f"plan.offload.activations is {offloaded}; the model has {blocks} layers; allowed: 0 "
            f"to {blocks}"
        )


class CheckpointOffload:
    """Copies of the inputs of a model chunk's layers; a `LayerCopies`.

    Parameters
    ----------
    layers : sequence of Layer
        Of the chunk; what is before the first block is at least one layer, the embedding.
    offload : OffloadOptions
    sharers : int
        GPUs that copy over one link to the host.
    """

    def __init__(self, layers: Sequence[Layer], offload: OffloadOptions, sharers: int) -> None:
        blocks = [i for i, layer in enumerate(layers) if layer.role == "block"]
        check_number(len(blocks), offload.activations)
        self._blocks = blocks[: offload.activations]
        self._tasks = {i: Copy(layers[i].checkpoint, "host", sharers) for i in self._blocks}
        self._last = len(layers) - 1
        self._beside = offload.overlap
        self._rows: dict[int, int] = {}

    def writes(self, layer: int) -> bool:
        """Layer → whether its input or that of the next is copied, or it is the last one."""
        return layer in self._tasks or layer + 1 in self._tasks or layer == self._last

    def before_forward(self, block: BlockBuilder, layer: int) -> None:
        """Copy the layer's input to the host."""
        task = self._tasks.get(layer)
        if task is None:
            return
        if not self._beside:
            block.host_wait([block.compute(Compute(TO_HOST, task))], WAIT)
            return
        freed = self._blocks.index(layer) - STASH
        if freed >= 0:
            block.await_next([self._rows.pop(self._blocks[freed])])
        self._rows[layer] = block.compute_beside(Compute(TO_HOST, task), STREAM)

    def after_forward(self, block: BlockBuilder, layer: int) -> None:
        """Wait for all copies after the last layer."""
        if layer == self._last:
            block.await_next(list(self._rows.values()))
            self._rows = {}

    def before_backward(self, block: BlockBuilder, layer: int) -> None:
        """Wait for the layer's input, and ask for the one before."""
        own = self._tasks.get(layer)
        if not self._beside:
            if own is not None:
                block.compute(Compute(FROM_HOST, own))
            return
        if own is not None:
            row = self._rows.pop(layer, None)
            row = self._come(block, layer) if row is None else row
            block.await_next([row])
        if layer - 1 in self._tasks:
            self._rows[layer - 1] = self._come(block, layer - 1)

    def _come(self, block: BlockBuilder, layer: int) -> int:
        return block.compute_beside(Compute(FROM_HOST, self._tasks[layer]), STREAM)
