"""Transformer-XL (arXiv:1901.02860): attention over a memory, and a softmax in clusters.

As in github:NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL. A token also
attends to the hidden states of the segment before (``mem_transformer.py``,
`RelPartialLearnableMultiHeadAttn`): these are put before the segment's, queries, keys and values
are made of all of them, and the queries of the memory are thrown away. Scores are the sum of two
products, with keys and with keys of relative positions, of which the second is shifted row by row;
they are not dropped out (``dropatt: 0.0`` of its configurations).

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

from ..operators import Await, Compute, Operator, Parameter, Task
from .attention_shape import AttentionShape
from .pointwise import MASK_BYTES, dropout, dropout_add, elementwise, norm
from .precision import accumulate_gradient
from .shapes import Shapes
from .tensor_parallel import column_linear, linear, row_linear

__all__ = ["clustered_embedding", "clustered_scores", "memory_attention"]

INDEX = 8
"""Bytes of an int64."""


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
    forward += [product("context", q, size, k), kernel("transposition", 2, queries)]
    backward: list[Task] = [
        kernel("transposition backward", 2, queries),
        product("probabilities gradient", q, k, size),
        product("values gradient", k, size, q),
    ]
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
    return Operator("attention", tuple(forward), tuple(backward), saved=e * scores)


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
        table = Parameter(f"{name} weight", words * width, rows=words)
        found.append(Operator(name, (Compute(name, lookup),), tuple(backward), (table,)))
        if width < h:
            found.append(linear(s, f"{name} matrix", width, h, tokens=tokens))
            found.append(_put(f"{name} rows", e * tokens * h))
    if s.model.dropout:
        found.append(dropout(s, "embedding dropout", s.tokens * h))
    return tuple(found)


def clustered_scores(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → loss: scores of the first cluster, of others for the tokens among them.

    The loss of a token is picked from the logarithms of the first cluster's softmax, whose rows are
    taken out for the tokens of each cluster by themselves, and from those of its own cluster. The
    CPU waits to know how many tokens each cluster has.

    Parameters
    ----------
    s : Shapes
    """
    model, h, e = s.model, s.model.hidden, s.element_size
    found: list[Operator] = []
    clusters = tuple(_clusters(s))
    entries = clusters[0][0] + len(model.cutoffs)
    first = s.tokens * entries
    if model.cutoff_divisor == 1:
        found += [_slice(s, i, words) for i, (words, _, _) in enumerate(clusters)]
    found += _cluster_scores(s, 0, entries, h, s.tokens)
    found.append(_log_softmax(s, 0, entries, s.tokens))
    for i, (words, width, tokens) in enumerate(clusters):
        name, rows = f"logits {i}", e * tokens * entries
        find = elementwise(f"{name} tokens of the cluster", (INDEX + MASK_BYTES) * s.tokens)
        gradients = [
            Compute(f"{name} picked gradient", Copy(rows, "fill")),
            Compute(f"{name} rows gradient", Copy(e * first, "fill")),
            elementwise(f"{name} rows backward", 3 * rows),
        ]
        if i < len(clusters) - 1:  # the last cluster's gradient is the first there is
            gradients.append(elementwise(f"{name} rows gradient sum", 3 * e * first))
        forward = (
            find,
            Await(f"wait for {find.name}", find.name),
            elementwise(f"{name} rows", 2 * rows),
        )
        found.append(Operator(f"{name} rows", forward, tuple(gradients)))
        if i:
            found.append(_put(f"{name} tokens", e * tokens * h))
            found += _cluster_scores(s, i, words, width, tokens)
            found.append(_log_softmax(s, i, words, tokens))
    return tuple(found)


def _cluster_scores(s: Shapes, i: int, entries: int, width: int, tokens: int) -> Iterator[Operator]:
    """Hidden states of `tokens` tokens → scores of a cluster's entries."""
    name = f"logits {i}"
    if width < s.model.hidden:
        yield linear(s, f"{name} matrix", s.model.hidden, width, tokens=tokens)
    product = linear(s, name, width, entries, tokens=tokens, quantised=False)
    yield replace(product, parameters=())


def _log_softmax(s: Shapes, i: int, entries: int, tokens: int) -> Operator:
    """Scores → logarithms of their softmax, of which the loss picks one a token."""
    size = s.element_size * tokens * entries
    name = f"logits {i} log-softmax"
    backward: list[Task] = [
        Compute(f"{name} backward", Softmax(tokens, entries, True, s.storage_format))
    ]
    if i:  # of the first cluster's rows see `clustered_scores`
        backward.insert(0, Compute(f"{name} gradient", Copy(size, "fill")))
    return Operator(
        name,
        (Compute(name, Softmax(tokens, entries, dtype=s.storage_format)),),
        tuple(backward),
        saved=size,
        alive=(2 * size, 2 * size),
    )


def _slice(s: Shapes, i: int, words: int) -> Operator:
    """A cluster's part of the one matrix of all words: backward zeros around it, added up."""
    whole = s.element_size * s.model.vocab * s.model.hidden
    part = s.element_size * words * s.model.hidden
    name = f"logits {i} words"
    forward = () if i else (elementwise(f"{name} concatenation", 2 * part),)
    backward = (
        Compute(f"{name} gradient", Copy(whole, "fill"), weight=True),
        replace(elementwise(f"{name} backward", 2 * part), weight=True),
        replace(elementwise(f"{name} gradient sum", 3 * whole), weight=True),
    )
    return Operator(name, forward, backward)


def _put(name: str, size: int) -> Operator:
    """Name, elements → operator that takes rows out of a tensor, or puts them into one."""
    return Operator(
        name, (elementwise(name, 2 * size),), (elementwise(f"{name} backward", 2 * size),)
    )
