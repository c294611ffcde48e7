"""Cluster topology, collective, NCCL's algorithm → price (time) of a communication and its links.

Read in this order.

The machine
    ``topology`` (`Topology`: nodes, links and routes as arrays), ``routes`` (shortest-time routes
    of any graph), ``nodes`` (what is in a node), ``node_graph`` (its links), ``fabrics/`` (what
    joins nodes), ``assemble`` (nodes and fabric → topology), ``topology_files`` (a graph in TOML or
    GraphML → topology), ``changes`` (links slowed or cut), ``cluster`` (`Cluster`: the file of a
    machine), ``speeds``, ``scaled`` (a cluster with other bandwidths, by value or by factor),
    ``units``.
Collectives on links
    ``traffic/``: bytes and hops of each algorithm, summed over links, and what the links allow.
NCCL
    ``nccl/``: choice of algorithm and protocol, and the expected time; ``nccl_system``: cluster →
    the GPUs, NICs and bandwidths that NCCL sees.
Prices, for the engine
    ``network`` (`Network`, `SharedNetwork`, `Price`: the interface), ``algorithm_patterns`` (a
    choice of NCCL → the traffic that carries it out), ``group_placement`` (groups with one price),
    ``nccl_network`` (NCCL on the links of a topology), ``link_library`` (collectives without NICs),
    ``circuits`` (optical circuits that a communication sets up), ``alpha_beta``,
    ``elasticities`` (derivatives of prices by bandwidths and latency).
Packets
    ``packets/``: flows packet by packet, with queues, ECN, DCQCN, PFC and ECMP.
Measurements
    ``collectives/``: measured collectives, and the calibration fitted to them.
For people
    ``bounds`` (cuts, bisection, lower bounds), ``explain``, ``flows`` (the flows that a
    communication consists of), ``describe``; ``picture_contents``, ``picture_places``, ``draw``.

To add a fabric, see ``fabrics``; a kind of node, ``nodes``; an algorithm of a collective,
``traffic``; a network model, implement `Network` and name it in ``mpisim.experiment.NetworkChoice``
and ``mpisim.prediction.network``.
"""

from .alpha_beta import AlphaBeta
from .cluster import Cluster, cluster_names, find_cluster
from .network import Network, Price, SharedNetwork, class_of, rate_of
from .topology import Topology

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
]
