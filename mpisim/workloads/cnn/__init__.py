"""Convolutional networks, as torchvision builds them.

``cnn_network(model, plan, grid)``
    The layers of a ResNet, VGG or DenseNet in one rank's shapes.
"""

from .network import cnn_network

__all__ = ["cnn_network"]
