"""Batch normalisation that is fused with what is around it (``plan.norm_fusion``).

"activation"
    ReLU, and the sum of two ways before it, belong to the kernel of the normalisation
    (``CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION`` of cudnnBatchNormalizationForwardTrainingEx; MXNet's
    fuse_bn_relu and fuse_bn_add_relu). Backward it also writes the gradient of the other way.
"convolution"
    A convolution adds up the statistics of what it writes, and the next one normalises what it
    reads and applies ReLU (cuDNN's CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS; MXNet's
    NormConvolution). Forward a kernel is left where two ways meet, and before a pool; backward the
    normalisation.

Masks of ReLU, a bit an element, are neglected.
"""

from __future__ import annotations

from dataclasses import replace

from ..eager_modules import stream
from ..operators import Operator
from .modules import Image, Modules

__all__ = ["joined", "normalised"]


def normalised(
    m: Modules, name: str, relu: str, image: Image, *, pooled: bool = False
) -> list[Operator]:
    """Return normalisation and ReLU of a convolution's result.

    Parameters
    ----------
    m : Modules
    name, relu : str
    image : Image
    pooled : bool
        Whether what follows is no convolution.
    """
    norm = m.batch_norm(name, image)
    if m.norm_fusion == "none":
        return [norm, m.relu(relu, image)]
    if m.norm_fusion == "activation":
        return [replace(norm, forward=norm.forward[1:])]
    forward = (stream(name, 2 * m.bytes(image)),) if pooled else ()
    return [replace(norm, forward=forward)]


def joined(m: Modules, name: str, relu: str, image: Image, other: list[Operator]) -> list[Operator]:
    """Return normalisation, the sum with what came another way, and ReLU.

    Parameters
    ----------
    m : Modules
    name, relu : str
    image : Image
    other : list of Operator
        That way: nothing, or a convolution and its normalisation.
    """
    norm = m.batch_norm(name, image)
    if m.norm_fusion == "none":
        return [norm, *other, m.add(image), m.relu(relu, image)]
    size = m.bytes(image)
    backward = (*norm.backward, stream("residual gradient", size))
    if m.norm_fusion == "activation":
        forward = (*norm.forward[1:], stream("residual", size))
        return [*other, replace(norm, forward=forward, backward=backward)]
    if other:
        *convolution, last = other
        other = [*convolution, replace(last, forward=())]
    forward = (stream("addition", 3 * size),)
    return [*other, replace(norm, forward=forward, backward=backward)]
