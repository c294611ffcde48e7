"""`Settings`: the environment variables ``NCCL_*`` that change the time of communications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from mpisim.base.errors import InputError, nearest
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .constants import ALGORITHMS, PROTOCOLS

__all__ = ["Settings"]

Choices = tuple[tuple[Operation | None, frozenset[str]], ...]
"""What is allowed for an operation; None: for all others."""

_OPERATIONS = {
    "allreduce": Operation.ALL_REDUCE,
    "allgather": Operation.ALL_GATHER,
    "reducescatter": Operation.REDUCE_SCATTER,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
}

_ALIASES = {
    **{name.replace("-", ""): (name,) for name in (*ALGORITHMS, *PROTOCOLS)},
    "collnet": ("collnet-direct", "collnet-chain"),
}


@frozen
class Settings:
    """Variables, by their names in lower case without ``NCCL_``; None: NCCL decides.

    Attributes
    ----------
    algo, proto : tuple of (Operation or None, frozenset of str), optional
        Algorithms and protocols that may be used. NCCL takes a ring, or Simple, where none of
        those named can serve.
    min_nchannels, max_nchannels : int, optional
    nthreads, ll128_nthreads : int, optional
        Most threads of a block.
    buffsize : int, optional
        Bytes of a connection's buffer for Simple.
    nvls_enable, collnet_enable, pat_enable : bool, optional
        Multicast in the switch; reductions in the network; PAT, which NCCL uses for groups of one
        GPU a node.
    nvls_nchannels : int, optional
    p2p_disable : bool
        GPUs of a node reach each other through the host's memory alone.
    p2p_pxn_level, pxn_disable : int, bool
        Whether sends go through the GPU that is nearest to the receiver's NIC: 0 never, 1 where
        needed, 2 always.
    cross_nic : int
        Whether a ring may enter a node by another NIC than it leaves: 0 no, 1 yes, 2 if better.
        The times here are those of a network that does not mind; a model of the fabric asks.
    p2p_net_chunksize : int, optional
        Bytes of a message of a send over the network.
    nchannels_per_net_peer : int, optional
        Connections of a send over the network.
    net_overhead : int, optional
        Nanoseconds to post a message to a NIC.
    ib_hca : int, optional
        How many NICs the list names.
    ib_disable : bool
        Data go over TCP sockets, through the CPU, in place of InfiniBand or RoCE.
    socket_nthreads : int, optional
        Threads of a GPU that send over sockets.
    """

    algo: Choices | None = None
    proto: Choices | None = None
    min_nchannels: int | None = None
    max_nchannels: int | None = None
    nthreads: int | None = None
    ll128_nthreads: int | None = None
    buffsize: int | None = None
    nvls_enable: bool | None = None
    nvls_nchannels: int | None = None
    collnet_enable: bool = False
    pat_enable: bool | None = None
    p2p_disable: bool = False
    p2p_pxn_level: int = 2
    pxn_disable: bool = False
    cross_nic: int = 2
    p2p_net_chunksize: int | None = None
    nchannels_per_net_peer: int | None = None
    net_overhead: int | None = None
    ib_hca: int | None = None
    ib_disable: bool = False
    socket_nthreads: int | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str | int]) -> Settings:
        """Read variables as one writes them in a shell.

        Parameters
        ----------
        variables : mapping
            Values by the variable's full name.

        Raises
        ------
        InputError
            For a variable that is not among these, with the nearest one that is, or a value it
            cannot have.

        Examples
        --------
        >>> Settings.of({"NCCL_ALGO": "^tree", "NCCL_MAX_NCHANNELS": "8"}).max_nchannels
        8
        """
        known = {f"NCCL_{field.name.upper()}": field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        for name, value in variables.items():
            if name not in known:
                raise InputError(
                    f"{name} is no variable of NCCL that changes a time here"
                    f"{nearest(name, known)}; allowed: {', '.join(known)}"
                )
            found[known[name]] = _READERS[known[name]](name, str(value).strip())
        settings = cls(**found)
        low, high = settings.min_nchannels, settings.max_nchannels
        if low is not None and high is not None and low > high:
            raise InputError(f"NCCL_MIN_NCHANNELS is {low}, above NCCL_MAX_NCHANNELS, {high}")
        return settings

    @property
    def pxn_level(self) -> int:
        """``NCCL_P2P_PXN_LEVEL`` as NCCL takes it: 0 where ``NCCL_PXN_DISABLE`` is set."""
        return 0 if self.pxn_disable else self.p2p_pxn_level


def allowed(choices: Choices | None, operation: Operation) -> frozenset[str] | None:
    """Choices, operation → the names that they allow for it; None if they do not say.

    Parameters
    ----------
    choices : tuple of (Operation or None, frozenset of str), or None
        Names by operation, as in `Settings`; those by None hold for operations that are not listed.
    operation : Operation
    """
    if choices is None:
        return None
    by_operation = dict(choices)
    return by_operation.get(operation, by_operation.get(None))


def _choices(names: tuple[str, ...]) -> Callable[[str, str], Choices]:
    """Read lists such as ``ring,tree``, ``^tree`` or ``ring;allreduce:tree``."""
    known = {name: _ALIASES[name] for name in _ALIASES if set(_ALIASES[name]) <= set(names)}

    def read(variable: str, text: str) -> Choices:
        found: dict[Operation | None, frozenset[str]] = {}
        for section in text.split(";"):
            prefix, colon, items = section.rpartition(":")
            operation = None
            if colon:
                operation = _lookup(variable, prefix, _OPERATIONS)
            without = items.strip().startswith("^")
            listed = [
                name
                for item in items.strip().removeprefix("^").split(",")
                for name in _lookup(variable, item, known)
            ]
            found[operation] = frozenset(set(names) - set(listed) if without else listed)
        return tuple(found.items())

    return read


def _lookup(variable: str, word: str, known: Mapping[str, Any]) -> Any:
    key = word.strip().casefold().replace("_", "").replace("-", "")
    if key not in known:
        raise InputError(
            f"{variable} names {word.strip()!r}{nearest(key, known)}; allowed: {', '.join(known)}"
        )
    return known[key]


def _number(least: int, most: int, multiple: int = 1) -> Callable[[str, str], int]:
    def read(variable: str, text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most or int(text) % multiple:
            of = f", a multiple of {multiple}" if multiple > 1 else ""
            raise InputError(f"{variable} is {text!r}; it must be {least} to {most}{of}")
        return int(text)

    return read


def _switch(variable: str, text: str) -> bool:
    return bool(_number(0, 2)(variable, text))


def _nics(variable: str, text: str) -> int:
    """Count the NICs of a list such as ``mlx5_0,mlx5_1``."""
    if text.startswith("^") or not text.lstrip("=").strip(", "):
        raise InputError(
            f"{variable} is {text!r}; it must list the NICs to use, as mlx5_0,mlx5_1: which others "
            "there are is not known here"
        )
    return len({name.strip() for name in text.lstrip("=").split(",") if name.strip()})


_READERS: dict[str, Callable[[str, str], Any]] = {
    "algo": _choices(ALGORITHMS),
    "proto": _choices(PROTOCOLS),
    "min_nchannels": _number(1, 64),
    "max_nchannels": _number(1, 64),
    "nthreads": _number(64, 512, 32),
    "ll128_nthreads": _number(160, 640, 32),
    "buffsize": _number(4096, 1 << 30),
    "nvls_enable": _switch,
    "nvls_nchannels": _number(1, 64),
    "collnet_enable": _switch,
    "pat_enable": _switch,
    "p2p_disable": _switch,
    "p2p_pxn_level": _number(0, 2),
    "pxn_disable": _switch,
    "cross_nic": _number(0, 2),
    "p2p_net_chunksize": _number(1, 1 << 30),
    "nchannels_per_net_peer": _number(1, 64),
    "net_overhead": _number(0, 10**9),
    "ib_hca": _nics,
    "ib_disable": _switch,
    "socket_nthreads": _number(0, 16),
}
