"""Circuits that are set up and evicted, event by event: communications → how long each step takes.

The photonic network of TrioSim as its text has it: a send between two GPUs without a circuit waits
for one to be set up; if the ports of a GPU are all used, the circuit that has been idle for the
longest is destroyed. Which that is goes by the clock. A circuit is busy from when it is asked for
until the round of the communication that uses it has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

__all__ = ["Communication", "StepCircuits", "run_steps"]


@dataclass
class Communication:
    """Members, the pairs that it needs in each of its rounds, and its time with circuits in place.

    It takes all of that time in the last round; the rounds before it take one ps each.
    """

    members: tuple[int, ...]
    rounds: list[list[tuple[int, int]]]
    duration: int


@dataclass
class StepCircuits:
    """Of one step: when it ended after its begin, and how many circuits it set up and destroyed."""

    duration: int = 0
    set_up: int = 0
    evicted: int = 0


@dataclass
class _Circuits:
    ports: int
    setup: int
    released: dict[tuple[int, int], int] = field(default_factory=dict)  # when last used
    busy: set[tuple[int, int]] = field(default_factory=set)

    def ask(self, pair: tuple[int, int], outcome: StepCircuits) -> bool:
        """Take a circuit into use; return whether it has to be set up."""
        if pair in self.released:
            self.busy.add(pair)
            return False
        for end in pair:
            own = [each for each in self.released if end in each]
            if len(own) >= self.ports:
                idle = [each for each in own if each not in self.busy]
                del self.released[min(idle, key=lambda each: (self.released[each], each))]
                outcome.evicted += 1
        self.released[pair] = -1
        self.busy.add(pair)
        outcome.set_up += 1
        return True

    def release(self, pairs: Sequence[tuple[int, int]], now: int) -> None:
        for pair in pairs:
            self.busy.discard(pair)
            self.released[pair] = now


class _Step:
    """One step of all ranks, in the order of events."""

    def __init__(
        self, communications: Sequence[Communication], circuits: _Circuits, clock: int
    ) -> None:
        self.communications, self.circuits, self.clock = communications, circuits, clock
        self.outcome = StepCircuits()
        ranks = sorted({rank for each in communications for rank in each.members})
        self.waiting = {
            rank: [i for i, each in enumerate(communications) if rank in each.members]
            for rank in ranks
        }
        self.arrived = [0] * len(communications)
        self.number = count()
        # When, a tie, what happens, to which communication, in which of its rounds.
        self.events: list[tuple[int, int, str, int, int]] = []
        for rank in ranks:
            self.arrive(rank)

    def at(self, time: int, what: str, which: int, number: int) -> None:
        heapq.heappush(self.events, (time, next(self.number), what, which, number))

    def arrive(self, rank: int) -> None:
        """Let a rank come to its next communication, which begins with its last member."""
        if self.waiting[rank]:
            which = self.waiting[rank].pop(0)
            self.arrived[which] += 1
            if self.arrived[which] == len(self.communications[which].members):
                self.at(self.clock, "round", which, 0)

    def run(self) -> StepCircuits:
        begun = self.clock
        while self.events:
            self.clock, _, what, which, number = heapq.heappop(self.events)
            of = self.communications[which]
            pairs = of.rounds[number]
            last = number == len(of.rounds) - 1
            if what == "round":
                # Those that stand are in use before any is evicted for the others.
                pairs = sorted(pairs, key=lambda pair: pair not in self.circuits.released)
                late = max([self.circuits.ask(pair, self.outcome) for pair in pairs])
                takes = of.duration if last else 1
                self.at(self.clock + late * self.circuits.setup + takes, "end", which, number)
                continue
            self.circuits.release(pairs, self.clock)
            if not last:
                self.at(self.clock, "round", which, number + 1)
                continue
            for rank in of.members:
                self.arrive(rank)
        self.outcome.duration = self.clock - begun
        return self.outcome


def run_steps(
    communications: Sequence[Communication], ports: int, setup: int, steps: int
) -> list[StepCircuits]:
    """Run a step several times; all ranks begin each together.

    Parameters
    ----------
    communications : sequence of Communication
        Every rank takes part in its own in this order, one after another.
    ports : int
        Of a GPU.
    setup : int
        ps to set up a circuit.
    steps : int
    """
    circuits, clock, found = _Circuits(ports, setup), 0, []
    for _ in range(steps):
        step = _Step(communications, circuits, clock)
        found.append(step.run())
        clock = step.clock
    return found
