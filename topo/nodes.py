"""Table ``[node]`` of a cluster → `Node`: what is in a node and how it is joined.

`mpisim.topo.node_graph` wires it. A new kind of node is a value of `Node.kind` and its pairs of
GPUs there; what NCCL sees in it is a line of `mpisim.topo.nccl_system`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits, build

__all__ = ["Node", "hop_latency"]

MOST = 4096
"""Of anything in a node, as of its GPUs."""

MOST_CPUS = 64
"""Which are joined each to each."""

Count = Annotated[int, Limits(least=1, most=MOST)]
CountOrNone = Annotated[int, Limits(least=0, most=MOST)]


@frozen
class Node:
    """The table ``[node]`` of a cluster.

    Attributes
    ----------
    kind : str
        ``"nvswitch"``: every GPU on a switch; ``"nvlink-mesh"``, ``"xgmi-mesh"``: a link from each
        to each; ``"hypercube-mesh"``: the eight V100 of a DGX-1; ``"nvlink-pairs"``: bridges
        between GPUs 0 and 1, 2 and 3, …; ``"pcie"``: no fast links; ``"direct"``: GPUs are joined
        to the fabric themselves (a wafer, a torus).
    link_bandwidth : Quantity
        What one GPU can send over all its fast links together, one direction, usable. Not for
        ``"pcie"``.
    pcie_bandwidth : Quantity
        Of one PCIe connection, one direction, usable. Not for ``"direct"``.
    host_bandwidth : Quantity, optional
        Between a GPU and its CPU where that is not PCIe (NVLink-C2C).
    cpu : str
        Maker of the CPUs: ``"intel"``, ``"amd"``, ``"grace"``, ``"arm"``, ``"power"``.
    numa_nodes : int
        CPUs of a node, or of a tray; GPUs and NICs are spread over them evenly.
    cores, clock : Quantity, optional
        Cores of all CPUs of a node, or of a tray, and their base clock, where known.
    memory, memory_bandwidth : Quantity, optional
        Of the memory of all CPUs of a node, or of a tray, and of its channels together.
    socket_bandwidth : Quantity, optional
        Between two of the CPUs, one direction, usable. Needed where there are several.
    tray : int, optional
        GPUs that share CPUs, where those of a rack have one NVLink domain but many hosts.
    pcie_switches : int, optional
        In a node; by default one for two GPUs if NICs are reached through switches, else none.
    host_links : int, optional
        Links by which its GPUs, or those of a tray, copy to and from the CPUs' memory; by default
        one for each PCIe switch, and for each GPU where there is none.
    nics : int
        NICs of a node. 0: it is not connected, or is joined ``"direct"``.
    nic_bandwidth : Quantity, optional
        Line rate of one of them, one direction.
    nic_path : str
        What lies between a GPU and its nic, as ``nvidia-smi topo`` says: ``"pix"`` one PCIe
        switch, ``"pxb"`` several, ``"phb"`` the CPU, ``"sys"`` a connection between CPUs.
    gpudirect : bool
        Whether NICs read and write the memory of GPUs; otherwise data rests in the CPU's memory.
    pxn : bool
        Whether a GPU reaches the NIC of another rail over NVLink and that rail's GPU.
    link_latency, pcie_latency, nic_latency : Quantity, optional
        Of one hop; by default those of ``data/links.toml``.
    """

    kind: Literal[
        "nvswitch", "nvlink-mesh", "xgmi-mesh", "hypercube-mesh", "nvlink-pairs", "pcie", "direct"
    ]
    link_bandwidth: Quantity | None = None
    pcie_bandwidth: Quantity | None = None
    host_bandwidth: Quantity | None = None
    cpu: Literal["intel", "amd", "grace", "arm", "power"] = "intel"
    numa_nodes: Annotated[int, Limits(least=1, most=MOST_CPUS)] = 1
    cores: Quantity | None = None
    clock: Quantity | None = None
    memory: Quantity | None = None
    memory_bandwidth: Quantity | None = None
    socket_bandwidth: Quantity | None = None
    tray: Count | None = None
    pcie_switches: CountOrNone | None = None
    host_links: Count | None = None
    nics: CountOrNone = 0
    nic_bandwidth: Quantity | None = None
    nic_path: Literal["pix", "pxb", "phb", "sys"] = "pxb"
    gpudirect: bool = True
    pxn: bool = True
    link_latency: Quantity | None = None
    pcie_latency: Quantity | None = None
    nic_latency: Quantity | None = None

    def __post_init__(self) -> None:
        needs = {
            "link_bandwidth": self.kind != "pcie",
            "pcie_bandwidth": self.kind != "direct",
            "nic_bandwidth": self.nics > 0,
        }
        for key, needed in needs.items():
            if needed != (getattr(self, key) is not None):
                what = f"kind = {self.kind!r}" if key != "nic_bandwidth" else f"nics = {self.nics}"
                verb, must = ("missing", "must be") if needed else ("given", "must not be")
                raise InputError(f"{key!r} is {verb}; with {what} it {must}")
        if self.kind == "direct" and self.nics:
            raise InputError(f"'nics' is {self.nics}; GPUs that are joined directly have none")
        if self.tray is not None and self.kind != "nvswitch":
            raise InputError(f"'tray' is {self.tray}; only GPUs behind an NVSwitch can be in trays")
        if self.numa_nodes > 1 and self.socket_bandwidth is None:
            raise InputError(f"'socket_bandwidth' is missing; there are {self.numa_nodes} CPUs")
        if self.nic_path == "sys" and self.nics and self.numa_nodes < 2:
            raise InputError("'nic_path' is 'sys', between CPUs; 'numa_nodes' must be 2 or more")
        for key in ("link", "pcie", "host", "socket", "nic"):
            number = getattr(self, f"{key}_bandwidth")
            if number is not None and not number.value:
                raise InputError(f"'{key}_bandwidth' is 0; it must be above 0")
        for key in ("cores", "clock", "memory", "memory_bandwidth"):
            number = getattr(self, key)
            if number is not None and not number.value:
                raise InputError(f"{key!r} is 0; it must be above 0")

    def switches(self, gpus: int) -> int:
        """GPUs of a node → PCIe switches between them and the CPUs, of the node or of a tray."""
        if self.pcie_switches is not None:
            return self.pcie_switches
        tray = self.tray or gpus
        nics = min(self.nics, gpus) // (gpus // tray)
        return -(-tray // 2) if nics and self.nic_path in ("pix", "pxb") else 0

    def host_sharers(self, gpus: int) -> int:
        """GPUs of a node → number of them that share a link to the CPUs' memory."""
        # A Grace's GPUs have NVLink-C2C to it; switches are between them and the NICs alone.
        own = self.host_bandwidth is not None or self.cpu == "grace"
        links = self.host_links or (0 if own else self.switches(gpus))
        return -(-(self.tray or gpus) // links) if links else 1


def hop_latency(kind: str, own: Quantity | None = None) -> float:
    """Kind of a hop → its latency in seconds: `own`, or that of ``data/links.toml``.

    Parameters
    ----------
    kind : {"link", "pcie", "socket", "nic", "switch"}
        A table of ``data/links.toml``.
    own : Quantity, optional
        What a file says instead, a time.
    """
    if own is None:
        own = build(Quantity, packaged("links.toml")[kind]["latency"], "links.toml", kind)
    return own.si
