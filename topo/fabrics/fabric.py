"""The table ``[fabric]`` of a cluster: kinds of networks between nodes, their parameters."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from typing import Annotated, Literal

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits

__all__ = ["COMMON", "KEYS", "MAX_SPINES", "Fabric", "Kind"]

MAX_SPINES = 4096
"""Above a leaf: each adds two links a leaf, and no switch has so many ports."""

Count = Annotated[int, Limits(least=1)]

Kind = Literal[
    "switch",
    "fat-tree",
    "rail-fat-tree",
    "hpn",
    "dragonfly",
    "dragonfly+",
    "torus",
    "mesh",
    "wafer",
    "circuit",
]
"""Each has an entry in `KEYS` and in `BUILDERS`, and a row in docs/topologies.md."""

_TREE = ("oversubscription", "spines", "ecmp", "pod", "core_oversubscription")
KEYS: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "switch": ((), ()),
    "fat-tree": (("leaf",), _TREE),
    "rail-fat-tree": (("leaf",), ("rails", *_TREE)),
    "hpn": (("leaf",), ("rails", "planes", *_TREE)),
    "dragonfly": (("router_ports", "routers", "global_links"), ("link_bandwidth", "routing")),
    "dragonfly+": (("leaf", "pod", "group_links"), ("oversubscription", "link_bandwidth")),
    "torus": (("dims", "link_bandwidth"), ()),
    "mesh": (("dims", "link_bandwidth"), ()),
    "wafer": (("dims", "link_bandwidth"), ("edge_bandwidth",)),
    "circuit": (("link_bandwidth", "ports", "setup_latency"), ("buffer",)),
}
"""By kind, the keys it needs and those it may have besides them and the ones of all."""

COMMON = ("kind", "nic_efficiency", "switch_latency")
"""Keys that a fabric of any kind may have."""


@frozen
class Fabric:
    """The table ``[fabric]`` of a cluster.

    Attributes
    ----------
    kind : str
        ``"switch"``: one that never blocks; ``"fat-tree"``: leaves of neighbouring NICs under
        spines; ``"rail-fat-tree"``: the same, with leaves of the NICs of one rail (the first of
        every node, the second, …); ``"hpn"``: rails with two leaves for every NIC, each in a plane
        of its own (Alibaba's HPN, SIGCOMM 2024; SimAI); ``"dragonfly"``; ``"dragonfly+"``, whose
        groups are trees of leaves and spines; ``"torus"``, ``"mesh"``: a router a node;
        ``"wafer"``: a mesh on every wafer, joined at the edges; ``"circuit"``: optical circuits
        from any GPU to any other, set up when they are first used.
    nic_efficiency : Quantity, optional
        Share of the NICs' line rate that payload reaches; 1 where there are no NICs.
    switch_latency : Quantity, optional
        Of one switch with its cable; by default that of ``data/links.toml``.
    leaf : int
        NICs that one leaf switch can have.
    oversubscription : float
        What the NICs of a full leaf can send over what the leaf can send on.
    spines : int, optional
        Above a leaf (in each plane). Needed for ``ecmp = "ecmp"`` or ``"adaptive"``.
    ecmp : str
        How traffic is spread over them: ``"ideal"``, as if they were one; ``"ecmp"``, a hash of the
        two NICs chooses one; ``"adaptive"``, each carries an equal part.
    pod : int, optional
        Leaves (of one rail) that share spines; pods are joined by core switches. By default all.
        Of a dragonfly+: leaves of a group.
    core_oversubscription : float
        What the leaves of a full pod can send to the spines over what those can send to the core.
    rails : int, optional
        By default the NICs of a node; NIC i of a node is on rail i modulo this.
    planes : int
        Of ``"hpn"``.
    router_ports, routers, global_links : int
        Of a dragonfly: NICs at a router, routers of a group, links to other groups of a router.
    group_links : int
        Of a dragonfly+: links from a group to each other one.
    routing : str
        Of a dragonfly: ``"minimal"``, over the fewest links, or ``"adaptive"``, over whatever links
        are free.
    dims : tuple of int
        Nodes along each dimension: of the torus, the mesh, or one wafer.
    link_bandwidth : Quantity, optional
        Between two routers, one direction; of a dragonfly, and between groups of a dragonfly+, by
        default that of a NIC; of a circuit.
    edge_bandwidth : Quantity, optional
        Between routers at the edges of neighbouring wafers; by default `link_bandwidth`.
    ports : int, optional
        Circuits that a GPU can have at the same time.
    setup_latency : Quantity, optional
        Of setting up a circuit.
    buffer : Quantity, optional
        Bytes that a GPU has room for of what comes over one circuit, until it takes them; by
        default of all.
    """

    kind: Kind
    nic_efficiency: Quantity | None = None
    switch_latency: Quantity | None = None
    leaf: Count | None = None
    oversubscription: Annotated[float, Limits(least=1)] = 1.0
    spines: Annotated[int, Limits(least=1, most=MAX_SPINES)] | None = None
    ecmp: Literal["ideal", "ecmp", "adaptive"] = "ideal"
    pod: Count | None = None
    core_oversubscription: Annotated[float, Limits(least=1)] = 1.0
    rails: Count | None = None
    planes: Annotated[int, Limits(least=1, most=8)] = 2
    router_ports: Count | None = None
    routers: Count | None = None
    global_links: Count | None = None
    group_links: Count | None = None
    routing: Literal["minimal", "adaptive"] = "minimal"
    dims: tuple[Count, ...] = ()
    link_bandwidth: Quantity | None = None
    edge_bandwidth: Quantity | None = None
    ports: Count | None = None
    setup_latency: Quantity | None = None
    buffer: Quantity | None = None

    def __post_init__(self) -> None:
        needed, allowed = KEYS[self.kind]
        for field in fields(self):
            given = getattr(self, field.name) != field.default
            if field.name in needed and not given:
                raise InputError(f"{field.name!r} is missing; kind = {self.kind!r} needs it")
            if given and field.name not in (*COMMON, *needed, *allowed):
                others = [kind for kind, keys in KEYS.items() if field.name in keys[0] + keys[1]]
                raise InputError(
                    f"{field.name!r} is given, a key of {', '.join(others)}; kind is {self.kind!r}"
                )
        if (self.spines is None) != (self.ecmp == "ideal"):
            raise InputError(
                f"'spines' is {self.spines or 'missing'}; it must be given with ecmp = 'ecmp' or "
                f"'adaptive' and with no other; ecmp is {self.ecmp!r}"
            )
        for key in ("link_bandwidth", "edge_bandwidth", "nic_efficiency", "buffer"):
            number = getattr(self, key)
            if number is not None and not number.value:
                raise InputError(f"{key!r} is 0; it must be above 0")
        if self.nic_efficiency is not None and self.nic_efficiency.unit != "1":
            raise InputError(
                f"'nic_efficiency' has the unit {self.nic_efficiency.unit!r}; allowed: 1"
            )
        if self.nic_efficiency is not None and self.nic_efficiency.si > 1:
            raise InputError(f"'nic_efficiency' is {self.nic_efficiency.value}; it must be 0 to 1")
        if self.kind == "wafer" and len(self.dims) != 2:
            raise InputError(f"'dims' has {len(self.dims)} numbers; a wafer has 2")

    @property
    def places(self) -> int | None:
        """Number of nodes that a torus, a mesh or one wafer has room for; None for other kinds."""
        return prod(self.dims) if self.dims else None
