"""Convolutional networks, as torchvision builds them.

``cnn_network(model, plan, grid)``
    The layers of a ResNet, SSD, VGG, DenseNet or U-Net in one rank's shapes.

Read `image_operators` (convolution, normalisation, pooling; what PyTorch launches for each), then
`resnet` and `networks`, where a further family is added. Linear layers, losses and tensor
parallelism are those of :mod:`mpisim.workloads.eager_modules`.
"""

from .networks import cnn_network

__all__ = ["cnn_network"]
