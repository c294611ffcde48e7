"""Reductions along rows (softmax, norms, cross-entropy): shapes → bytes of memory traffic."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from mpisim.base.frozen import frozen

from .kernel import BYTES, Kernel, Precision

__all__ = ["CrossEntropy", "Norm", "NormVariant", "Softmax"]

NormVariant = Literal["persistent"]
"""``persistent``: each row is read once, into registers. Apex's FastLayerNorm and the tuned kernels
of Transformer Engine keep a row in the registers of its threads from the first read to the last
write (transformer_engine/common/normalization). Other kernels go through it twice. Which one runs
is the framework's choice, and for Megatron-LM's layer norms one of the width, too
(``persist_ln_hidden_sizes``)."""


@frozen
class Softmax(Kernel):
    """Softmax over the last axis, in one kernel that also scales and masks.

    Attributes
    ----------
    rows, columns : int
    backward : bool
    dtype : Precision
    causal : bool
        Whether what a causal mask hides, half of all columns, is not read. Zeros are written there.
    """

    family: ClassVar[str] = "softmax"
    rows: int
    columns: int
    backward: bool = False
    dtype: Precision = "bf16"
    causal: bool = False

    @property
    def read(self) -> int:
        """Bytes read for two elements: forward the input, backward the output and its gradient."""
        tensors = 2 if self.backward else 1
        return tensors * BYTES[self.dtype] * (1 if self.causal else 2)

    @property
    def traffic(self) -> int:
        """Bytes: forward input and output; backward output and both gradients."""
        return (self.read + 2 * BYTES[self.dtype]) * self.rows * self.columns // 2


@frozen
class Norm(Kernel):
    """Layer, RMS or batch normalisation.

    Attributes
    ----------
    rows, columns : int
        Layer and RMS norm: tokens and width. Batch norm: batch × pixels and channels.
    kind : {"layer", "rms", "batch"}
    backward : bool
    dtype : Precision
    variant : NormVariant, optional
    residual : bool
        Whether the kernel also adds up the residual stream: forward it normalises the sum of two
        inputs, and writes that, too; backward it adds to the gradient of that sum.
    """

    family: ClassVar[str] = "norm"
    rows: int
    columns: int
    kind: Literal["layer", "rms", "batch"] = "layer"
    backward: bool = False
    dtype: Precision = "bf16"
    variant: NormVariant | None = field(default=None, kw_only=True)
    residual: bool = field(default=False, kw_only=True)

    @property
    def traffic(self) -> int:
        """Bytes: forward input and output; backward input and both gradients.

        Batch statistics need the whole batch before the first output: one more pass over the input,
        and backward over input and gradient. A residual forward: the other input, and the sum;
        backward: the gradient that is added to.
        """
        passes = 3 if self.backward else 2
        if self.kind == "batch":
            passes = 5 if self.backward else 3
        if self.residual:
            passes += 1 if self.backward else 2
        return passes * BYTES[self.dtype] * self.rows * self.columns


@frozen
class CrossEntropy(Kernel):
    """Softmax cross-entropy over a vocabulary, or over this GPU's part of it.

    Attributes
    ----------
    rows, columns : int
        Tokens, and entries of the vocabulary.
    backward : bool
    dtype : Precision
        Of the scores; the softmax itself is fp32.
    gradient : bool
        Whether one kernel computes the loss and writes the gradient of the scores in their place,
        so that none runs backward.
    """

    family: ClassVar[str] = "cross_entropy"
    rows: int
    columns: int
    backward: bool = False
    dtype: Precision = "bf16"
    gradient: bool = field(default=False, kw_only=True)

    @property
    def traffic(self) -> int:
        """Bytes: scores read and their softmax in fp32 written; backward the reverse.

        With the gradient: scores read, and their gradient written.
        """
        if self.gradient:
            return 2 * BYTES[self.dtype] * self.rows * self.columns
        return (BYTES[self.dtype] + BYTES["fp32"]) * self.rows * self.columns
