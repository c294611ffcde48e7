"""Kernel descriptions: shape, arithmetic and memory traffic of each family of kernels.

A description says nothing about time. Workload generators make descriptions, kernel models
(:mod:`mpisim.kernels.roofline` and others) say how long each takes on a GPU. Descriptions are
frozen and hashable by value, so that a model prices each distinct kernel of a step once.

A *variant* names one of several kernels that compute the same with another speed; which one runs is
the framework's choice, and often a matter of its date. ``data/calibration/kernel_variants.toml``
says how fast each is.

Conventions
-----------
flops
    Operations of the matrix units, an addition and a multiplication as two. Kernels that only move
    memory have none: their few operations an element never set the pace.
traffic
    Bytes that must pass between the GPU's memory and its cores if every operand is touched once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

__all__ = [
    "ATTENTION_VARIANTS",
    "BYTES",
    "CACHE_BYTES",
    "OPERAND_BYTES",
    "Attention",
    "AttentionVariant",
    "Convolution",
    "Copy",
    "Counted",
    "CrossEntropy",
    "Elementwise",
    "ElementwiseVariant",
    "Embedding",
    "EmbeddingTables",
    "Gemm",
    "GemmVariant",
    "GroupedGemm",
    "GroupedGemmVariant",
    "Kernel",
    "Norm",
    "NormVariant",
    "OptimizerStep",
    "Precision",
    "Softmax",
    "operand_bytes",
]

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
"""Number formats of matrix operands."""

BYTES: dict[str, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of an element in memory, by the formats that tensors are kept in."""

OPERAND_BYTES: dict[str, float] = {**BYTES, "nvfp4": 9 / 16}
"""Bytes of an element of a matrix operand. NVFP4 has 4 bits and one scale of 8 bits for 16 elements
(arXiv:2509.25149)."""


CACHE_BYTES = tuple(1 << exponent for exponent in range(20, 28))
"""Sizes of caches, 1 to 128 MiB, for which lookups in tables say what misses."""

GemmVariant = Literal["cores", "split", "blocks", "scan", "scan_gradient", "unaligned"]
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
registers: CUTLASS's kernels of ``align1``, built for Turing, which cuBLAS takes."""

GroupedGemmVariant = Literal["split", "blocks"]
"""As for `Gemm`."""

ElementwiseVariant = Literal[
    "block_scales", "layout", "row_copies", "row_sums", "scales_apart", "slice_writes", "widening"
]
"""Kernels that do not stream as fast as memory would let them.

``"block_scales"``: casts to MXFP8, with a scale for each block of 32 numbers; ``"layout"``:
channels of images are moved to the end or back; ``"row_copies"``: rows are copied to other places,
each once or more often; ``"row_sums"``: rows from other places are added up; ``"scales_apart"``:
casts to NVFP4, behind which two kernels put the scales into the order that products read;
``"slice_writes"``: XLA writes a result into its place in a larger array; ``"widening"``: PyTorch's
operations on 16-bit numbers whose result is fp32.
"""

NormVariant = Literal["persistent"]
"""``persistent``: each row is read once, into registers. Apex's FastLayerNorm and the tuned kernels
of Transformer Engine keep a row in the registers of its threads from the first read to the last
write (transformer_engine/common/normalization). Other kernels go through it twice. Which one runs
is the framework's choice, and for Megatron-LM's layer norms one of the width, too
(``persist_ln_hidden_sizes``)."""

AttentionVariant = Literal["cudnn", "cudnn_9_13", "flash_2", "triton"]
"""Without a variant the newest, which is the fastest that is published for a GPU: FlashAttention-2
on Ampere, 3 on Hopper, 4 on Blackwell.

``cudnn``: cuDNN's, which Transformer Engine calls on Hopper, and JAX through it. ``cudnn_9_13``:
the same up to 9.13, September 2025, whose kernels for Blackwell were slower. ``flash_2``:
FlashAttention-2 (arXiv:2307.08691), which PyTorch's ``scaled_dot_product_attention`` has.
``triton``: FlashAttention of 2022 in Triton, ``flash_attn_triton.py`` of the package flash-attn."""

ATTENTION_VARIANTS: Mapping[str, AttentionVariant | None] = {
    "newest": None,
    "cudnn": "cudnn",
    "cudnn-9.13": "cudnn_9_13",
    "flash-2": "flash_2",
    "triton": "triton",
}
"""Variants of attention by the names that experiments use (``framework.attention``)."""


def operand_bytes(dtype: str, elements: int) -> int:
    """Return the bytes of a matrix operand of so many elements, scales included.

    Parameters
    ----------
    dtype : str
        A number format of `OPERAND_BYTES`.
    elements : int
    """
    return math.ceil(OPERAND_BYTES[dtype] * elements)


