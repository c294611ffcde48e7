"""`System`: a machine as NCCL sees it, in plain numbers without a topology."""

from __future__ import annotations

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .constants import architectures

__all__ = ["DEFAULT_VERSION", "INTRA", "System", "version_of"]

INTRA = ("nvswitch", "mesh", "hypercube", "pairs", "pcie")
"""What joins the GPUs of a node: a switch; links from each to each; those of the DGX-1; bridges
between GPUs 0 and 1, 2 and 3, ...; nothing but PCIe."""

DEFAULT_VERSION = (2, 27)
"""NCCL's version where none is stated: that of current releases of PyTorch."""


@frozen
class System:
    """A kind of node and its way to the others.

    Attributes
    ----------
    arch : str
        Of the GPUs: a name of ``[arch]`` in ``data/nccl.toml``.
    gpus_per_node : int
        GPUs of a server, or of a rack that NVLink joins.
    intra : str
        One of `INTRA`.
    link_bandwidth : float
        What one GPU sends over all its fast links (NVLink, xGMI), usable, bytes per second; 0 if
        it has none.
    pcie_bandwidth : float
        The same over PCIe.
    socket_bandwidth : float
        Between the CPU sockets of a node, bytes per second.
    nics : int
        NICs of a node, as NCCL counts them; 0: it is not connected.
    nic_bandwidth : float
        Line rate of one, one direction, bytes per second.
    nic_efficiency : float
        Share of the line rate that payload reaches.
    nic_latency : float
        Of the network beyond what NCCL takes for granted, in seconds.
    nic_path : str
        Distance from a GPU to its NIC: pix, pxb, phb or sys, as nvidia-smi writes it.
    cpu : str
        Vendor: intel, amd, grace, ...
    gpudirect : bool
        Whether NICs reach the memory of GPUs.
    version : tuple of int
        NCCL's, as (2, 27).
    rccl : str
        By which tables of ``data/rccl.toml`` the library chooses: ``"gfx942"``; empty: NCCL's own.
    """

    arch: str
    gpus_per_node: int
    intra: str = "nvswitch"
    link_bandwidth: float = 0.0
    pcie_bandwidth: float = 12e9
    socket_bandwidth: float = 10e9
    nics: int = 0
    nic_bandwidth: float = 0.0
    nic_efficiency: float = 1.0
    nic_latency: float = 0.0
    nic_path: str = "pxb"
    cpu: str = "intel"
    gpudirect: bool = True
    version: tuple[int, ...] = DEFAULT_VERSION
    rccl: str = ""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("arch", architectures()),
            ("intra", INTRA),
            ("nic_path", ("pix", "pxb", "phb", "sys")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}"
                )
        if self.gpus_per_node < 1 or self.nics < 0:
            raise InputError(f"{self.gpus_per_node} GPUs and {self.nics} NICs a node: too few")
        if self.intra != "pcie" and not self.link_bandwidth > 0:
            raise InputError(f"a node of kind {self.intra!r} needs a link_bandwidth above 0")
        if not self.pcie_bandwidth > 0 or (self.nics and not self.nic_bandwidth > 0):
            raise InputError("pcie_bandwidth and, where there are NICs, nic_bandwidth must be > 0")


def version_of(text: str) -> tuple[int, ...]:
    """Version of NCCL as text → as numbers.

    Examples
    --------
    >>> version_of("2.20.3")
    (2, 20, 3)
    """
    parts = text.strip().split(".")
    if not 2 <= len(parts) <= 3 or not all(part.isdigit() for part in parts):
        raise InputError(f"NCCL's version is {text!r}; it must be as 2.20 or 2.20.3")
    return tuple(map(int, parts))
