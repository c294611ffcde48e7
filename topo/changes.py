"""Topology, changes of links (slower, faster, cut) → changed topology."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError, nearest

from .link_patterns import EndPatterns
from .routes import ReroutedPaths, ShortestTimeRoutes
from .topology import LinkKind, Topology, check_connected
from .units import parse_bandwidth, parse_latency

__all__ = ["WithoutChange", "apply_changes", "check_changes", "without_each_change"]

PREFIX = "links."
CUT = "cut"
KEYS = ("bandwidth", "latency")
_FACTOR = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(%|x)\s*")


def apply_changes(topology: Topology, changes: Mapping[str, object]) -> Topology:
    """Topology, changes of links → the changed topology.

    Parameters
    ----------
    topology : Topology
    changes : mapping of str to object
        By ``links.NAME.bandwidth`` or ``links.NAME.latency`` a new value (``"10 GB/s"``,
        ``"5 us"``) or a factor (``"50 %"``, ``"0.5 x"``); by ``links.NAME`` the word ``"cut"``. In
        a name ``*`` represents any text and ``?`` for any character. A link is directed: to slow a
        cable, change both its links. Later changes act on what earlier ones left.

    Returns
    -------
    Topology
        Routes stay where they were, but for those over a cut link, which take the fastest way that
        is left (all of a flow the same way).

    Raises
    ------
    InputError
        For a change that cannot be understood or fits no link, or GPUs cut off from one another.

    Examples
    --------
    >>> from mpisim.topo import find_cluster
    >>> box = find_cluster("dgx-h100").topology()
    >>> slow = apply_changes(box, {"links.node0.gpu3->*.bandwidth": "50 %"})
    >>> float(slow.bandwidth.min() / box.bandwidth.min())
    1.0
    """
    values = {key: getattr(topology, key).copy() for key in KEYS}
    kept = np.ones(topology.n_links, bool)
    for change in _read_changes(topology, changes):
        if change.key is None:
            kept[change.links] = False
        else:
            values[change.key][change.links] = change.of(values[change.key][change.links])
    if kept.all():
        nics = topology.kind == LinkKind.NIC
        ratio = values["bandwidth"][nics] / topology.bandwidth[nics]
        max_inflow = topology.max_inflow * (ratio.max() if len(ratio) else 1.0)
        return replace(topology, **values, max_inflow=max_inflow, period=0, shift=None)
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    columns = {
        key: getattr(topology, key)[kept]
        for key in ("source", "target", "kind", "share", "nominal")
    } | {key: value[kept] for key, value in values.items()}
    around = ShortestTimeRoutes(
        list(topology.names),
        topology.gpu,
        columns["source"],
        columns["target"],
        columns["bandwidth"],
        columns["latency"],
    )
    labels = {int(number[link]): text for link, text in topology.labels.items() if kept[link]}
    found = replace(
        topology,
        paths=ReroutedPaths(topology.paths, number, around),
        labels=labels,
        **columns,
        max_inflow=np.full(int(kept.sum()), np.inf),
        period=0,
        shift=None,
    )
    check_connected(found)
    return found


class WithoutChange(NamedTuple):
    """The links that would have another bandwidth or latency without one of several changes.

    Attributes
    ----------
    links : int64, shape (m,)
        As `apply_changes` numbers them, ascending: those that are cut are none.
    bandwidth : float64, shape (m,)
        What they would have then, in bytes per second.
    """

    links: NDArray[np.int64]
    bandwidth: NDArray[np.float64]


def without_each_change(
    topology: Topology, changes: Mapping[str, object]
) -> dict[str, WithoutChange | None]:
    """Topology, changes → the links of `apply_changes` without each one of them.

    Parameters
    ----------
    topology : Topology
        Before all changes.
    changes : mapping of str to object
        As for `apply_changes`.

    Returns
    -------
    dict of str to (WithoutChange or None)
        By the names of the changes. None for one without which fewer links would be cut.

    Raises
    ------
    InputError
        For a change that cannot be understood or fits no link.
    """
    read = list(_read_changes(topology, changes))
    values = {key: getattr(topology, key).copy() for key in KEYS}
    cuts = np.zeros(topology.n_links, np.int64)
    last = {key: np.full(topology.n_links, -1) for key in KEYS}  # change of each link
    several = {key: np.zeros(topology.n_links, bool) for key in KEYS}
    befores = []
    for place, (_, links, key, _, _) in enumerate(read):
        befores.append(None if key is None else values[key][links])
        if key is None:
            cuts[links] += 1
        else:
            values[key][links] = read[place].of(values[key][links])
            several[key][links] |= last[key][links] >= 0
            last[key][links] = place
    acting: dict[tuple[str, int], list[int]] = {}  # where there are several
    for place, (_, links, key, _, _) in enumerate(read):
        if key is not None:
            for link in links[several[key][links]].tolist():
                acting.setdefault((key, link), []).append(place)

    number = np.cumsum(cuts == 0) - 1
    found: dict[str, WithoutChange | None] = {}
    for place, (name, links, key, _, _) in enumerate(read):
        without = befores[place]
        if key is None or without is None:
            fewer = bool((cuts[links] == 1).any())
            found[name] = None if fewer else WithoutChange(links[:0], values["bandwidth"][:0])
            continue
        for at in np.flatnonzero(last[key][links] > place).tolist():
            for later in acting[key, int(links[at])]:
                if later > place:
                    without[at] = read[later].of(without[at])
        other = (without != values[key][links]) & (cuts[links] == 0)
        bandwidth = without if key == "bandwidth" else values["bandwidth"][links]
        found[name] = WithoutChange(number[links[other]], bandwidth[other])
    return found


def check_changes(changes: Mapping[str, object]) -> None:
    """Refuse changes that cannot be understood, whatever topology they are for.

    Raises
    ------
    InputError
        Naming the change, what was found and what is allowed.
    """
    for name, value in changes.items():
        _, key = _split_name(name, value)
        if key is not None:
            _read_change(name, key, value)


class _Change(NamedTuple):
    """One change: the links it acts on, and their new bandwidth or latency."""

    name: str
    links: NDArray[np.int64]
    key: str | None  # None: a cut
    scale: float = 1.0
    new: float | None = None

    def of(self, value: Any) -> Any:
        """Return the changed value of a bandwidth or a latency."""
        return value * self.scale if self.new is None else self.new


def _read_changes(topology: Topology, changes: Mapping[str, object]) -> Iterator[_Change]:
    """Yield changes in their order."""
    ends = topology.source, topology.target
    patterns = EndPatterns(topology.names, *ends, topology.labels)
    for name, value in changes.items():
        pattern, key = _split_name(name, value)
        links = patterns.matching(pattern)
        if not len(links):
            _refuse_pattern(topology, pattern)
        factor = () if key is None else _read_change(name, key, value)
        yield _Change(name, links, key, *factor)


def _read_change(name: str, key: str, value: object) -> tuple[float, float | None]:
    """Return the factor of a change, and the new value of one that is no factor."""
    factor = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if factor is None:
        return 1.0, (parse_bandwidth if key == "bandwidth" else parse_latency)(value, repr(name))
    scale = _number(factor[1], name, value) / (100 if factor[2] == "%" else 1)
    if not scale > 0:
        least = f"above 0 {factor[2]}".rstrip()
        cut = f"; to take the link away, {name.removesuffix(f'.{key}')} = '{CUT}'"
        raise InputError(
            f"{name!r} is {value!r}; a share of what it was must be {least}"
            f"{cut if key == 'bandwidth' else ''}"
        )
    return scale, None


def _number(text: str, name: str, value: object) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{name!r} is {value!r}; it must be like '50 %' or '0.5 x'") from error


def _split_name(name: str, value: object) -> tuple[str, str | None]:
    """Return the pattern of a change, and its key; None to cut."""
    if not name.startswith(PREFIX):
        raise InputError(
            f"unknown change {name!r}; allowed: links.NAME.bandwidth, links.NAME.latency, "
            f"links.NAME = '{CUT}'"
        )
    pattern = name.removeprefix(PREFIX)
    for key in KEYS:
        if pattern.endswith(f".{key}"):
            return pattern.removesuffix(f".{key}"), key
    if value != CUT:
        raise InputError(
            f"{name!r} is {value!r}; it must be '{CUT}', or the name end in .bandwidth or .latency"
        )
    return pattern, None


def _refuse_pattern(topology: Topology, pattern: str) -> NoReturn:
    """Raise the error of a pattern that fits no link."""
    names = topology.link_names
    near = "" if "*" in pattern else nearest(pattern, names)
    raise InputError(
        f"{PREFIX}{pattern}: {topology.title} has no such link{near}; names are like {names[0]!r}"
        if names
        else f"{topology.title} has no links"
    )
