"""Traced step → its scans over states, around which ranks of a context exchange tokens for heads.

Scans (Mamba-2, arXiv:2405.21060, section 6; the gated delta rule, arXiv:2412.06464) are products in
batches between two matrices, one for each chunk of tokens and head or group of heads. Of a chunk of
L tokens they are of three kinds:

    pairs    L × L, or half of them where a mask leaves no more
    write    features × features, summed over the L tokens: a state
    read     L × features, of what was written, and mostly of pairs too

Attention in chunks or windows of L tokens has pairs and, L × features summed over L, what fits both
other kinds, but in one shape: it writes no state whose shape its reading does not have. Batches of
adapters have no pairs, those of experts have weights. What the shapes do not show to be a scan gets
no exchange, which results say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..experiment import Plan
from ..kernels.operations import Gemm
from .step import TracedStep

__all__ = ["context_not_modelled", "scans_of"]


class _Between(NamedTuple):
    """Products in batches between two matrices: numbers of operators, and the products."""

    matrix: int
    last: int
    products: tuple[Gemm, ...]


def scans_of(step: TracedStep) -> frozenset[int]:
    """Step → numbers of operators behind which ranks of a context exchange tokens for heads.

    What the matrix before a scan makes goes to the rank of each head, what the last product of the
    scan makes back to the rank of each token.

    Parameters
    ----------
    step : TracedStep
    """
    scans = [each for each in _between(step) if _is_scan(each.products, step)]
    return frozenset(number for each in scans for number in (each.matrix, each.last))


def context_not_modelled(step: TracedStep, plan: Plan) -> list[str]:
    """Step, plan → what of sharing sequences is not modelled, lines for people.

    Parameters
    ----------
    step : TracedStep
    plan : Plan
    """
    if plan.cp == 1:
        return []
    others = [each for each in _between(step) if not _is_scan(each.products, step)]
    if not others:
        return []
    return [
        "what ranks of a context exchange for products in batches, if these work along the "
        "sequence, as attention in chunks does: their shapes show no scan over states (first in "
        f"{step.operators[others[0].last].layer})"
    ]


def _between(step: TracedStep) -> Iterator[_Between]:
    """Go through products in batches between two matrices, but for those of experts' weights."""
    matrix = last = -1
    batched: list[Gemm] = []
    for number, each in enumerate(step.operators):
        products = [kernel for kernel in each.products() if isinstance(kernel, Gemm)]
        weighs = any(len(one.shape) > 2 for one in each.parameters)
        found = [] if weighs else [kernel for kernel in products if kernel.batch > 1]
        if found:
            last = number
            batched += found
        elif products:
            if matrix >= 0 and batched:
                yield _Between(matrix, last, tuple(batched))
            matrix, batched = number, []


def _is_scan(products: Sequence[Gemm], step: TracedStep) -> bool:
    """Whether products are those of a scan, for chunks of some length and batches of one size."""
    if step.sequence is None:
        return False
    for length in {each.k for each in products}:
        chunks, rest = divmod(step.sequence, length)
        if rest or chunks < 2:
            continue
        for batch in {each.batch for each in products}:
            own = [each for each in products if each.batch == batch]
            if batch % (step.batch * chunks) == 0 and _scans(own, length):
                return True
    return False


def _scans(products: Sequence[Gemm], length: int) -> bool:
    """Whether products have pairs of so many tokens, and write and read states in other shapes."""
    tokens = {length, length // 2}
    pairs = any(length in (one.m, one.n) and {one.m, one.n} <= tokens for one in products)
    writes = {_shape(one) for one in products if one.k == length and not {one.m, one.n} <= tokens}
    reads = {
        _shape(one) for one in products if length in (one.m, one.n) and not {one.m, one.n} <= tokens
    }
    return pairs and any(write != read for write in writes for read in reads)


def _shape(product: Gemm) -> tuple[int, int, int]:
    """Return the shape of a product, the same for its transpose."""
    return min(product.m, product.n), max(product.m, product.n), product.k
