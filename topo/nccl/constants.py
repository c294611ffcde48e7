"""NCCL's constants (``data/nccl.toml``), as of one version for one kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

__all__ = [
    "ALGORITHMS",
    "AMD",
    "PROTOCOLS",
    "TWO_SHOT",
    "LatencyConstants",
    "NcclConstants",
    "architectures",
    "in_version",
    "nccl_constants",
    "since",
]

FILE = "nccl.toml"

AMD = "cdna"
"""Architecture of all AMD GPUs; communications among these are RCCL's."""

ALGORITHMS = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
"""In NCCL's order: of equally fast ones it takes the first."""

TWO_SHOT = "two-shot"
"""RCCL's all-reduce in one node from each GPU to each: a kernel beside the algorithms of NCCL."""

PROTOCOLS = ("ll", "ll128", "simple")


LL, LL128, SIMPLE = range(3)


_GB = 1e9

_US = 1e-6


class LatencyConstants(Protocol):
    """Latencies in the tables of the library's tuner: those of NCCL, or those of RCCL."""

    @property
    def base(self) -> Mapping[str, tuple[float, ...]]:
        """Latency by algorithm, then protocol."""
        ...

    @property
    def hop(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """Link, algorithm, protocol → latency of one step of a ring or tree, in seconds."""
        ...

    @property
    def post(self) -> Mapping[str, float]:
        """Time to post a message to a NIC, by vendor of the CPU."""
        ...

    @property
    def growing(self) -> Mapping[str, float]:
        """Latency for each further rank."""
        ...


@frozen(eq=False)
class NcclConstants:
    """The constants that hold, in seconds and bytes per second.

    Attributes
    ----------
    base : mapping
        Latency by algorithm, then protocol.
    hop : mapping
        Latency of a step by link (``nvlink``, ``pcie``, ``network``), algorithm, protocol.
    caps : mapping
        Highest bandwidths on 1, 2 and more nodes: ``ll`` of an algorithm; ``ring-ll128``,
        ``tree-ll128``, ``tree`` and ``nvls-tree`` of a channel.
    ll_cap_across : mapping
        Highest bandwidth of LL on several nodes by vendor of the CPU, as in `caps`.
    post : mapping
        Time to post a message to a NIC, by vendor of the CPU.
    growing : mapping
        Latency for each further rank: ``collnet-direct``, ``pat``; ``pat-overlap``, the steps over
        the network that count as one.
    shares : mapping
        Of a bandwidth that an algorithm or a protocol reaches; ``tree-ll128`` on 1, 2, more nodes.
    multicast : float
        Share of the links that NVLS reaches; 0 without it.
    inside_speeds, across_speeds : tuple of float
        Of one channel, that the search tries, falling.
    generation : int
        Compute capability, times ten.
    correction : float64, shape (3, 24)
        Of a tree's bandwidth, by protocol and size.
    plateau_factor : float
    connections : tuple of Quantity
        What one connection of a send over the network moves, between two nodes and among more.
    block : float
        What one block of threads, a channel, moves over links.
    raw : mapping
        The file, for what has no history: plateau, threads, channels, buffers, point-to-point.
    """

    base: Mapping[str, tuple[float, ...]]
    hop: Mapping[str, Mapping[str, tuple[float, ...]]]
    caps: Mapping[str, tuple[float, ...]]
    ll_cap_across: Mapping[str, tuple[float, ...]]
    post: Mapping[str, float]
    growing: Mapping[str, float]
    shares: Mapping[str, Any]
    multicast: float
    inside_speeds: tuple[float, ...]
    across_speeds: tuple[float, ...]
    generation: int
    correction: NDArray[np.float64]
    plateau_factor: float
    connections: tuple[Quantity, Quantity]
    block: float
    raw: Mapping[str, Any]


def architectures() -> tuple[str, ...]:
    """Return the names of the kinds of GPUs that NCCL's constants distinguish."""
    return tuple(packaged(FILE)["arch"])


@cache
def nccl_constants(arch: str, version: tuple[int, ...]) -> NcclConstants:
    """Architecture of a GPU, version of NCCL → constants of NCCL's tuning.

    Parameters
    ----------
    arch : str
        One of `architectures`.
    version : tuple of int
        Of NCCL: ``(2, 27)``. One that is older than a history has its first entry.
    """
    raw = packaged(FILE)
    gpu = raw["arch"][arch]
    caps = {name: _caps(name, version) for name in raw["caps"]}
    plateau = raw["plateau"]
    own_row = arch == AMD or (gpu["generation"] >= 90 and version >= (2, 21))
    by_cpu = {
        cpu: caps[gpu["caps"] if own_row else row]["ll"] for cpu, row in raw["ll-by-cpu"].items()
    }
    speeds = raw["speeds"][gpu["speeds"]]
    return NcclConstants(
        base={
            name: _in_version(history, "us", version, _US) for name, history in raw["base"].items()
        },
        hop={
            link: {name: _in_version(history, "us", version, _US) for name, history in each.items()}
            for link, each in raw["hop"].items()
        },
        caps=caps[gpu["caps"]],
        ll_cap_across=by_cpu,
        post={cpu: time * _US for cpu, time in raw["post"].items()},
        growing={
            "collnet-direct": raw["growing"]["collnet-direct"] * _US,
            "pat": raw["growing"]["pat"] * _US,
            "pat-overlap": raw["growing"]["pat-overlap"],
        },
        shares={
            **raw["shares"],
            **{
                name: _quantity("shares", gpu["caps"], name).si
                for name in raw["shares"].get(gpu["caps"], ())
            },
        },
        multicast=gpu["nvls"],
        inside_speeds=tuple(speed * _GB for speed in speeds["inside"]),
        across_speeds=tuple(speed * _GB for speed in speeds["across"]),
        generation=gpu["generation"],
        correction=np.array([raw["correction"][protocol] for protocol in PROTOCOLS], float),
        plateau_factor=plateau["factor" if gpu["generation"] >= 80 else "factor-before-ampere"],
        connections=(
            _quantity("point-to-point", "connection-of-two"),
            _quantity("point-to-point", "connection"),
        ),
        block=_quantity("arch", arch, "block").si,
        raw=raw,
    )


def _quantity(*keys: str) -> Quantity:
    found: Any = packaged(FILE)
    for key in keys:
        found = found[key]
    return build(Quantity, found, FILE, ".".join(keys))


def _caps(name: str, version: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
    rows = packaged(FILE)["caps"][name]
    return {key: _in_version(history, "GBps", version, _GB) for key, history in rows.items()}


def _in_version(
    history: list[dict[str, Any]], key: str, version: tuple[int, ...], unit: float
) -> tuple[float, ...]:
    return tuple(value * unit for value in in_version(history, version)[key])


def in_version(history: list[dict[str, Any]], version: tuple[int, ...]) -> dict[str, Any]:
    """History, version → its last entry that is not newer than the version, or the first.

    Parameters
    ----------
    history : list of dict
        With ``since``, rising.
    version : tuple of int
    """
    found = history[0]
    for entry in history:
        if since(entry["since"]) <= version:
            found = entry
    return found


def since(text: str) -> tuple[int, ...]:
    """Return the version of an entry: ``"2.27"`` → ``(2, 27)``."""
    return tuple(map(int, text.split(".")))
