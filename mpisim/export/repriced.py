"""Names of hardware and a table of times → a recorded job with other times, and its network."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..kernels import find_gpu
from ..mpi.parallel import collective_errors
from ..operators.measured import MeasuredOperators
from ..prediction.network import network_of
from ..replay import Pricing, Repriced, Repricing, TraceJob, reprice
from ..topo import Network
from ..topo.cluster import find_cluster

__all__ = ["PricedAgain", "price_again"]


class PricedAgain(NamedTuple):
    """A recorded job with other times.

    Attributes
    ----------
    job : TraceJob
    network : Network or None
        Of the cluster; None where communications are as recorded.
    result : Repriced
        What the times rest on.
    lines : list of str
        The same for people.
    """

    job: TraceJob
    network: Network | None
    result: Repriced
    lines: list[str]


def price_again(job: TraceJob, comm: Any, pricing: Pricing) -> PricedAgain:
    """Price a job again. **Collective.**

    Parameters
    ----------
    job : TraceJob
    comm : mpi4py.MPI.Comm
        The processes that read the job.
    pricing : Pricing

    Raises
    ------
    InputError
        If a GPU or a cluster is not known, the table cannot be read, or the job cannot be priced.
    """
    network = None
    with collective_errors(comm):
        cluster = None if pricing.cluster is None else find_cluster(pricing.cluster)
        name = pricing.gpu or (None if cluster is None else cluster.gpu)
        table = pricing.measured
        how = Repricing(
            everything=pricing.price == "all",
            gpu=None if name is None else find_gpu(name),
            recorded_gpu=pricing.recorded_gpu,
            cluster=pricing.cluster or "",
            measured=None if table is None else MeasuredOperators.read(table),
        )
        if cluster is not None:
            network = network_of(cluster, -(-len(job.traces.ranks) // cluster.gpus_per_node))
    changed, result = reprice(job, comm, how)
    return PricedAgain(changed, network, result, result.lines(how))
