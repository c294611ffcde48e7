"""``torch.autocast``: which tensors of a step are in fp32, and the casts between them and products.

Parameters stay in fp32, and so do their gradients. By the lists of aten/src/ATen/autocast_mode.h
(github:pytorch/pytorch; docs.pytorch.org, Automatic Mixed Precision, "Autocast Op Reference"):

products
    Linear layers, matmul, convolutions and scaled_dot_product_attention cast what they read to 16
    bits. Copies of parameters are kept for the rest of the forward (``cached_cast``) and for the
    backward, one kernel a parameter, biases included; their gradients are cast to fp32, another.
    Inputs are not kept: three matrices with one input in fp32 cast it three times.
norms, softmax
    Run in fp32. So embeddings, which are on no list and read fp32 tables, and the residual stream
    are in fp32: a sum has the wider type of its operands. Backward the gradient of the stream is
    cast for each branch, that of a norm's result from 16 bits.
everything else
    Runs in the type it is given: activations and dropout of a matrix's features in 16 bits. A
    function that is composed of others comes to fp32 if one of these is on the list (``pow`` of
    GELU's approximation), and rotary positions where sines are in the type of the stream (Hugging
    Face). F.cross_entropy names the type of its log_softmax, which is why that stays in 16 bits,
    and its result is cast for nll_loss (cross_entropy_loss of aten/src/ATen/native/LossNLL.cpp).

torch.compile has the same types; casts of activations are part of the kernels beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpisim.kernels.operations import BYTES, Elementwise

from ..operators import Compute
from .shapes import Shapes

__all__ = ["autocast_copies", "autocast_copy", "autocast_kept"]

FP32 = BYTES["fp32"]


def autocast_copy(s: Shapes, name: str, elements: int) -> Compute:
    """Tensor in fp32 or 16 bits → its copy in the other of the two.

    Parameters
    ----------
    s : Shapes
    name : str
        Of the tensor.
    elements : int
    """
    return Compute(f"{name} cast", Elementwise((FP32 + s.element_size) * elements))


def autocast_copies(s: Shapes, parameters: Mapping[str, int]) -> tuple[Compute, ...]:
    """Parameters of a product → their copies in 16 bits; none without autocast.

    Parameters
    ----------
    s : Shapes
    parameters : mapping of str to int
        Elements by name; 0 for a parameter that is not there.
    """
    if not s.autocast:
        return ()
    return tuple(autocast_copy(s, name, size) for name, size in parameters.items() if size)


def autocast_kept(s: Shapes, elements: int) -> int:
    """Elements of a matrix → bytes of the copy that the forward keeps for the backward.

    Parameters
    ----------
    s : Shapes
    elements : int
    """
    return s.element_size * elements if s.autocast else 0
