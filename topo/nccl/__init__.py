"""Model of NCCL: operation, group, bytes → algorithm, protocol, channels and time.

Read in this order.

``constants``
    NCCL's constants by version and architecture (``data/nccl.toml``).
``settings``
    `Settings`: the variables ``NCCL_*`` that change a time.
``system``, ``shape``
    `System`: a machine as NCCL sees it. `Shape`: number of ranks of a group on each node.
``link_bandwidths``, ``factors``
    Bandwidths of a group's links. `Factors`: measured over nominal speed of a platform.
``channels``
    NCCL's channel search: how many channels, and how fast each is.
``tuning``
    The tuner's formulas of latency and bandwidth.
``rccl``
    What AMD's library has in their place (``data/rccl.toml``).
``enabled``
    Algorithms and protocols that may run.
``channel_payload``
    Bandwidth, minimum bytes and buffers of one channel.
``candidate``, ``candidates``
    One algorithm with one protocol: the tuner's estimate, and the time to expect. All that are
    enabled, with the numbers of both.
``point_to_point``
    Sends and receives, and all-to-all, gather and scatter that are made of them.
``model``
    `Nccl`: the choice and its time. The module that others use.
``bottleneck``
    The part of the hardware that limits a communication.
"""

from .factors import Factors
from .model import Choice, Nccl
from .settings import Settings
from .shape import Shape
from .system import System, version_of

__all__ = ["Choice", "Factors", "Nccl", "Settings", "Shape", "System", "version_of"]
