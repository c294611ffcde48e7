"""Token dispatch and combine as matrix products with one-hot masks (GShard, arXiv:2006.16668).

MaxText with ``capacity_factor`` and without ``sparse_matmul`` (MaxText/layers/moe.py,
`dense_matmul` and `generate_masks`): every expert takes as many tokens of a sequence, the capacity.
A mask has a one where a token has a place, of a sequence tokens × experts × capacity numbers; one
with ones takes tokens to their places (``BSM,BSEC -> EBCM``), one with probabilities brings results
back (``EBCM,BSEC -> BSM``). Both are products of the whole matrix, 2 × tokens × places × hidden
operations for a sequence, and so quadratic in its length. Between ranks of experts places travel by
all-to-all. Backward the tokens' and the results' gradients are such products, and that of the
probabilities' mask is one more.
"""

from __future__ import annotations

from mpisim.kernels.operations import Gemm

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Task
from .pointwise import elementwise
from .shapes import Shapes

__all__ = ["one_hot_combine", "one_hot_dispatch"]


def one_hot_dispatch(s: Shapes, tokens: int, places: int) -> Operator:
    """Tokens where they were routed → places of their experts, with the masks made before.

    Parameters
    ----------
    s : Shapes
    tokens, places : int
        Of all sequences of this rank.
    """
    h, e = s.model.hidden, s.element_size
    masks = 2 * e * (tokens // s.batch) * places  # one to dispatch with, one to combine with
    forward: list[Task] = [
        elementwise("dispatch masks", masks),
        Compute("dispatch", _product(s, places, h, tokens)),
        *_exchange(s, "dispatch", places),
    ]
    backward: list[Task] = [
        *_exchange(s, "dispatch gradient", places),
        Compute("dispatch backward", _product(s, tokens, h, places)),
        elementwise("dispatch masks backward", masks // 2),
    ]
    return Operator("dispatch", tuple(forward), tuple(backward), saved=masks)


def one_hot_combine(s: Shapes, tokens: int, places: int) -> Operator:
    """Results of the experts → their sums where the tokens were routed.

    Parameters
    ----------
    s : Shapes
    tokens, places : int
        As of `one_hot_dispatch`.
    """
    h, e = s.model.hidden, s.element_size
    forward: list[Task] = [
        *_exchange(s, "combine", places),
        Compute("combine", _product(s, tokens, h, places)),
    ]
    backward: list[Task] = [
        Compute("combine mask gradient", _product(s, tokens, places // s.batch, h, apart=False)),
        Compute("combine backward", _product(s, places, h, tokens)),
        *_exchange(s, "combine gradient", places),
    ]
    return Operator("combine", tuple(forward), tuple(backward), saved=e * places * h)


def _product(s: Shapes, m: int, n: int, k: int, *, apart: bool = True) -> Gemm:
    """A product for each sequence; `m`, and `k` if `apart`, are of all sequences."""
    inner = k // s.batch if apart else k
    return Gemm(m // s.batch, n, inner, s.batch, dtype=s.matmul_format, output=s.storage_format)


def _exchange(s: Shapes, name: str, places: int) -> tuple[Task, ...]:
    if s.grid.ep == 1:
        return ()
    size = s.element_size * places * s.model.hidden
    return (Communicate(f"{name} all-to-all", Operation.ALL_TO_ALL, "ep", size),)
