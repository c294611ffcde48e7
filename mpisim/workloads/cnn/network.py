"""A convolutional network in the shapes of one rank."""

from __future__ import annotations

from ...experiment.models import Cnn
from ...experiment.plan import Plan
from ..grid import Grid
from ..operators import Network
from .densenet import densenet
from .modules import Modules
from .resnet import resnet
from .vgg import vgg

__all__ = ["cnn_network"]

BUILDERS = {"resnet": resnet, "vgg": vgg, "densenet": densenet}


def cnn_network(model: Cnn, plan: Plan, grid: Grid) -> Network:
    """Return the layers of a CNN as PyTorch runs torchvision's.

    Data and pipeline parallelism leave its shapes alone; for tensor parallelism see
    :mod:`mpisim.workloads.eager_modules`. Parameters are listed as torchvision registers them.

    Parameters
    ----------
    model : Cnn
    plan : Plan
    grid : Grid

    Returns
    -------
    Network
        Its FLOPs are those of convolutions and linear layers, forward and backward; the first
        convolution needs no gradient of its input.

    Raises
    ------
    InputError
        If tp does not divide the outputs of a layer, or the plan asks for what CNNs do not have.
    """
    layers = tuple(BUILDERS[model.family](Modules(plan, grid), model))
    flops = sum(step.kernel.flops for layer in layers for step in layer.kernels())
    return Network(layers, grid.tp * flops, plan.micro_batch)
