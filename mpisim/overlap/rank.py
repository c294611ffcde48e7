"""How long the rows of one rank last, given what ran beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import Quantity
from ..engine.run import Run
from ..engine.variation import ONE, factor_of, jitter_factors
from ..kernels.operations import Kernel
from ..kernels.slowdown import CLASSES, Load, Work
from ..program import Kind, Program, Table
from ._core.rows import added
from .residents import Held, Resident, Residents
from .timeline import kernels_last, loads_of, moved, use_of

__all__ = ["Device", "Factors", "Lengths", "Ranks"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Key = tuple[str, int]
"""Of a kernel: the name of its rows, and their duration in ps."""


class Factors(Protocol):
    """A model of how much longer things take beside each other."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the numbers that kernels' factors rest on."""

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """These numbers and those that communications' factors rest on, with error bars."""

    def kernels(self, kernel: Ints, load: Load, beside: list[Resident]) -> tuple[Floats, Floats]:
        """Return the factors of kernels, shape (p,), and how they depend on `terms`, (p, c).

        `load.which` counts the entries of `beside`.
        """

    def communications(self, held: Held, known: list[Resident], use: Floats) -> Floats:
        """Return the factors of communications beside kernels that use the memory so much."""


class Lengths(NamedTuple):
    """How long the rows of a rank last.

    Attributes
    ----------
    duration : int64, shape (n,)
        Kernels: beside communications, in ps of a rank of speed 1; other rows as in the table.
    wire : int64, shape (m,)
        Communications: beside this rank's kernels, by themselves on the network, in ps.
    spent : int64, shape (len(CLASSES), 2)
        Of the kernels of each class that last longer: their time alone, and beside communications.
    terms : int64, shape (len(CLASSES), c)
        Of the latter, ps in proportion to each number that factors rest on.
    """

    duration: Ints
    wire: Ints
    spent: Ints
    terms: Ints


@dataclass(frozen=True)
class Device:
    """One kind of GPU: its kernels, and the model of what slows them.

    Attributes
    ----------
    factors : Factors
    work : Work
        Of the kernels.
    durations : int64, shape (l,)
        Durations of the kernels in ps, ascending.
    entry : int64, shape (l, len(program.names))
        Which kernel of `work` rows of a duration and a name are, or -1.
    """

    factors: Factors
    work: Work
    durations: Ints
    entry: Ints

    @classmethod
    def of(
        cls, program: Program, factors: Factors, work: Work, kernels: Mapping[Key, Kernel]
    ) -> Device:
        """Make of the kernels by key, in the order of `work`."""
        durations = np.unique(np.array([length for _, length in kernels], np.int64))
        entry = np.full((len(durations), len(program.names)), -1)
        number = {name: i for i, name in enumerate(program.names)}
        for i, (name, length) in enumerate(kernels):
            if name in number:
                entry[np.searchsorted(durations, length), number[name]] = i
        return cls(factors, work, durations, entry)

    def numbers(self, table: Table, rows: Ints) -> Ints:
        """Return which kernel of `work` rows are; -1 for what nobody has described."""
        if not len(self.durations):
            return np.full(len(rows), -1)
        length = table.duration[rows]
        at = np.searchsorted(self.durations, length).clip(max=len(self.durations) - 1)
        return np.where(self.durations[at] == length, self.entry[at, table.name[rows]], -1)


@dataclass(frozen=True)
class Ranks:
    """All that is needed to work out how long rows last, for any rank of a program.

    Attributes
    ----------
    program : Program
        With durations as they are alone.
    residents : Residents
    devices : tuple of Device
    kind : int64, shape (n_ranks,)
        Which of them each rank has.
    """

    program: Program
    residents: Residents
    devices: tuple[Device, ...]
    kind: Ints

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the numbers that kernels' factors rest on."""
        return self.devices[0].factors.terms

    def device(self, rank: int) -> Device:
        """Return the kind of GPU of a rank."""
        return self.devices[int(self.kind[rank])]

    def lengths(self, run: Run) -> dict[int, Lengths]:
        """Return the lengths of the ranks that were simulated here, by class. Local.

        Ranks that did the same at the same times are worked out once.
        """
        found: dict[int, Lengths] = {}
        known: dict[tuple[int, ...], Lengths] = {}
        for i, alike in zip(run.simulated.tolist(), run.identical.tolist(), strict=True):
            rank = int(run.hosted[i])
            held = self.residents.of(rank)
            tables = int(self.program.table[rank]), int(run.program.table[rank])
            key = (*tables, int(self.kind[rank]), alike, id(held))
            if key not in known:
                known[key] = self._lengths(rank, run.program.table_of(rank), held, run.rows(i))
            found[int(run.classes.of_rank[rank])] = known[key]
        return found

    def _lengths(self, rank: int, current: Table, held: Held, rows: object) -> Lengths:
        table, device = self.program.table_of(rank), self.device(rank)
        begin, wire, end = (np.asarray(getattr(rows, n)) for n in ("begin", "wire", "end"))
        known = self.residents.known
        at = held.rows
        here = end[at] > begin[at]

        kernels = np.flatnonzero(table.kind == Kind.KERNEL)
        number = device.numbers(table, kernels)
        kernels, number = kernels[number >= 0], number[number >= 0]

        moving = np.maximum(end[at] - wire[at], 1)
        bandwidth = np.rint(held.traffic / moving * 1e12).astype(np.int64)
        loads = loads_of(
            begin[at][here], wire[at][here], end[at][here], held.taken[here], bandwidth[here]
        )
        duration = table.duration.copy()
        n_terms = len(device.factors.terms)
        spent = np.zeros((len(CLASSES), 2), np.int64)
        terms = np.zeros((len(CLASSES), n_terms), np.int64)
        if len(loads.time) and len(kernels):
            beside = [known[k] for k in held.which[here].tolist()]
            alone = table.duration[kernels]
            scale = self.varied(rank, kernels)
            lasting, rest = kernels_last(
                begin[kernels],
                alone * scale,
                loads,
                lambda some, load: device.factors.kernels(number[some], load, beside),
                n_terms,
            )
            longer = np.rint(lasting / scale).astype(np.int64)
            duration[kernels] = np.maximum(longer, alone)
            added(device.work.kind[number], alone, duration[kernels], rest, spent, terms)
        slower = held.alone
        if len(at) and len(kernels):
            time, use = use_of(begin[kernels], end[kernels], device.work.use[number])
            factor = device.factors.communications(held, known, use)
            slower = _moved(held, current, wire[at], end[at], time, factor)
        return Lengths(duration, slower, spent, terms)

    def varied(self, rank: int, rows: Ints) -> Floats:
        """Return how many times as long as at speed 1, and without jitter, rows of a rank take."""
        program = self.program
        factor = factor_of(float(program.speed[rank]))
        if program.jitter is not None:
            factor = jitter_factors(program.jitter, rank, rows, int(factor))
        return np.maximum(np.broadcast_to(factor, rows.shape) / ONE, 1 / ONE)


def _moved(held: Held, current: Table, wire: Ints, end: Ints, time: Ints, factor: Floats) -> Ints:
    """Return how long communications last beside the kernels of their rank, in ps."""
    # What shares links takes longer than its price: the price is scaled, the rest stays.
    priced = held.alone + (0 if current.longer is None else current.longer[held.rows])
    crowded = (end - wire) / np.maximum(priced, 1)
    lasting = moved(wire, held.alone * crowded, time, factor)
    found = np.rint(lasting / np.where(crowded > 0, crowded, 1.0)).astype(np.int64)
    return np.maximum(found, held.alone)