@frozen
class Kernel(ABC):
    """Description of one kernel; see the subclasses.

    Attributes
    ----------
    family : str
        Kernels of one family have one formula in the analytical model.
    variant : str, optional
        Of the family's kernels, one of another speed; only some families have variants.
    """

    family: ClassVar[str]

    @property
    def variant(self) -> str | None:
        """The variant, in families that have some."""
        return None

    @property
    def qualified_family(self) -> str:
        """The family, with the variant if there is one: ``"attention_cudnn"``."""
        variant = self.variant
        return self.family if variant is None else f"{self.family}_{variant}"

    @property
    def flops(self) -> int:
        """FLOP of the matrix units (Tensor Cores); 0 where the kernel uses none."""
        return 0

    @property
    @abstractmethod
    def traffic(self) -> int:
        """Bytes that move between memory and cores: read, and written."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is int and value < 1:
                raise InputError(f"a kernel's {name!r} is {value}; it must be 1 or more")


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
        """2 m n k for each product."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def traffic(self) -> int:
        """Both operands once, the result once, or twice where it is added to."""
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
        """Tokens in and out, and one matrix an expert."""
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
class Attention(Kernel):
    """Fused attention, which never writes its scores to memory (FlashAttention, arXiv:2205.14135).

    Attributes
    ----------
    batch : int
        Sequences.
    heads, kv_heads : int
        Of the queries, and of keys and values.
    queries, keys : int
        Tokens of a sequence on each side.
    head_size, value_size : int
        Elements of a head of queries and keys, and of values.
    causal : bool
        Whether a token sees only those before it: half of the scores.
    backward : bool
    dtype : Precision
    window : int, optional
        Tokens a token sees at most, itself and those before it; all if not given.
    variant : AttentionVariant, optional
    """

    family: ClassVar[str] = "attention"
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    causal: bool = True
    backward: bool = False
    dtype: Precision = "bf16"
    window: int | None = None
    variant: AttentionVariant | None = field(default=None, kw_only=True)

    @property
    def flops(self) -> int:
        """Two products forward; five backward, as the scores are computed again.

        Of the five, three run over the head size (scores, gradients of queries and of keys), two
        over the value size (gradients of values and of the probabilities). With a mask the i-th
        token sees min(i, w) of s, on average w - w²/2s; without one a window counts on both sides.
        """
        seen, keys = min(self.window or self.keys, self.keys), self.keys
        masked = 2 * seen * keys - (seen * seen if self.causal else 0)
        scores = self.batch * self.heads * self.queries * masked // keys
        products = (
            3 * self.head_size + 2 * self.value_size
            if self.backward
            else self.head_size + self.value_size
        )
        return scores * products

    @property
    def traffic(self) -> int:
        """Forward Q, K, V, O; backward these, the gradient of O, and those of Q, K, V."""
        q = self.heads * self.queries * self.head_size
        k = self.kv_heads * self.keys * self.head_size
        v = self.kv_heads * self.keys * self.value_size
        o = self.heads * self.queries * self.value_size
        elements = 2 * (q + k + v + o) if self.backward else q + k + v + o
        return BYTES[self.dtype] * self.batch * elements


@frozen
class Softmax(Kernel):
    """Softmax over the last axis, with scale and mask fused in.

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
        """Bytes read for two elements: forward of the input, backward of output and gradient."""
        tensors = 2 if self.backward else 1
        return tensors * BYTES[self.dtype] * (1 if self.causal else 2)

    @property
    def traffic(self) -> int:
        """Forward in and out; backward output, gradient in, gradient out."""
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
    """

    family: ClassVar[str] = "norm"
    rows: int
    columns: int
    kind: Literal["layer", "rms", "batch"] = "layer"
    backward: bool = False
    dtype: Precision = "bf16"
    variant: NormVariant | None = field(default=None, kw_only=True)

    @property
    def traffic(self) -> int:
        """Forward in and out; backward input, gradient in, gradient out.

        Batch statistics need the whole batch before the first output: one more pass over the input,
        and backward over input and gradient.
        """
        passes = 3 if self.backward else 2
        if self.kind == "batch":
            passes = 5 if self.backward else 3
        return passes * BYTES[self.dtype] * self.rows * self.columns


@frozen
class Counted(Kernel):
    """A kernel known by its operation and byte counts alone, as in traces of other simulators.

    Attributes
    ----------
    operations : int
        Of the matrix units.
    bytes : int
        Read and written, together.
    dtype : Precision
        Of its operations.
    """

    family: ClassVar[str] = "counted"
    operations: int
    bytes: int
    dtype: Precision = "bf16"

    @property
    def flops(self) -> int:
        """FLOP of the matrix units, as the source counts them."""
        return self.operations

    @property
    def traffic(self) -> int:
        """Bytes read and written, as the source counts them."""
        return self.bytes


