"""What connects GPUs: fabrics, routes and the collectives that run on them.

``AlphaBeta``
    The cost of a communication as latency and bandwidth.
``Cluster``, ``find_cluster(name_or_path)``, ``cluster_names()``
    Which GPUs stand together in a node, and the numbers of their links with error bars.
"""

from .alpha_beta import AlphaBeta
from .cluster import Cluster, cluster_names, find_cluster

__all__ = ["AlphaBeta", "Cluster", "cluster_names", "find_cluster"]
