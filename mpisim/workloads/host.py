"""Host of the GPUs: its memory, speed of its CPUs at optimizer steps, links to the GPUs.

experiment, ranks ─► `Host` ─► bytes that a rank's CPU reads and writes → ps

Ranks of a node are alike and work at the same time: each has an equal share of the bandwidth of the
CPUs' memory, and of a link that GPUs behind one PCIe switch have in common.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity, picoseconds
from ..base.schema import build
from ..experiment import Experiment, Plan
from ..topo import find_cluster

__all__ = ["BANDWIDTH", "SHARE", "Host", "cluster_host", "host_of"]

FILE = "offload.toml"

BANDWIDTH = "bandwidth of the host's memory"
SHARE = "share of it that the CPU's optimizer reaches"
"""Names of the numbers that what the CPU does is proportional to."""


@frozen
class _Figures:
    bandwidth_share: Quantity
    loop_bandwidth_share: Quantity
    memory_bandwidth: dict[str, Quantity]


@cache
def _figures() -> _Figures:
    return build(_Figures, packaged(FILE), FILE)


@frozen
class Host:
    """The CPUs of a node, or of a tray, with their memory.

    Attributes
    ----------
    memory : Quantity, optional
        Its size, where the cluster states it.
    bandwidth : Quantity
        Of that memory.
    share, loop_share : Quantity
        Share of `bandwidth` that an optimizer on the CPUs reaches: as one kernel, or as a loop of
    operations.
    known : bool
        Whether the cluster states the bandwidth.
    ranks : int
        GPUs of the job that share the host.
    sharers : int
        GPUs that share one link to the host.
    """

    memory: Quantity | None
    bandwidth: Quantity
    share: Quantity
    loop_share: Quantity
    known: bool
    ranks: int
    sharers: int

    def numbers(self, plan: Plan) -> dict[str, Quantity]:
        """Plan → quantities that the rate of its optimizer on the CPUs is proportional to."""
        return {
            BANDWIDTH: self.bandwidth,
            SHARE: self._share(plan),
        }

    def _share(self, plan: Plan) -> Quantity:
        loops = plan.offload.parameters and plan.style(transformer=True) == "fsdp"
        return self.share_of(loops=loops and not plan.framework.fuses_optimizer)

    def lines(self, plan: Plan) -> list[str]:
        """Plan → assumptions about the host where anything is offloaded, as lines of text."""
        found = []
        if plan.offload.optimizer:
            found.append(self._update(plan))
        if plan.style(transformer=True) == "deepspeed" and 0 < plan.offload.optimizer < 1:
            found.append(
                f"offload: the CPU has {plan.offload.optimizer:.0%} of each GPU's parameters; "
                "DeepSpeed gives it whole sub-groups (sub_group_size, 10^9 by default), of one all"
            )
        if plan.offload.optimizer or plan.offload.activations:
            link = (
                f"{self.sharers} GPUs share a link to the host"
                if self.sharers > 1
                else ("each GPU has a link of its own to the host")
            )
            found.append(f"offload: {link}, whose memory is pinned")
        return found

    def _update(self, plan: Plan) -> str:
        return f"offload: the CPUs update parameters at {self.rate(self._share(plan))}"

    def rate(self, share: Quantity) -> str:
        """Share of the memory's bandwidth → speed of the CPUs, as text."""
        guess = "" if self.known else " (a guess: [node] memory_bandwidth says)"
        most = self.bandwidth.si / 1e9
        return (
            f"{most * share.value:,.0f} GB/s of {most:,.0f}{guess} for {self.ranks} GPUs, with "
            "threads enough: torchrun starts one a process, unless OMP_NUM_THREADS says more"
        )

    def duration(self, size: int, plan: Plan | None = None, *, loops: bool = False) -> int:
        """Bytes that the CPU reads and writes for one rank, all ranks at once → duration in ps.

        Parameters
        ----------
        size : int
            Of an optimizer: bytes that one fused kernel would read and write.
        plan : Plan, optional
            The plan of the optimizer.
        loops : bool
            Without a plan: whether it is a loop of operations, not one kernel.
        """
        share = self._share(plan) if plan is not None else self.share_of(loops=loops)
        return picoseconds(size * self.ranks / (self.bandwidth.si * share.value))

    def share_of(self, *, loops: bool) -> Quantity:
        """Return the share of memory bandwidth that one kernel, or a loop of operations, has."""
        return self.loop_share if loops else self.share


def host_of(experiment: Experiment, world: int) -> Host:
    """Experiment → the host of its GPUs.

    Parameters
    ----------
    experiment : Experiment
    world : int
        GPUs of the job.
    """
    cluster, faster = experiment.cluster, experiment.scale.host_memory_bandwidth
    return cluster_host(cluster.preset, cluster.node_gpus, world, faster)


def cluster_host(cluster: str, gpus: int, world: int, faster: float = 1) -> Host:
    """Cluster → the host of its GPUs.

    Parameters
    ----------
    cluster : str
        Name of a preset, or a file.
    gpus : int
        Of a node, that the job uses.
    world : int
        GPUs of the job.
    faster : float
        Factor of the bandwidth of the host's memory.
    """
    node, figures = find_cluster(cluster).node, _figures()
    of_host = node.tray if node is not None and node.tray else gpus
    sharers = 1 if node is None else node.host_sharers(gpus)
    bandwidth = None if node is None else node.memory_bandwidth
    known = bandwidth is not None
    if bandwidth is None:
        each = figures.memory_bandwidth["intel" if node is None else node.cpu]
        cpus = 1 if node is None else node.numa_nodes
        bandwidth = Quantity(each.value * cpus, each.unit, each.error, each.source)
    bandwidth = replace(bandwidth, value=bandwidth.value * faster)
    return Host(
        memory=None if node is None else node.memory,
        bandwidth=bandwidth,
        share=figures.bandwidth_share,
        loop_share=figures.loop_bandwidth_share,
        known=known,
        ranks=min(of_host, world),
        sharers=min(sharers, world),
    )
