"""Transformer-XL (arXiv:1901.02860): attention over a memory, and a softmax in clusters.

As in github:NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL. A token also
attends to the hidden states of the segment before (``mem_transformer.py``,
`RelPartialLearnableMultiHeadAttn`): these are put before the segment's, queries, keys and values
are made of all of them, and the queries of the memory are thrown away. Scores are the sum of two
products, with keys and with keys of relative positions, of which the second is shifted row by row.

Words are sorted by frequency and cut into clusters (``proj_adaptive_softmax.py``,
arXiv:1609.04309): of every token the scores of the first cluster and of one entry for each of the
others are computed, of tokens in another cluster its scores, too. Vectors of rarer clusters may be
narrower, with a matrix to the hidden size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from mpisim.kernels.operations import Copy, Embedding, Gemm, Softmax

from ..operators import Compute, Operator, Parameter, Task
from .pointwise import MASK_BYTES, dropout, dropout_add, dropout_kernels, elementwise, norm
from .precision import accumulate_gradient
from .shapes import AttentionShape, Shapes
from .tensor_parallel import column_linear, linear, row_linear

__all__ = ["clustered_embedding", "clustered_scores", "memory_attention"]


def memory_attention(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → hidden states: attention to the segment and the one before, residual."""
    model, e = s.model, s.element_size
    shape = AttentionShape.of(s)
    seen = s.with_length(s.length + model.memory)
    joined = 2 * e * seen.tokens * model.hidden
    width = shape.query_width + shape.key_value_width
    return (
        norm(s, "attention norm", s.tokens, model.hidden, residual=True),
        Operator(
            "memory",
            (elementwise("memory concatenation", joined),),
            (elementwise("memory slice backward", joined // 2),),
        ),
        column_linear(seen, "qkv", model.hidden, width, bias=model.has_qkv_bias),
        linear(
            s,
            "position keys",
            model.hidden,
            shape.query_width,
            tokens=seen.length,
            input_gradient=False,
        ),
        _attention(s, replace(shape, keys=seen.length)),
        row_linear(s, "attention output", shape.output_width, model.hidden),
        dropout_add(s, "attention dropout add", bias=model.bias),
    )


def _attention(s: Shapes, shape: AttentionShape) -> Operator:
    """Queries, keys and values, keys of positions → mixtures of values, with scores in memory."""
    e, q, k, size = s.element_size, shape.queries, shape.keys, shape.head_size
    batch = s.batch * shape.heads
    scores, queries = batch * q * k, batch * q * size
    drops = s.model.dropout

    def product(what: str, m: int, n: int, inner: int, number: int = batch) -> Compute:
        gemm = Gemm(m, n, inner, number, dtype=s.matmul_format, output=s.storage_format)
        return Compute(f"attention {what}", gemm)

    def kernel(what: str, passes: int, elements: int = scores) -> Compute:
        return elementwise(f"attention {what}", passes * e * elements)

    forward: list[Task] = [
        kernel("content bias", 2, queries),
        kernel("position bias", 2, queries),
        product("scores", q, k, size),
        # Positions are the same for all sequences: their products are one for each head.
        product("position scores", s.batch * q, k, size, shape.heads),
        kernel("shift padding", 2),
        kernel("shift slice", 2),
        kernel("sum and scale", 3),
        kernel("mask", 2),
        Compute("attention softmax", Softmax(batch * q, k, dtype=s.storage_format)),
    ]
    if drops:
        forward += dropout_kernels(s, "attention dropout", scores)
    forward.append(product("context", q, size, k))
    forward.append(kernel("transposition", 2, queries))
    backward: list[Task] = [
        kernel("transposition backward", 2, queries),
        product("probabilities gradient", q, k, size),
        product("values gradient", k, size, q),
    ]
    if drops:
        backward += dropout_kernels(s, "attention dropout backward", scores, backward=True)
    backward += [
        Compute("attention softmax backward", Softmax(batch * q, k, True, s.storage_format)),
        kernel("mask backward", 2),
        kernel("scale backward", 2),
        kernel("shift slice backward", 2),
        kernel("shift padding backward", 2),
        product("position queries gradient", s.batch * q, size, k, shape.heads),
        product("position keys gradient", k, size, s.batch * q, shape.heads),
        product("queries gradient", q, size, k),
        product("keys gradient", k, size, q),
        kernel("biases gradient", 2, queries),
        kernel("queries gradient sum", 3, queries),
        kernel("concatenated gradients", 2, batch * (q + 2 * k) * size),
    ]
    kept = 2 * e + MASK_BYTES if drops else e
    return Operator("attention", tuple(forward), tuple(backward), saved=kept * scores)


# --- clusters of words --------------------------------------------------------------------------


def _clusters(s: Shapes) -> Iterator[tuple[int, int, int]]:
    """Words, width of their vectors, and tokens of the batch that are among them."""
    model = s.model
    bounds = (0, *model.cutoffs, model.vocab)
    for i, (first, last) in enumerate(itertools.pairwise(bounds)):
        share = model.cutoff_shares[i - 1] if i else 1 - sum(model.cutoff_shares)
        width = max(1, model.hidden // model.cutoff_divisor**i)
        yield last - first, width, max(1, round(s.tokens * share))


def clustered_embedding(s: Shapes) -> tuple[Operator, ...]:
    """Tokens → hidden states: lookups by cluster, matrices to the hidden size, dropout."""
    h, e = s.model.hidden, s.element_size
    found: list[Operator] = []
    for i, (words, width, tokens) in enumerate(_clusters(s)):
        name = f"embedding {i}"
        lookup = Embedding(tokens, width, words, dtype=s.storage_format)
        backward: list[Task] = [
            Compute(f"{name} gradient fill", Copy(e * words * width, "fill"), weight=True),
            Compute(f"{name} backward", replace(lookup, backward=True), weight=True),
            *accumulate_gradient(s, f"{name} weight", words * width),
        ]
        # The scores' matrix is the same, and its gradient is added to this.
        table = Parameter(f"{name} weight", words * width)
        found.append(Operator(name, (Compute(name, lookup),), tuple(backward), (table,)))
        if width < h:
            found.append(linear(s, f"{name} matrix", width, h, tokens=tokens))
            found.append(_put(f"{name} rows", e * tokens * h))
    if s.model.dropout:
        found.append(dropout(s, "embedding dropout", s.tokens * h))
    return tuple(found)


def clustered_scores(s: Shapes, loss: object) -> tuple[Operator, ...]:
    """Hidden states → loss: scores of the first cluster, of others for the tokens among them.

    Parameters
    ----------
    s : Shapes
    loss : callable
        Sizes → the operator of cross-entropy over `Shapes.vocabulary` words of `Shapes.tokens`
        tokens.
    """
    model, h, e = s.model, s.model.hidden, s.element_size
    found: list[Operator] = []
    for i, (words, width, tokens) in enumerate(_clusters(s)):
        name = f"logits {i}"
        rows = s.tokens if i == 0 else tokens
        entries = words + (len(model.cutoffs) if i == 0 else 0)
        one = replace(model, vocab=entries, cutoffs=(), cutoff_shares=())
        part = replace(
            s, model=one, length=rows, plan=replace(s.plan, micro_batch=1, global_batch=s.grid.dp)
        )
        if i:
            found.append(_put(f"{name} tokens", e * rows * h))
        if width < h:
            found.append(linear(s, f"{name} matrix", h, width, tokens=rows))
        product = linear(s, name, width, entries, tokens=rows, quantised=False)
        found.append(replace(product, parameters=()))
        found.append(replace(loss(part), name=f"{name} loss"))  # type: ignore[operator]
    return tuple(found)


def _put(name: str, size: int) -> Operator:
    """Rows taken out of a tensor, or put into one."""
    return Operator(
        name, (elementwise(name, 2 * size),), (elementwise(f"{name} backward", 2 * size),)
    )
