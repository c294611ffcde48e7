"""Matrix products and convolutions: shapes → FLOP and bytes of memory traffic."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from mpisim.base.frozen import frozen

from .kernel import BYTES, Kernel, Precision, operand_bytes

__all__ = ["Convolution", "Gemm", "GemmVariant", "GroupedGemm", "GroupedGemmVariant"]

GemmVariant = Literal[
    "cores", "split", "blocks", "scan", "scan_gradient", "unaligned", "single_words"
]
"""``cores``: 16-bit operands multiplied on CUDA cores, in fp32, which is the kernel's `dtype`.
cuBLAS before CUDA 11.7 did so where rows were no multiple of 16 bytes (ampere_fp16_sgemm and its
like).

``split``: fp8 products whose sums are kept in fp32 throughout. Hopper's matrix units add up
products in fp8 with fewer bits than fp32. cuBLAS leaves sums there with fast accumulation, and
otherwise moves them to fp32 registers again and again ("split accumulator"). Frameworks take the
first forward and the second for gradients: Transformer Engine (``_2X_ACC_FPROP``, ``_2X_ACC_DGRAD``
and ``_2X_ACC_WGRAD``, pytorch/module/base.py), torchao (``use_fast_accum``,
torchao/float8/config.py), XLA (github:openxla/xla, issue 6168).

``blocks``: fp8 products with a scale for every 32 elements of an operand (MXFP8), which Blackwell's
matrix units read with them.

``scan``, ``scan_gradient``: products inside the chunks of a scan over states, by kernels in Triton
(``mamba_ssm/ops/triton``) that also make decays and masks: those that a forward pass needs, and
those that only a backward pass does.

``unaligned``: 16-bit matrices whose rows are of an odd length, so that every other row begins
between two 4-byte words. Copies from memory into shared memory move 4 bytes at least (PTX ISA,
``cp.async``; 16 for the tensor memory accelerator), so that elements go one by one through
registers: CUTLASS's kernels of ``align1``, built for Turing, which cuBLAS takes.

``single_words``: fp32 matrices multiplied in tf32 whose rows are of an odd length, so that a copy
moves one element of 4 bytes, in place of four: CUTLASS's kernels of ``align1`` for tf32."""

GroupedGemmVariant = Literal["split", "blocks"]
"""As for `Gemm`."""


@frozen
class Gemm(Kernel):
    """`batch` products of matrices (m, k) × (k, n).

    Attributes
    ----------
    m, n, k, batch : int
    dtype : Precision
        Of both operands.
    output : Precision
        Of the result.
    accumulate : bool
        Whether the product is added to what the result holds (gradients of weights): the result is
        then read, too.
    variant : GemmVariant, optional
    """

    family: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: Precision = "bf16"
    output: Precision = "bf16"
    accumulate: bool = False
    variant: GemmVariant | None = field(default=None, kw_only=True)

    @property
    def flops(self) -> int:
        """FLOP of all products: 2 m n k for each."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def traffic(self) -> int:
        """Bytes: both operands read once, the result written once; with `accumulate` also read."""
        operands = operand_bytes(self.dtype, self.m * self.k + self.k * self.n)
        result = BYTES[self.output] * self.m * self.n * (2 if self.accumulate else 1)
        return self.batch * (operands + result)


@frozen
class GroupedGemm(Kernel):
    """Products (m_i, k) × (k, n) of several experts in one kernel, the m_i adding up to `rows`.

    Attributes
    ----------
    rows : int
        Tokens of all experts together.
    groups : int
        Experts with a matrix of their own.
    n, k : int
    dtype, output, accumulate
        As in `Gemm`.
    weight : bool
        The gradient of the weights: products (k, m_i) × (m_i, n), whose results are `groups`
        matrices (k, n).
    variant : GroupedGemmVariant, optional
    ragged : bool
        Whether the m_i are those of a router without preference, that each of `rows` may fall to
        any expert, and not all the same.
    """

    family: ClassVar[str] = "grouped_gemm"
    rows: int
    groups: int
    n: int
    k: int
    dtype: Precision = "bf16"
    output: Precision = "bf16"
    accumulate: bool = False
    weight: bool = False
    variant: GroupedGemmVariant | None = field(default=None, kw_only=True)
    ragged: bool = field(default=False, kw_only=True)

    @property
    def flops(self) -> int:
        """FLOP of all groups together: 2 × rows × n × k."""
        return 2 * self.rows * self.n * self.k

    @property
    def traffic(self) -> int:
        """Bytes: rows read and written once, and the matrix of each group once.

        With `weight` two sets of rows are read, and a matrix of each group is written; with
        `accumulate` what is written is read before.
        """
        matrices = self.groups * self.n * self.k
        times = 2 if self.accumulate else 1
        if self.weight:
            tokens = operand_bytes(self.dtype, self.rows * (self.n + self.k))
            return tokens + BYTES[self.output] * matrices * times
        return (
            operand_bytes(self.dtype, self.rows * self.k + matrices)
            + BYTES[self.output] * self.rows * self.n * times
        )


@frozen
class Convolution(Kernel):
    """A 2-d convolution.

    Attributes
    ----------
    batch, inputs, outputs : int
        Images, channels in and out.
    height, width : int
        Of the output.
    kernel : int
        Side of the (square) filter.
    stride, groups : int
    direction : {"forward", "input", "weight"}
        Forward, or the gradient of input or weights.
    dtype : Precision
    """

    family: ClassVar[str] = "convolution"
    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    stride: int = 1
    groups: int = 1
    direction: Literal["forward", "input", "weight"] = "forward"
    dtype: Precision = "fp32"

    @property
    def flops(self) -> int:
        """FLOP: 2 for each filter element and pixel of the output, the same in all directions."""
        pixels = self.batch * self.height * self.width
        return 2 * pixels * self.outputs * (self.inputs // self.groups) * self.kernel**2

    @property
    def traffic(self) -> int:
        """Bytes of input, filter and output (or their gradients), each read or written once."""
        image = self.batch * self.inputs * self.height * self.width * self.stride**2
        filters = self.outputs * (self.inputs // self.groups) * self.kernel**2
        result = self.batch * self.outputs * self.height * self.width
        return BYTES[self.dtype] * (image + filters + result)