@frozen
class Elementwise(Kernel):
    """Anything that streams through memory once: activations, residuals, masks, casts, pooling.

    Attributes
    ----------
    bytes : int
        Read and written, together.
    transposes : bool
        Whether a result is written transposed.
    variant : ElementwiseVariant, optional
        Kernels that move rows to places given by a list, or convert numbers one by one or in
        blocks.
    indexed : int, optional
        Elements whose places in memory are divided out of their number, one by one: operands that
        are broadcast or not dense.
    """

    family: ClassVar[str] = "elementwise"
    bytes: int
    transposes: bool = False
    variant: ElementwiseVariant | None = field(default=None, kw_only=True)
    indexed: int | None = None

    @property
    def traffic(self) -> int:
        """Bytes read and written: `bytes`."""
        return self.bytes


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
    """

    family: ClassVar[str] = "cross_entropy"
    rows: int
    columns: int
    backward: bool = False
    dtype: Precision = "bf16"

    @property
    def traffic(self) -> int:
        """Scores in and their softmax out in fp32; backward the reverse."""
        return (BYTES[self.dtype] + BYTES["fp32"]) * self.rows * self.columns


@frozen
class Embedding(Kernel):
    """Look up rows of a table, or add gradients to them.

    Attributes
    ----------
    lookups : int
        Rows read, with repetition.
    width : int
        Elements of a row.
    entries : int
        Rows of the table.
    pooling : int
        Lookups added into one output row; 1 for a language model.
    backward : bool
    dtype : Precision
    outputs : int, optional
        Output rows, where one kernel serves tables of different pooling; otherwise as many as
        `pooling` makes of the lookups.
    """

    family: ClassVar[str] = "embedding"
    lookups: int
    width: int
    entries: int
    pooling: int = 1
    backward: bool = False
    dtype: Precision = "bf16"
    outputs: int | None = None

    @property
    def traffic(self) -> int:
        """Rows read and outputs written; backward gradients read, rows read and written."""
        row = BYTES[self.dtype] * self.width
        outputs = self.outputs or -(-self.lookups // self.pooling)
        indices = 8 * self.lookups
        return indices + row * (outputs + self.lookups * (2 if self.backward else 1))


@frozen
class EmbeddingTables(Kernel):
    """Look up and pool rows of several tables in one kernel, or add gradients to them.

    FBGEMM's table-batched embeddings, for tables of any width and accesses of any skew.

    Attributes
    ----------
    lookups : int
        Rows read, with repetition.
    row_bytes : int
        Of all these rows.
    distinct_bytes : int
        Of the rows without repetition.
    output_bytes : int
        Of the pooled rows.
    missed : tuple of int
        Bytes of the rows that caches of `CACHE_BYTES` miss: the miss-ratio curve of the accesses.
    backward : bool
    dtype : Precision
    """

    family: ClassVar[str] = "embedding"
    lookups: int
    row_bytes: int
    distinct_bytes: int
    output_bytes: int
    missed: tuple[int, ...]
    backward: bool = False
    dtype: Precision = "fp32"

    @property
    def traffic(self) -> int:
        """Rows read and outputs written; backward gradients read, rows read and written."""
        return 8 * self.lookups + self.output_bytes + self.row_bytes * (2 if self.backward else 1)


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
        """The same in all three directions."""
        pixels = self.batch * self.height * self.width
        return 2 * pixels * self.outputs * (self.inputs // self.groups) * self.kernel**2

    @property
    def traffic(self) -> int:
        """Input, filter and output, each once."""
        image = self.batch * self.inputs * self.height * self.width * self.stride**2
        filters = self.outputs * (self.inputs // self.groups) * self.kernel**2
        result = self.batch * self.outputs * self.height * self.width
        return BYTES[self.dtype] * (image + filters + result)


@frozen
class OptimizerStep(Kernel):
    """One fused step of an optimizer over all parameters a GPU updates.

    Attributes
    ----------
    parameters : int
    bytes_per_parameter : int
        Read and written for each: gradient, master weight, moments, and the weight the next step
        computes with.
    """

    family: ClassVar[str] = "optimizer"
    parameters: int
    bytes_per_parameter: int

    @property
    def traffic(self) -> int:
        """Bytes of all states that the step reads and writes."""
        return self.parameters * self.bytes_per_parameter


@frozen
class Copy(Kernel):
    """A copy or fill of memory.

    Attributes
    ----------
    bytes : int
        Copied; a copy reads and writes each.
    path : {"device", "fill", "host"}
        Inside the GPU's memory, filling it, or between the host's memory and the GPU's.
    """

    family: ClassVar[str] = "copy"
    bytes: int
    path: Literal["device", "fill", "host"] = "device"

    @property
    def traffic(self) -> int:
        """Twice the bytes inside the GPU, once otherwise."""
        return self.bytes * (2 if self.path == "device" else 1)
