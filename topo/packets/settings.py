"""`PacketSettings`: parameters of switches and NICs, and which of them go together.

`packet_settings` of :mod:`.parameters` makes them of ``data/packets.toml``.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import PICOSECONDS, UNITS

__all__ = [
    "LOADS",
    "MAX_TIME",
    "Congestion",
    "PacketSettings",
    "RateControl",
    "Recovery",
    "Routing",
    "Switching",
    "Watching",
]

Routing = Literal["ecmp", "spray", "adaptive"]
"""Where there are several paths: a hash of the queue pair takes one of them, every packet takes
any, or every switch sends a packet to the link that has the least to send."""

Congestion = Literal["dcqcn", "dctcp", "hpcc", "hpcc-pint", "timely", "none"]

LOADS = ("hpcc", "hpcc-pint")
"""Of these, senders that learn the loads of the switches on their way."""

Recovery = Literal["none", "go-back-n", "selective-repeat"]
"""What a queue pair does about lost packets; none are lost with ``"none"``."""

Switching = Literal["cut-through", "store-and-forward"]

MAX_MTU, MAX_BUFFER, MAX_TIME = 1 << 20, 1 << 40, 1000

CODE_BITS = 16
"""HPCC-PINT: of a code at most, a ``uint16_t`` of pint.cc (alibaba-edu/
High-Precision-Congestion-Control)."""


@frozen
class RateControl:
    """DCQCN at sender and receiver; rates in bytes per ps, times in ps.

    Attributes
    ----------
    gain : float
        g, by which alpha follows notifications.
    additive, hyper : float
        Increments of the target rate.
    least : float
        Below which no rate is cut.
    bytes : int
        Sent between two steps of the byte counter; 0 for none.
    timer, alpha_timer : int
        Between two steps of the timer of rates, and two decreases of alpha.
    feedback : int
        Least time between two notifications of a receiver to a queue pair.
    fast : int
        Steps up to which a rate recovers; from this one on its target grows.
    clamp : bool
        Whether a cut lowers the target where no step lies between it and the one before.
    """

    gain: float
    additive: float
    hyper: float
    least: float
    bytes: int
    timer: int
    alpha_timer: int
    feedback: int
    fast: int
    clamp: bool


@frozen
class Watching:
    """HPCC, HPCC-PINT, TIMELY and DCTCP; times in ps.

    Increments and the least rate of all but the last: `RateControl`.

    Attributes
    ----------
    target : float
        HPCC's eta: load at which the fullest link is kept.
    stages : int
        HPCC's maxStage: increments after which a rate follows the load even if that is low.
    base : float
        HPCC-PINT: switches write loads as powers of it.
    unit : float
        HPCC-PINT: the least load that is told apart from none; others are in whole units.
    share : float
        HPCC-PINT: of packets from which a sender learns the load.
    filter, decrease : float
        TIMELY's alpha and beta.
    low, high : int
        Round trips below which TIMELY's rates grow, and above which they shrink, in any case.
    least_trip : int
        TIMELY's unit of changes of round trips.
    gain : float
        DCTCP's g, by which alpha follows the share of marked bytes.
    first : int
        Packets of DCTCP's first window.
    """

    target: float
    stages: int
    base: float
    unit: float
    share: float
    filter: float
    decrease: float
    low: int
    high: int
    least_trip: int
    gain: float
    first: int


@frozen
class PacketSettings:
    """Behaviour of switches and NICs: queues, congestion control, recovery, routing.

    Attributes
    ----------
    control : RateControl
    watching : Watching
    mtu : int
        Payload of a packet at most, in bytes.
    buffer : int
        Of each switch, shared by its ports.
    pfc_share : float
        Part of a switch's free buffer that one port may fill before it is paused.
    resume_offset : int
        Bytes below that at which it may go on.
    drop_share : float
        Where packets are dropped: part of a switch's free buffer that one egress queue may fill.
    timeout : float
        Seconds without a new acknowledgement after which a queue pair sends again what is under
        way; 0: what its path takes, there and back, and a full buffer at its slowest link's rate.
    chunk : int
        Bytes of messages at most where later steps wait for them.
    kmin, kmax : int
        Bytes in a queue from which packets are marked, and above which all are.
    pmax : float
        Share of packets that is marked at `kmax`.
    ack_size : int
        Bytes of an acknowledgement, which then takes its turn on the links back; 0: it takes
        latencies alone.
    window : int
        Bytes of a queue pair that are under way at most, not acknowledged; 0 for no such bound.
    window_rtts : float
        The same as round trips of its path at the rate of its slowest link; 0 for no such bound.
    window_scales : bool
        Whether windows shrink with the rate of their queue pair.
    reference_rate : float
        Bytes per second of the links for which thresholds, increments and the least rate hold; on
        others they are in proportion.
    routing : str
        ``"ecmp"``, ``"spray"`` or ``"adaptive"``.
    congestion : str
        ``"dcqcn"``, ``"dctcp"``, ``"hpcc"``, ``"hpcc-pint"``, ``"timely"``, or ``"none"``: senders
        do not slow down.
    pfc : bool
        Whether a full port is paused; without it, and without `recovery`, buffers have no end.
    recovery : str
        ``"go-back-n"``, ``"selective-repeat"``: switches drop packets, and this is how queue pairs
        send them again; ``"none"``: they do not.
    switching : str
        ``"cut-through"`` or ``"store-and-forward"``.
    seed : int
        Of ECMP's hash, of packets that are sprayed, of marks and of PINT's codes.
    """

    control: RateControl
    watching: Watching
    mtu: int
    buffer: int
    pfc_share: float
    resume_offset: int
    drop_share: float
    timeout: float
    chunk: int
    kmin: int
    kmax: int
    pmax: float
    reference_rate: float
    ack_size: int = 0
    window: int = 0
    window_rtts: float = 0
    window_scales: bool = False
    routing: Routing = "ecmp"
    congestion: Congestion = "dcqcn"
    pfc: bool = True
    recovery: Recovery = "none"
    switching: Switching = "cut-through"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_names()
        self._check_bounds()
        self._check_combinations()

    def _check_names(self) -> None:
        for name, allowed in (
            ("routing", get_args(Routing)),
            ("congestion", get_args(Congestion)),
            ("recovery", get_args(Recovery)),
            ("switching", get_args(Switching)),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}"
                )

    def _check_bounds(self) -> None:
        for name, value, least, most in (
            ("mtu", self.mtu, 64, MAX_MTU),
            ("buffer", self.buffer, 1, MAX_BUFFER),
            ("chunk", self.chunk, 1, MAX_BUFFER),
            ("resume_offset", self.resume_offset, 0, MAX_BUFFER),
            ("kmax", self.kmax, 1, MAX_BUFFER),
            ("kmin", self.kmin, 0, self.kmax),
            ("pmax", self.pmax, 0, 1),
            ("pfc_share", self.pfc_share, 1e-6, 1e3),
            ("drop_share", self.drop_share, 1e-6, 1e3),
            ("timeout", self.timeout, 0, MAX_TIME),
            ("hpcc_target", self.watching.target, 0.01, 1),
            ("hpcc_stages", self.watching.stages, 0, 1000),
            ("pint_base", self.watching.base, 1.0001, 16),
            ("pint_unit", self.watching.unit, 1e-6, 0.1),
            ("pint_share", self.watching.share, 1e-6, 1),
            ("dctcp_gain", self.watching.gain, 0, 1),
            ("dctcp_window", self.watching.first, 1, 1_000_000),
            ("timely_alpha", self.watching.filter, 0, 1),
            ("timely_beta", self.watching.decrease, 0, 1),
            ("ack_size", self.ack_size, 0, self.mtu),
            ("window", self.window, 0, MAX_BUFFER),
            ("window_rtts", self.window_rtts, 0, 1e6),
            ("byte_counter", self.control.bytes, 0, MAX_BUFFER),
            ("gain", self.control.gain, 0, 1),
            ("fast_recovery", self.control.fast, 0, 1000),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if not least <= value <= most:
                raise InputError(
                    f"{name} is {value:,}; it must be {least:,} to {most:,}"
                    + {"kmin": ", which is kmax", "ack_size": ", which is mtu"}.get(name, "")
                )

    def _check_combinations(self) -> None:
        if self.watching.low > self.watching.high:
            raise InputError(
                f"timely_low is {self.watching.low / PICOSECONDS:g} s; it must be at most "
                f"timely_high, which is {self.watching.high / PICOSECONDS:g} s"
            )
        if self.recovery != "none":
            if self.pfc:
                raise InputError(
                    f"with PFC nothing is lost; recovery is {self.recovery!r}: allowed: none"
                )
            if self.buffer < self.mtu or self.drop_share * self.buffer < self.mtu:
                raise InputError(
                    f"an empty queue takes {min(1, self.drop_share) * self.buffer:,.0f} B, less "
                    f"than a packet (mtu is {self.mtu:,} B): a larger buffer or drop_share"
                )
        if self.congestion in LOADS and self.routing != "ecmp":
            raise InputError(
                f"{self.congestion} follows the links of one path; routing is {self.routing!r}: "
                "allowed with it: ecmp"
            )
        # Loads are told from `unit` to its inverse, as get_n_bits of pint.cc has it.
        watching = self.watching
        most = math.ceil(-2 * math.log(watching.unit) / math.log(watching.base))
        if self.congestion == "hpcc-pint" and most >= 1 << CODE_BITS:
            raise InputError(
                f"pint_base is {watching.base:g} and pint_unit {watching.unit:g}: codes go to "
                f"{most:,}; they must be below {1 << CODE_BITS:,}, of {CODE_BITS} bits"
            )
        if self.congestion == "dctcp" and self.recovery != "none":
            raise InputError(
                f"dctcp's window follows marks alone; recovery is {self.recovery!r}: allowed with "
                "it: none"
            )
        if self.congestion == "dctcp" and self.window_scales:
            raise InputError(
                "dctcp's window follows marks, and it has no rate; window_scales is 1: allowed "
                "with it: 0"
            )
        rates = (self.control.least, self.control.additive, self.control.hyper)
        for name, rate in zip(("min_rate", "rate_ai", "rate_hai"), rates, strict=True):
            if rate > self.reference_rate / PICOSECONDS:
                raise InputError(
                    f"{name} is {rate * PICOSECONDS / UNITS['Gb/s']:g} Gb/s, more than the "
                    f"reference_rate of {self.reference_rate / UNITS['Gb/s']:g} Gb/s"
                )

    @property
    def parameters(self) -> dict[str, float]:
        """By key of ``data/packets.toml``: bytes, seconds, bytes per second."""
        control = self.control
        return {
            "mtu": self.mtu,
            "buffer": self.buffer,
            "pfc_share": self.pfc_share,
            "resume_offset": self.resume_offset,
            "drop_share": self.drop_share,
            "timeout": self.timeout,
            "chunk": self.chunk,
            "reference_rate": self.reference_rate,
            "kmin": self.kmin,
            "kmax": self.kmax,
            "pmax": self.pmax,
            "ack_size": self.ack_size,
            "window": self.window,
            "window_rtts": self.window_rtts,
            "window_scales": int(self.window_scales),
            "gain": control.gain,
            "timer": control.timer / PICOSECONDS,
            "alpha_timer": control.alpha_timer / PICOSECONDS,
            "byte_counter": control.bytes,
            "fast_recovery": control.fast,
            "clamp_target": int(control.clamp),
            "rate_ai": control.additive * PICOSECONDS,
            "rate_hai": control.hyper * PICOSECONDS,
            "min_rate": control.least * PICOSECONDS,
            "cnp_interval": control.feedback / PICOSECONDS,
            "hpcc_target": self.watching.target,
            "hpcc_stages": self.watching.stages,
            "pint_base": self.watching.base,
            "pint_unit": self.watching.unit,
            "pint_share": self.watching.share,
            "timely_alpha": self.watching.filter,
            "timely_beta": self.watching.decrease,
            "timely_low": self.watching.low / PICOSECONDS,
            "timely_high": self.watching.high / PICOSECONDS,
            "timely_least_trip": self.watching.least_trip / PICOSECONDS,
            "dctcp_gain": self.watching.gain,
            "dctcp_window": self.watching.first,
        }
