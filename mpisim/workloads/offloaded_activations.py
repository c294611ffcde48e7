"""Copies of activations to host memory and back, beside the passes (Transformer Engine).

Transformer Engine's ``AsyncDoubleBufferGroupOffloadHandler`` (``cpu_offload.py`` in
transformer_engine/pytorch), which Megatron-LM's ``--cpu-offloading-num-layers`` uses: of the first
layers of a transformer, what they keep for the backward goes to the host one layer after another,
beside the kernels of later layers. The layers of the forward are divided into as many windows. At
the end of each the kernels wait for the layer that was on its way, whose memory is freed, and the
next one starts. The backward goes the same way back: as it comes to the end of a window, its
kernels wait for the layer that was asked for last, and the one of this window is asked for.
`plan.offload.activations` of PyTorch is in :mod:`.offloaded_checkpoints`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpisim.kernels.operations import Copy

from ..base.errors import InputError
from ..experiment.plan_options import OffloadOptions
from .blocks import BlockBuilder
from .operators import Compute, Layer

__all__ = ["ActivationOffload", "LayerCopies", "windows"]

TO_HOST, FROM_HOST = "activations to host", "activations from host"
DOWN, UP = "activations down", "activations up"
"""Streams of the copies (``d2h_stream``, ``h2d_stream``)."""


def windows(layers: int, offloaded: int) -> tuple[int, ...]:
    """Layers, number of offloaded layers → last layer of the window of each offloaded layer.

    As ``layer_window_map``: windows of equal length, the first ones longer by a layer if need be.

    Parameters
    ----------
    layers : int
        Blocks of the transformer.
    offloaded : int

    Raises
    ------
    InputError
        If all are offloaded, or more than there are.

    Examples
    --------
    >>> windows(8, 2), windows(8, 3), windows(4, 3)
    ((3, 7), (2, 5, 7), (1, 2, 3))
    """
    if offloaded >= layers:
        raise InputError(
            f"plan.offload.activations is {offloaded}; the model has {layers} layers, of which one "
            f"at least stays on the GPU; allowed: 0 to {max(layers - 1, 0)}"
        )
    even, longer = divmod(layers, offloaded)
    return tuple(even * (i + 1) - 1 + min(i + 1, longer) for i in range(offloaded))


class LayerCopies(Protocol):
    """Writes copies to the host and back around the passes of a model chunk's layers.

    In all methods `layer` is the index of a layer of the chunk, and `block` what its pass is
    written with.
    """

    def writes(self, layer: int) -> bool:
        """Layer → whether anything is written around its passes."""

    def before_forward(self, block: BlockBuilder, layer: int) -> None:
        """Write what comes before a layer's forward."""

    def after_forward(self, block: BlockBuilder, layer: int) -> None:
        """Write what comes after a layer's forward."""

    def before_backward(self, block: BlockBuilder, layer: int) -> None:
        """Write what comes before a layer's backward, or before it is computed again."""


class ActivationOffload:
    """Copies of a model chunk's activations, by Transformer Engine's windows; a `LayerCopies`.

    Parameters
    ----------
    layers : sequence of Layer
        Of the chunk.
    offload : OffloadOptions
        Its `activations` is the number of blocks to offload, the first ones.
    sharers : int
        GPUs that copy over one link to the host.
    """

    def __init__(self, layers: Sequence[Layer], offload: OffloadOptions, sharers: int) -> None:
        offloaded = offload.activations
        blocks = [i for i, layer in enumerate(layers) if layer.role == "block"]
        ends = windows(len(blocks), offloaded)
        sizes = [layers[blocks[i]].saved for i in range(offloaded)]
        self._tasks = [Copy(size, "host", sharers) for size in sizes]
        self._first = blocks[0]
        self._window = {blocks[end]: i for i, end in enumerate(ends)}
        self._row: int | None = None

    def writes(self, layer: int) -> bool:
        """Layer → whether it is the first one, or the last one of a window."""
        return layer == self._first or layer in self._window

    def before_forward(self, block: BlockBuilder, layer: int) -> None:
        """Write nothing."""

    def after_forward(self, block: BlockBuilder, layer: int) -> None:
        """Start the first copy, or wait for one and start the next."""
        if layer == self._first:
            self._row = self._copy(block, 0, TO_HOST, DOWN)
        i = self._window.get(layer)
        if i is not None:
            assert self._row is not None
            block.await_next([self._row])
            if i + 1 < len(self._tasks):
                self._row = self._copy(block, i + 1, TO_HOST, DOWN)

    def before_backward(self, block: BlockBuilder, layer: int) -> None:
        """Wait for the copy asked for last, and ask for the next."""
        i = self._window.get(layer)
        if i is not None:
            before = self._row if i + 1 < len(self._tasks) else None
            self._row = self._copy(block, i, FROM_HOST, UP)
            block.await_next([] if before is None else [before])
        if layer == self._first:
            assert self._row is not None
            block.await_next([self._row])

    def _copy(self, block: BlockBuilder, i: int, name: str, stream: str) -> int:
        return block.compute_beside(Compute(name, self._tasks[i]), stream)
