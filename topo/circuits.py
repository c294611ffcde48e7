"""Optical circuits, set up when a pair of GPUs first needs one, and evicted (Passage).

TrioSim's photonic network (ISCA 2025, doi:10.1145/3695053.3731082, its case study of a wafer)
works so: a message between two GPUs without a circuit waits until one is set up; if the ports of a
GPU are all in use, the circuit that has been idle for the longest is destroyed for it. One port at
each end carries a circuit, in both directions.

Which circuits stand when a communication begins depends on what came before it. Here *before* means
the order of the program, not that of the clock (`CircuitSwitch`): communications of one rank follow
each other as the rank issues them. That makes set-ups a property of the program, the same on any
number of processes, folded or not. Where the clock would let communications of different ranks pass
each other, and GPUs need more circuits than they have ports, it may evict others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity

from .traffic.steps import Steps

__all__ = ["SETUP", "CircuitSwitch", "Circuits", "Pair", "SetUps", "rounds_of", "steady_set_ups"]

SETUP = "setup_latency"
"""Name of the latency among the numbers that a network depends on."""

Pair = tuple[int, int]
"""Two GPUs, the lower number first."""

MAX_REPEATS = 32
"""Repetitions of a step in which set-ups are to become the same each time."""


@frozen
class Circuits:
    """Optical circuits of a cluster: ports of a GPU and set-up time.

    Attributes
    ----------
    ports : int
        Of a GPU: circuits that it can have at the same time.
    setup : int
        Latency of setting one up, in ps; several are set up at the same time.
    latency : Quantity
        The same as the cluster's file has it, with its error bar.
    first_step : bool
        Whether no circuit stands when the step begins; otherwise it has been repeated until what it
        sets up is the same each time.
    """

    ports: int
    setup: int
    latency: Quantity
    first_step: bool = False


class SetUps(NamedTuple):
    """Circuit set-ups of the communications of a step.

    Attributes
    ----------
    rounds : list of int
        Of each communication, in order: how many times it waits for circuits to be set up.
    circuits : int
        That were set up.
    evicted : int
        That were destroyed for others.
    """

    rounds: list[int]
    circuits: int
    evicted: int


def rounds_of(steps: Steps, members: Sequence[int], ports: int) -> list[list[Pair]]:
    """Steps of a communication → the pairs that need circuits, in rounds that fit the ports.

    A collective between more GPUs than there are ports, such as an all-to-all, goes in rounds: each
    pair is in the first in which both of its GPUs have a port left. Pairs are taken by the step
    that first needs them, then by how far apart they are in the communicator.

    Parameters
    ----------
    steps : Steps
    members : sequence of int
        Global ranks, in the communicator's order.
    ports : int
        Of a GPU.

    Examples
    --------
    >>> from mpisim.base.kinds import Operation
    >>> from mpisim.topo.traffic.steps import collective_steps
    >>> steps = collective_steps(Operation.ALL_TO_ALL, "send", range(4), 1)
    >>> rounds_of(steps, range(4), 2)
    [[(0, 1), (0, 3), (1, 2), (2, 3)], [(0, 2), (1, 3)]]
    """
    place = {rank: i for i, rank in enumerate(members)}
    n = len(place)
    first: dict[Pair, tuple[int, int, int]] = {}
    for a, b, step in zip(steps.source.tolist(), steps.target.tolist(), steps.first.tolist()):
        distance = (place[b] - place[a]) % n
        key = step, min(distance, n - distance), min(place[a], place[b])
        pair = (a, b) if a < b else (b, a)
        first[pair] = min(first.get(pair, key), key)
    found: list[list[Pair]] = []
    used: list[dict[int, int]] = []
    lowest: dict[int, int] = {}  # rounds below are full at this GPU
    for pair in sorted(first, key=lambda each: (first[each], each)):
        at = max(lowest.get(end, 0) for end in pair)
        while at < len(used) and any(used[at].get(end, 0) >= ports for end in pair):
            at += 1
        if at == len(used):
            used.append({})
            found.append([])
        found[at].append(pair)
        for end in pair:
            used[at][end] = used[at].get(end, 0) + 1
            while lowest.get(end, 0) < len(used) and used[lowest.get(end, 0)].get(end, 0) >= ports:
                lowest[end] = lowest.get(end, 0) + 1
    return [sorted(pairs) for pairs in found]


class CircuitSwitch:
    """The circuits that stand, one communication after another.

    Parameters
    ----------
    ports : int
        Of a GPU.

    Examples
    --------
    >>> switch = CircuitSwitch(ports=1)
    >>> [switch.use([[pair]]) for pair in [(0, 1), (0, 1), (0, 2), (0, 1)]]
    [1, 0, 1, 1]
    """

    def __init__(self, ports: int) -> None:
        self.ports = ports
        self.set_up = self.evicted = 0
        self._clock = count(1)
        self._used: dict[Pair, int] = {}  # the last round that used each circuit
        self._of: dict[int, set[Pair]] = {}

    @property
    def order(self) -> list[Pair]:
        """The circuits that stand, the least recently used first."""
        return sorted(self._used, key=lambda pair: (self._used[pair], pair))

    def use(self, rounds: Sequence[Sequence[Pair]]) -> int:
        """Return the number of rounds of a communication that wait for circuit set-ups.

        Parameters
        ----------
        rounds : sequence of sequence of Pair
            No GPU is in more pairs of a round than it has ports.
        """
        waited = 0
        for pairs in rounds:
            now = next(self._clock)
            missing = [pair for pair in pairs if pair not in self._used]
            for pair in pairs:
                if pair in self._used:
                    self._used[pair] = now
            for pair in missing:
                for end in pair:
                    if len(self._of.setdefault(end, set())) >= self.ports:
                        self._evict(end, now)
                self._used[pair] = now
                for end in pair:
                    self._of[end].add(pair)
            self.set_up += len(missing)
            waited += bool(missing)
        return waited

    def _evict(self, end: int, now: int) -> None:
        """Destroy the idle circuit of a GPU that has not been used for the longest time."""
        idle = [pair for pair in self._of[end] if self._used[pair] < now]
        oldest = min(idle, key=lambda pair: (self._used[pair], pair))
        del self._used[oldest]
        for each in oldest:
            self._of[each].remove(oldest)
        self.evicted += 1


def steady_set_ups(
    communications: Sequence[Sequence[Sequence[Pair]]], ports: int, *, first: bool = False
) -> tuple[SetUps, bool]:
    """Rounds of a step's communications → its circuit set-ups once steps repeat unchanged.

    Parameters
    ----------
    communications : sequence of rounds
        In order, see `rounds_of`.
    ports : int
        Of a GPU.
    first : bool
        What the first step sets up instead, before which no circuit stands.

    Returns
    -------
    SetUps
    bool
        Whether a repetition begins with the same circuits, used in the same order, as the one
        before it, so that all further ones set up as much.
    """
    switch = CircuitSwitch(ports)
    before: list[Pair] = []
    while True:
        begun = switch.set_up, switch.evicted
        rounds = [switch.use(each) for each in communications]
        found = SetUps(rounds, switch.set_up - begun[0], switch.evicted - begun[1])
        order = switch.order
        repeats = order == before
        if first or repeats:
            return found, repeats
        if next(switch._clock) > MAX_REPEATS * (1 + sum(map(len, communications))):
            return found, False
        before = order
