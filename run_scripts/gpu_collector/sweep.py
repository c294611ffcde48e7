"""The kernels to measure, as plain data: no PyTorch is needed to list them.

Shapes are those of layers of common models under tensor parallelism, and some between them. Each
sweep is shuffled, with a fixed seed, so that one cut short is still spread over all sizes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}

LARGEST = 8 * 2**30
"""Bytes of operands and results above which a shape is left out."""


@dataclass(frozen=True)
class Case:
    """One kernel to measure.

    Attributes
    ----------
    operation : str
        The call of PyTorch.
    family : str
        Which description of mpisim.kernels.operations it has.
    fields : dict
        The numbers of that description.
    extra : dict
        What the call needs beside them; not written.
    """

    operation: str
    family: str
    fields: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)


LAYERS = (
    # hidden, feed-forward, heads, heads of keys and values, gated
    (1024, 4096, 16, 16, False),
    (2048, 8192, 32, 8, True),
    (4096, 14336, 32, 8, True),
    (4096, 11008, 32, 32, True),
    (5120, 13824, 40, 40, True),
    (8192, 28672, 64, 8, True),
    (12288, 49152, 96, 96, False),
    (16384, 53248, 128, 8, True),
)
"""GPT-2 medium, Llama 3.2 1B, Llama 3 8B, Llama 2 7B and 13B, Llama 3 70B, GPT-3, Llama 3 405B."""


def gemm(small: bool) -> Iterator[Case]:
    """Matrix products: forward (nt), gradients of inputs (nn) and of weights (tn), batched."""
    shapes = {(64, 32, 16), (32, 48, 64)} if small else _gemm_shapes()
    for index, (m, n, k) in enumerate(_shuffled(shapes)):
        dtypes = ("bf16", "fp8", "fp16", "tf32", "fp32") if index % 3 == 0 else ("bf16", "fp8")
        for dtype in dtypes:
            # The products of fp8 that PyTorch offers need sizes in sixteens; fp32 is slow.
            if dtype == "fp8" and (m % 16 or n % 16 or k % 16):
                continue
            if dtype in ("fp32", "tf32") and m * n * k > 2 * 10**12:
                continue
            layouts = ("nt", "nn", "tn") if dtype == "bf16" and index % 2 == 0 else ("nt",)
            output = "bf16" if dtype == "fp8" else dtype
            fields = {"m": m, "n": n, "k": k, "batch": 1, "dtype": dtype, "output": output}
            for layout in layouts:
                yield Case(f"matmul {layout}", "gemm", fields)
    batched = [(2, 8, 8, 8)] if small else _batched_shapes()
    for (batch, m, n, k), dtype in itertools.product(_shuffled(batched), ("bf16", "fp32")):
        fields = {"m": m, "n": n, "k": k, "batch": batch, "dtype": dtype, "output": dtype}
        yield Case("bmm", "gemm", fields)


def _gemm_shapes() -> set[tuple[int, int, int]]:
    shapes = set(
        itertools.product(
            (64, 256, 1000, 2048, 3000, 8192), (64, 384, 1024, 4096, 5000), (64, 512, 2048, 8192)
        )
    )
    tokens_of = (512, 1024, 2048, 4096, 8192, 16384)
    for layer, ranks, tokens in itertools.product(LAYERS, (1, 2, 4, 8), tokens_of):
        hidden, inner, heads, kv_heads, gated = layer
        size = hidden // heads
        queries_keys_values = (heads + 2 * max(kv_heads, ranks)) * size // ranks
        shapes |= {
            (tokens, queries_keys_values, hidden),
            (tokens, hidden, hidden // ranks),
            (tokens, (2 if gated else 1) * inner // ranks, hidden),
            (tokens, hidden, inner // ranks),
        }
    return shapes


def _batched_shapes() -> list[tuple[int, int, int, int]]:
    every = itertools.product(
        (16, 64, 256), (128, 512, 2048), (64, 128, 512, 2048), (64, 128, 2048)
    )
    return [(b, m, n, k) for b, m, n, k in every if 4 * b * (m * k + k * n + m * n) < LARGEST]


def attention(small: bool) -> Iterator[Case]:
    """FlashAttention through scaled_dot_product_attention, forward and backward."""
    heads_of = (
        # heads, heads of keys and values, head size
        (16, 16, 64),
        (32, 8, 128),
        (64, 8, 128),
        (8, 1, 128),
        (12, 12, 64),
        (4, 4, 128),
        (96, 96, 128),
        (16, 16, 192),
    )
    every: list[tuple[tuple[int, int, int], int, int, bool]] = [
        (heads, tokens, batch, causal)
        for heads in heads_of
        for tokens in (512, 1024, 2048, 4096, 8192, 16384)
        for batch in (1, 4)
        for causal in (True, False)
        if batch * tokens <= 32768
    ]
    if small:
        every = [((2, 2, 16), 16, 1, True)]
    for (heads, kv_heads, size), tokens, batch, causal in _shuffled(every):
        for backward in (False, True):
            fields = {
                "batch": batch,
                "heads": heads,
                "kv_heads": kv_heads,
                "queries": tokens,
                "keys": tokens,
                "head_size": size,
                "value_size": size,
                "causal": causal,
                "backward": backward,
                "dtype": "bf16",
            }
            yield Case("attention", "attention", fields)


def _tensors(small: bool) -> list[tuple[int, int, str]]:
    """Return rows, width and format of two-dimensional tensors."""
    if small:
        return [(64, 32, "bf16"), (8, 2000, "fp32")]
    sizes = itertools.product(
        (64, 512, 2048, 8192, 32768, 131072), (128, 768, 1024, 2560, 4096, 8192, 16384)
    )
    found = [(*size, dtype) for size in sizes for dtype in ("bf16", "fp32")]
    return _shuffled([each for each in found if 3 * 4 * each[0] * each[1] < LARGEST])


def reduction(small: bool) -> Iterator[Case]:
    """Layer and RMS norm and softmax, forward and backward."""
    for rows, columns, dtype in _tensors(small):
        shape = {"rows": rows, "columns": columns, "dtype": dtype}
        for backward in (False, True):
            fields = shape | {"backward": backward}
            yield Case("layer_norm", "norm", fields | {"kind": "layer"})
            yield Case("rms_norm", "norm", fields | {"kind": "rms"})
            yield Case("softmax", "softmax", fields)


def elementwise(small: bool) -> Iterator[Case]:
    """Activations, sums, casts and dropout."""
    for rows, columns, dtype in _tensors(small):
        count, size = rows * columns, BYTES[dtype]
        other = "fp32" if dtype == "bf16" else "bf16"
        moved = {
            "add": 3 * size,
            "mul": 3 * size,
            "gelu": 2 * size,
            "gelu backward": 3 * size,
            "silu": 2 * size,
            "silu backward": 3 * size,
            "dropout": 2 * size + 1,  # and a mask of one byte an element
            "cast": size + BYTES[other],
        }
        for operation, each in moved.items():
            extra = {"count": count, "dtype": dtype, "other": other}
            yield Case(operation, "elementwise", {"bytes": each * count}, extra)


def loss(small: bool) -> Iterator[Case]:
    """Cross-entropy over vocabularies."""
    every = itertools.product((1024, 4096, 16384), (32000, 50304, 128256))
    for rows, columns in [(16, 64)] if small else _shuffled(every):
        for backward in (False, True):
            fields = {"rows": rows, "columns": columns, "backward": backward, "dtype": "fp32"}
            yield Case("cross_entropy", "cross_entropy", fields)


def embedding(small: bool) -> Iterator[Case]:
    """Lookups of single rows, forward and backward, and of pooled rows."""
    every = itertools.product((2048, 16384, 131072), (50304, 1_000_000), (128, 1024, 4096))
    for lookups, entries, width in [(16, 64, 8)] if small else _shuffled(every):
        if 4 * entries * width > LARGEST:
            continue
        fields = {"lookups": lookups, "width": width, "entries": entries, "dtype": "bf16"}
        for backward in (False, True):
            yield Case("embedding", "embedding", fields | {"backward": backward, "pooling": 1})
        pooled = fields | {"backward": False, "pooling": 16, "dtype": "fp32"}
        yield Case("embedding_bag", "embedding", pooled)


def optimizer(small: bool) -> Iterator[Case]:
    """AdamW in one fused kernel: gradient, weight and two moments read, the last three written."""
    for parameters in (1000,) if small else (10**6, 10**7, 10**8, 5 * 10**8):
        fields = {"parameters": parameters, "bytes_per_parameter": 28}
        yield Case("adamw", "optimizer", fields)


def convolution(small: bool) -> Iterator[Case]:
    """Layers of ResNet-50 and VGG: forward, and the gradients of input and weights."""
    shapes = (
        # channels in and out, side of the filter, side of the input, stride
        (3, 64, 7, 224, 2),
        (64, 64, 1, 56, 1),
        (64, 64, 3, 56, 1),
        (256, 64, 1, 56, 1),
        (128, 128, 3, 28, 1),
        (256, 512, 1, 56, 2),
        (256, 256, 3, 14, 1),
        (1024, 256, 1, 14, 1),
        (512, 512, 3, 7, 1),
        (512, 2048, 1, 7, 1),
        (64, 128, 3, 112, 1),
        (256, 256, 3, 56, 1),
        (512, 512, 3, 28, 1),
    )
    every = [(batch, *shape) for batch in (32, 128) for shape in shapes]
    for batch, inputs, outputs, kernel, side, stride in (
        [(2, 4, 4, 3, 8, 1)] if small else _shuffled(every)
    ):
        out = (side + 2 * (kernel // 2) - kernel) // stride + 1
        for dtype, direction in itertools.product(
            ("bf16", "tf32", "fp32"), ("forward", "input", "weight")
        ):
            if inputs == 3 and direction == "input":
                continue  # images have no gradient
            fields = {
                "batch": batch,
                "inputs": inputs,
                "outputs": outputs,
                "height": out,
                "width": out,
                "kernel": kernel,
                "stride": stride,
                "direction": direction,
                "dtype": dtype,
            }
            yield Case("conv2d", "convolution", fields, {"side": side})


def copies(small: bool) -> Iterator[Case]:
    """Copies inside the GPU and to and from pinned memory, and fills."""
    for size in (1024,) if small else tuple(2**power for power in range(10, 32, 2)):
        yield Case("copy", "copy", {"bytes": size, "path": "device"})
        yield Case("fill", "copy", {"bytes": size, "path": "fill"})
        yield Case("copy to device", "copy", {"bytes": size, "path": "host"})
        yield Case("copy to host", "copy", {"bytes": size, "path": "host"})


SWEEPS = {
    "gemm": gemm,
    "attention": attention,
    "reduction": reduction,
    "elementwise": elementwise,
    "loss": loss,
    "embedding": embedding,
    "optimizer": optimizer,
    "convolution": convolution,
    "copies": copies,
}
"""Each fills a table of its own."""

DESCRIPTION = (
    *("dtype", "m", "n", "k", "batch", "output", "heads", "kv_heads", "queries", "keys"),
    *("head_size", "value_size", "causal", "backward", "rows", "columns", "kind", "bytes"),
    *("lookups", "width", "entries", "pooling", "parameters", "bytes_per_parameter", "inputs"),
    *("outputs", "height", "kernel", "stride", "direction", "path"),
)
"""Columns of a table that hold descriptions; those a family does not have stay empty."""

COLUMNS = (
    *("gpu", "family", "operation", *DESCRIPTION),
    *("median_us", "p10_us", "p90_us", "repeats"),
)


def _shuffled(items: Any) -> list[Any]:
    found = sorted(items)
    random.Random(1).shuffle(found)
    return found
