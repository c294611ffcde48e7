"""The bias behind the experts' second product, scaled by the probabilities of their tokens.

Megatron-LM adds it expert by expert (``megatron/core/transformer/moe/experts.py``,
`TEGroupedMLP._apply_bias`): ``torch.cat([t + b * p for t, b, p in zip(...)]).to(t.dtype)``. The
probabilities are fp32, so that the products, the sums and what is joined of them are, too. The bias
of the first product is added where that ends.
"""

from __future__ import annotations

from mpisim.kernels.operations import BYTES, Elementwise

from ..operators import Compute, Operator
from .routing import Routing
from .shapes import Shapes

__all__ = ["scaled_bias"]

FP32 = BYTES["fp32"]


def scaled_bias(s: Shapes, routing: Routing) -> Operator:
    """Return what PyTorch launches for it, forward and backward.

    Backward the gradient of each expert's sum is that of its results, rounded; times the
    probabilities and added up over the tokens it is that of the bias, times the bias and added up
    over the features that of the probabilities.
    """
    size, e, each = routing.rows * s.model.hidden, s.element, routing.experts

    def kernel(what: str, traffic: int, launches: int = 1) -> Compute:
        return Compute(f"experts bias {what}", Elementwise(traffic * size), launches=launches)

    return Operator(
        "experts bias",
        (
            kernel("product", FP32, each),
            kernel("sum", e + 2 * FP32, each),
            kernel("concatenation", 2 * FP32),
            kernel("rounding", FP32 + e),
        ),
        (
            kernel("rounding backward", e + FP32),
            kernel("sum backward", FP32 + e, each),
            kernel("product backward", 2 * FP32, each),
            kernel("gradient", FP32, each),
            kernel("probability product", 2 * FP32, each),
            kernel("probability gradient", FP32, each),
            kernel("split backward", 2 * e),
        ),
    )
