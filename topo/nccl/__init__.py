"""NCCL's model: which algorithm and protocol it takes, and how long that lasts. Read in this order.

``constants``
    NCCL's constants by version and architecture (``data/nccl.toml``).
``settings``
    `Settings`: the variables ``NCCL_*`` that change a time.
``system``, ``shape``
    `System`: what NCCL sees of a machine. `Shape`: how many ranks of a group are on which nodes.
``link_bandwidths``, ``factors``
    What links carry of a group. By how much a platform differs: `Factors`.
``channels``
    NCCL's channel search: how many channels, and how fast each is.
``tuning``
    The tuner's formulas of latency and bandwidth.
``enabled``
    Which algorithms and protocols may run.
``channel_payload``
    What one channel moves, needs and keeps in its buffers.
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
