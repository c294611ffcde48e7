"""Operators of a traced step → its layers, weights that two share, and the stages of a pipeline.

A layer is what a pipeline is cut between, what is recomputed, and what FSDP gathers at a time.
Where the trace has modules, a layer is a block of the model: the outermost kind of module that is
there several times and holds several operators with parameters (``TransformerLayer``,
``Bottleneck``); what comes before the first is its embedding, and what comes behind the last its
head. Where there is no such module, every operator with a weight of two dimensions or more begins a
layer, and all are blocks.

The longest stage sets the pace of a pipeline, so that is made as short as consecutive layers allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..kernels.operations import Embedding, Gemm
from .step import TracedOperator

__all__ = ["balanced", "layer_names", "with_tied"]

CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
"""Modules that say nothing of what they hold."""

Names = tuple[list[str], tuple[str, ...], tuple[str, ...]]


def layer_names(operators: Sequence[TracedOperator], paths: Sequence[tuple[str, ...]]) -> Names:
    """Operators, module paths → layer of each; the layers that are embedding and head.

    Parameters
    ----------
    operators : sequence of TracedOperator
        In the order of the forward pass.
    paths : sequence of tuple of str
        The modules around each, the outermost first; all empty where none was recorded.

    Returns
    -------
    layers : list of str
    embedding, head : tuple of str
    """
    kind = _repeated(operators, paths)
    return _by_weights(operators) if kind is None else _by_modules(paths, kind)


def with_tied(operators: Sequence[TracedOperator]) -> list[TracedOperator]:
    """Operators → operators, with the weight marked that embedding and output layer share.

    The gradient of a tied weight is accumulated once, after that of the embedding, so that the
    recorded backward pass of the output layer shows no parameter. An embedding beside a product
    that does show the same parameter shares it with that: predictions of several tokens have one
    output layer.

    Parameters
    ----------
    operators : sequence of TracedOperator
        Of one step, in the order of the forward pass.

    Returns
    -------
    list of TracedOperator
        In the same order; ``tied`` is set on the embedding and on the product of its sizes that
        follows it without a parameter of its own.
    """
    heads = {
        one.shape
        for each in operators
        if any(isinstance(kernel, Gemm) for kernel in each.products())
        for one in each.parameters
    }
    tables = {
        (kernel.entries, kernel.width): i
        for i, each in enumerate(operators)
        for kernel in each.products()
        if isinstance(kernel, Embedding)
        and (kernel.entries, kernel.width) not in heads
        and any(one.shape == (kernel.entries, kernel.width) for one in each.parameters)
    }
    found = list(operators)
    for i, each in enumerate(operators):
        shapes = {one.shape for one in each.parameters if len(one.shape) > 1}
        for kernel in each.products():
            shape = (getattr(kernel, "n", 0), getattr(kernel, "k", 0))
            if isinstance(kernel, Gemm) and not shapes and tables.get(shape, i) < i:
                found[i] = replace(each, tied=shape)
                first = tables[shape]
                found[first] = replace(found[first], tied=shape)
    return _with_lookups(found)


def _with_lookups(operators: list[TracedOperator]) -> list[TracedOperator]:
    """Return the operators with the table of each that looks up in one of another layer."""
    found = list(operators)
    tables: dict[tuple[int, int], int] = {}
    for i, each in enumerate(operators):
        for kernel in each.products():
            if not isinstance(kernel, Embedding):
                continue
            shape = (kernel.entries, kernel.width)
            if any(one.shape == shape for one in each.parameters):
                tables.setdefault(shape, i)
            elif shape in tables and not any(len(one.shape) > 1 for one in each.parameters):
                for at in (tables[shape], i):
                    found[at] = replace(found[at], tied=shape)
    return found


def _kind(module: str) -> str:
    """Module → its class.

    Examples
    --------
    >>> _kind("Bottleneck_3")
    'Bottleneck'
    """
    name, _, number = module.rpartition("_")
    return name if name and number.isdigit() else module


def _repeated(operators: Sequence[TracedOperator], paths: Sequence[tuple[str, ...]]) -> str | None:
    """Return the outermost kind of module that is there several times and has parameters.

    A kind lies as deep as most of its modules: a head may be of the kind of matrices in layers.
    """
    depths: dict[str, Counter[int]] = {}
    instances: dict[str, Counter[str]] = {}
    for operator, path in zip(operators, paths, strict=True):
        if not operator.parameters:
            continue
        for level, module in enumerate(path):
            kind = _kind(module)
            if kind in CONTAINERS:
                continue
            depths.setdefault(kind, Counter())[level] += 1
            instances.setdefault(kind, Counter())[module] += 1
    depth = {
        kind: min(found, key=lambda level: (-found[level], level)) for kind, found in depths.items()
    }
    several = [
        kind for kind, found in instances.items() if len(found) > 1 and max(found.values()) > 1
    ]
    return min(several, key=lambda kind: (depth[kind], -len(instances[kind])), default=None)


def _by_modules(paths: Sequence[tuple[str, ...]], kind: str) -> Names:
    blocks = [next((m for m in path if _kind(m) == kind), None) for path in paths]
    inside = [i for i, block in enumerate(blocks) if block is not None]
    first, last = inside[0], inside[-1]
    layers: list[str] = []
    current = ""
    for i, block in enumerate(blocks):
        if i < first:
            layers.append("embedding")
        elif i > last:
            layers.append("head")
        else:  # what lies between two blocks goes with the one before
            current = current if block is None else block
            layers.append(current)
    return (
        layers,
        ("embedding",) if first else (),
        ("head",) if last + 1 < len(layers) else (),
    )


def _by_weights(operators: Sequence[TracedOperator]) -> Names:
    layers: list[str] = []
    count = 0
    for operator in operators:
        count += any(len(each.shape) > 1 for each in operator.parameters)
        layers.append(f"layer {max(count, 1)}")
    return layers, (), ()


def balanced(times: Sequence[int], parts: int) -> list[int]:
    """Times of layers → number of layers of each stage, so that the longest is shortest.

    Parameters
    ----------
    times : sequence of int
        Of each layer.
    parts : int
        At most as many as there are layers; none is left empty.

    Examples
    --------
    >>> balanced([4, 1, 1, 2, 2, 2], 3)
    [1, 3, 2]
    """
    n = len(times)
    sums = [0, *accumulate(times)]
    # best[p][i]: the longest of p parts of the first i layers, at its shortest.
    best = [[0] + [sums[-1] + 1] * n]
    cut: list[list[int]] = [[0] * (n + 1)]
    for part in range(1, parts + 1):
        row, where = [sums[-1] + 1] * (n + 1), [0] * (n + 1)
        for i in range(part, n + 1):
            for j in range(part - 1, i):
                longest = max(best[-1][j], sums[i] - sums[j])
                if longest < row[i]:
                    row[i], where[i] = longest, j
        best.append(row)
        cut.append(where)
    counts, end = [], n
    for part in range(parts, 0, -1):
        begin = cut[part][end]
        counts.append(end - begin)
        end = begin
    return counts[::-1]
