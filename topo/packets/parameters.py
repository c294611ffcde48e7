"""Set of ``data/packets.toml``, and changes of single parameters → `PacketSettings`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from mpisim.base.errors import InputError, nearest
from mpisim.base.presets import packaged
from mpisim.base.quantity import PICOSECONDS, Quantity
from mpisim.base.schema import build

from .settings import (
    MAX_TIME,
    Congestion,
    PacketSettings,
    RateControl,
    Recovery,
    Routing,
    Switching,
    Watching,
)

__all__ = ["PARAMETER_SETS", "packet_settings"]

FILE = "packets.toml"

PARAMETER_SETS = ("sigcomm2015", "simai")
"""Tables of the file beside ``[switch]``."""

_AMOUNT = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")

_UNITS = (
    {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    {"Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8, "MB/s": 1e6, "GB/s": 1e9},
)
"""In which parameters may be given, by what they measure."""

USED_BY: Mapping[str, tuple[Congestion, ...]] = MappingProxyType(
    dict.fromkeys(
        (
            *("gain", "timer", "alpha_timer", "byte_counter", "fast_recovery", "clamp_target"),
            "cnp_interval",
        ),
        ("dcqcn",),
    )
    | dict.fromkeys(("rate_ai", "min_rate"), ("dcqcn", "hpcc", "hpcc-pint", "timely"))
    | {"rate_hai": ("dcqcn", "timely")}
    | {"window_scales": ("dcqcn", "dctcp", "timely", "none")}  # HPCC's follow the rate anyway
    | dict.fromkeys(("hpcc_target", "hpcc_stages"), ("hpcc", "hpcc-pint"))
    | dict.fromkeys(("pint_base", "pint_unit", "pint_share"), ("hpcc-pint",))
    | dict.fromkeys(
        ("timely_alpha", "timely_beta", "timely_low", "timely_high", "timely_least_trip"),
        ("timely",),
    )
    | dict.fromkeys(("dctcp_gain", "dctcp_window"), ("dctcp",))
)
"""Ways to control congestion that look at a parameter; all of them where it is not named.

So `kmin`, `kmax` and `pmax` are not: switches mark with each, and marked packets are a result."""

MAX_VALUE = 1e18
"""Of any parameter, so that what is rounded stays a number."""


def packet_settings(
    parameters: str = "sigcomm2015",
    changes: Mapping[str, str] | None = None,
    *,
    routing: Routing = "ecmp",
    congestion: Congestion = "dcqcn",
    pfc: bool = True,
    recovery: Recovery = "none",
    switching: Switching = "cut-through",
    seed: int = 0,
) -> PacketSettings:
    """Name of a set of parameters in data/packets.toml, changed values → settings.

    Parameters
    ----------
    parameters : str
        One of `PARAMETER_SETS`.
    changes : mapping of str to str, optional
        By key of the file, a number in the file's unit, or with one: ``{"mtu": "9000"}``,
        ``{"timer": "300 us"}``.
    routing, congestion, pfc, recovery, switching, seed
        See `PacketSettings`.

    Raises
    ------
    InputError
        For a set, key or value that cannot be, and for a key that nothing looks at.
    """
    if parameters not in PARAMETER_SETS:
        raise InputError(
            f"unknown parameters {parameters!r}{nearest(parameters, PARAMETER_SETS)}; "
            f"allowed: {', '.join(PARAMETER_SETS)}"
        )
    tables = packaged(FILE)
    merged = tables["switch"] | tables[parameters]
    numbers = {name: build(Quantity, table, FILE, name) for name, table in merged.items()}
    given = {name: number.si for name, number in numbers.items()}
    for name, text in (changes or {}).items():
        if name not in numbers:
            raise InputError(
                f"unknown parameter {name!r}{nearest(name, numbers)}; allowed: {', '.join(numbers)}"
            )
        given[name] = _value(name, text, numbers[name])
    for name in ("clamp_target", "window_scales"):
        if given[name] not in (0, 1):
            raise InputError(f"{name} is {given[name]:g}; it must be 0 (no) or 1 (yes)")
    settings = PacketSettings(
        _rate_control(given),
        _watching(given),
        mtu=round(given["mtu"]),
        buffer=round(given["buffer"]),
        pfc_share=given["pfc_share"],
        resume_offset=round(given["resume_offset"]),
        drop_share=given["drop_share"],
        timeout=given["timeout"],
        chunk=round(given["chunk"]),
        kmin=round(given["kmin"]),
        kmax=round(given["kmax"]),
        pmax=given["pmax"],
        reference_rate=given["reference_rate"],
        ack_size=round(given["ack_size"]),
        window=round(given["window"]),
        window_rtts=given["window_rtts"],
        window_scales=given["window_scales"] > 0,
        routing=routing,
        congestion=congestion,
        pfc=pfc,
        recovery=recovery,
        switching=switching,
        seed=seed,
    )
    for name in changes or {}:
        _check_used(name, settings)
    return settings


def _rate_control(given: Mapping[str, float]) -> RateControl:
    """Parameters by name, in bytes and seconds → DCQCN's."""
    for name in ("timer", "alpha_timer", "cnp_interval", "min_rate", "reference_rate"):
        if not given[name]:
            raise InputError(f"{name} is 0; it must be above 0")
    for name in ("timer", "alpha_timer", "cnp_interval"):
        if given[name] > MAX_TIME:
            raise InputError(f"{name} is {given[name]:g} s; it must be at most {MAX_TIME} s")

    def ps(name: str) -> int:
        return max(1, round(given[name] * PICOSECONDS))

    def rate(name: str) -> float:
        return given[name] / PICOSECONDS

    return RateControl(
        gain=given["gain"],
        additive=rate("rate_ai"),
        hyper=rate("rate_hai"),
        least=rate("min_rate"),
        bytes=round(given["byte_counter"]),
        timer=ps("timer"),
        alpha_timer=ps("alpha_timer"),
        feedback=ps("cnp_interval"),
        fast=round(given["fast_recovery"]),
        clamp=given["clamp_target"] > 0,
    )


