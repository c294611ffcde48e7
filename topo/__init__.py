"""What connects GPUs: fabrics, routes and the collectives that run on them.

``Network``, ``SharedNetwork``, ``Price``
    What a model of the network offers: prices of communications, and the links they load.
``rate_of(bytes_per_second)``, ``class_of(network, members)``
    Rates as integers; the class of one communicator.
``AlphaBeta``
    The cost of a communication as latency and bandwidth.
``Cluster``, ``find_cluster(name_or_path)``, ``cluster_names()``
    Which GPUs stand together in a node, and the numbers of their links with error bars.
``Topology``, ``read_topology(path)``
    GPUs, switches, links and routes as arrays; from a cluster (``Cluster.topology``) or a file.
"""

from .alpha_beta import AlphaBeta
from .cluster import Cluster, cluster_names, find_cluster
from .network import Network, Price, SharedNetwork, class_of, rate_of
from .topology import Topology
from .topology_files import read_topology

__all__ = [
    "AlphaBeta",
    "Cluster",
    "Network",
    "Price",
    "SharedNetwork",
    "Topology",
    "class_of",
    "cluster_names",
    "find_cluster",
    "rate_of",
    "read_topology",
]