def _watching(given: Mapping[str, float]) -> Watching:
    """Parameters by name, in seconds → those of HPCC and TIMELY."""
    times = ("timely_low", "timely_high", "timely_least_trip")
    for name in times:
        if not 0 < given[name] <= MAX_TIME:
            raise InputError(
                f"{name} is {given[name]:g} s; it must be above 0 and at most {MAX_TIME} s"
            )
    low, high, least_trip = (max(1, round(given[name] * PICOSECONDS)) for name in times)
    return Watching(
        target=given["hpcc_target"],
        stages=round(given["hpcc_stages"]),
        base=given["pint_base"],
        unit=given["pint_unit"],
        share=given["pint_share"],
        filter=given["timely_alpha"],
        decrease=given["timely_beta"],
        low=low,
        high=high,
        least_trip=least_trip,
        gain=given["dctcp_gain"],
        first=round(given["dctcp_window"]),
    )


def _check_used(name: str, settings: PacketSettings) -> None:
    """Refuse a change of a parameter that nothing looks at."""
    chosen, recovers = settings.congestion, settings.recovery != "none"
    allowed = USED_BY.get(name, (chosen,))
    if chosen not in allowed:
        raise InputError(
            f"{name} has no effect with congestion {chosen!r}; it is of {', '.join(allowed)}"
        )
    if name in ("pfc_share", "resume_offset") and not settings.pfc:
        raise InputError(f"{name} has no effect without PFC, which pauses ports")
    if name in ("drop_share", "timeout") and not recovers:
        raise InputError(
            f"{name} has no effect with recovery 'none', where nothing is lost; it is of "
            "go-back-n, selective-repeat"
        )
    if name == "buffer" and not settings.pfc and not recovers:
        raise InputError(
            "buffer has no effect without PFC and with recovery 'none': buffers have no end"
        )


def _value(name: str, text: str, default: Quantity) -> float:
    """Text of a changed parameter → its value in bytes, seconds, bytes per second."""
    units = next((each for each in _UNITS if default.unit in each), {"1": 1.0})
    found = _AMOUNT.fullmatch(text)
    unit = (found[2] if found else "") or default.unit
    if found is None or unit not in units:
        raise InputError(
            f"{name} is {text!r}; it must be a number from 0 on, "
            + (
                f"in {' or '.join(units)} ({default.unit} if none is given)"
                if len(units) > 1
                else "without a unit"
            )
        )
    value = float(found[1]) * units[unit]
    if value > MAX_VALUE:
        raise InputError(f"{name} is {text!r}, which is too large")
    return value
