"""The overlap model of a program: a run's timelines → how long rows take beside each other.

`overlap_model` builds it for an experiment: the communications of every rank
(`communication_kernels`), and for each kind of GPU its kernels with their slowdown factors
(`factors`). `OverlapModel.slowed_rows` applies it to the ranks that a process simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import PICOSECONDS
from ..engine.duration_factors import ONE, jitter_factors, speed_factor
from ..engine.rows import Rows
from ..engine.run import Run
from ..kernels.operations import Kernel
from ..kernels.slowdown import (
    CLASSES,
    KernelWork,
    Load,
    Parametric,
    SlowdownConstants,
    packaged_constants,
    read_constants,
    work_of,
)
from ..program import Kind, Program, Table
from ..topo import Network
from ._core.rows import entries_of, slowdowns
from .communication_kernels import CommunicationKernels, RankCommunications
from .factors import LearnedFactors, LearnedSlowdowns, ParametricFactors, SlowdownFactors
from .retiming import delay_of_class
from .timeline import (
    USE_ONE,
    CommunicationFactors,
    KernelFactors,
    LoadIntervals,
    load_intervals,
    slowed_communications,
    slowed_kernels,
)

if TYPE_CHECKING:
    from ..experiment.choices import OverlapChoice
    from ..workloads.pricing import Pricing

__all__ = ["DeviceModel", "OverlapModel", "SlowedRows", "overlap_model"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_KERNEL = int(Kind.KERNEL)
"""As a number, which numpy takes at once."""

Key = tuple[str, int]
"""A kernel's key: the name of its rows, and their duration in ps."""


class SlowedRows(NamedTuple):
    """Times of the rows of a rank beside each other.

    Attributes
    ----------
    rows : int64, shape (s,)
        Kernels that take longer beside communications than in the table, ascending.
    duration : int64, shape (s,)
        How long, in ps of a rank of speed 1.
    wire : int64, shape (m,)
        Communications: beside this rank's kernels, with the network to themselves, in ps.
    kernel_time : int64, shape (len(CLASSES), 2)
        Time of the kernels of each class that are slowed: alone, and beside communications, in ps.
    terms : int64, shape (len(CLASSES), c)
        Part of the latter that is proportional to each number of the model, in ps.
    """

    rows: Ints
    duration: Ints
    wire: Ints
    kernel_time: Ints
    terms: Ints


@frozen
class DeviceModel:
    """One kind of GPU: its kernels, and their slowdown factors.

    Attributes
    ----------
    factors : SlowdownFactors
    work : KernelWork
        Of the kernels.
    durations : int64, shape (l,)
        Distinct durations of the kernels in ps, ascending.
    entry : int64, shape (l, len(program.names))
        Entry of `work` of the rows with a duration and a name; -1: none.
    """

    factors: SlowdownFactors
    work: KernelWork
    durations: Ints
    entry: Ints

    @classmethod
    def of(
        cls,
        program: Program,
        factors: SlowdownFactors,
        work: KernelWork,
        kernels: Mapping[Key, Kernel],
    ) -> DeviceModel:
        """Build from kernels by key, in the order of `work`.

        Parameters
        ----------
        program : Program
        factors : SlowdownFactors
        work : KernelWork
        kernels : mapping of (str, int) to Kernel
            By name and duration in ps. Names that the program lacks are left out.
        """
        durations = distinct(np.array([length for _, length in kernels], np.int64))
        entry = np.full((len(durations), len(program.names)), -1)
        number = {name: i for i, name in enumerate(program.names)}
        known = [
            (length, number[name], i) for i, (name, length) in enumerate(kernels) if name in number
        ]
        lengths, names, entries = np.array(known, np.int64).reshape(-1, 3).T
        entry[np.searchsorted(durations, lengths), names] = entries
        return cls(factors, work, durations, entry)

    def numbers(self, table: Table, rows: Ints) -> Ints:
        """Return the entry of `work` of some rows of a table; -1: not described there.

        Parameters
        ----------
        table : Table
        rows : int64, shape (n,)
            Numbers of rows.

        Returns
        -------
        int64, shape (n,)
        """
        found: Ints = entries_of(table.name, table.duration, rows, self.durations, self.entry)
        return found

    @cached_property
    def memory_parts(self) -> Ints:
        """Use of the memory's bandwidth by each kernel, as `CommunicationFactors` counts it."""
        return np.rint(self.work.use * USE_ONE).astype(np.int64)


class _Kernels(NamedTuple):
    """The kernels of a table that a GPU's work describes, `k` of them.

    Attributes
    ----------
    rows : int64, shape (k,)
        Of the table.
    number : int64, shape (k,)
        Entry of `DeviceModel.work`.
    alone : int64, shape (k,)
        Time without slowdown, in ps.
    kind : int64, shape (k,)
        Entry of `CLASSES`.
    memory_parts : int64, shape (k,)
        As for `CommunicationFactors.memory_use`.
    """

    rows: Ints
    number: Ints
    alone: Ints
    kind: Ints
    memory_parts: Ints


@frozen
class OverlapModel:
    """The overlap model of all ranks of a program.

    Attributes
    ----------
    program : Program
        With durations without slowdown.
    communications : CommunicationKernels
    devices : tuple of DeviceModel
    kind : int64, shape (n_ranks,)
        Entry of `devices` of each rank.
    """

    program: Program
    communications: CommunicationKernels
    devices: tuple[DeviceModel, ...]
    kind: Ints

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the numbers that factors of kernels depend on."""
        return self.devices[0].factors.terms

    def device(self, rank: int) -> DeviceModel:
        """Return the GPU of a rank."""
        return self.devices[int(self.kind[rank])]

    def slowed_rows(self, run: Run) -> dict[int, SlowedRows]:
        """Return the slowed rows of the ranks that were simulated here, by class. Local.

        Ranks with identical timelines and communications are worked out once.
        """
        found: dict[int, SlowedRows] = {}
        known: dict[tuple[Hashable, ...], SlowedRows] = {}
        for i, identical in zip(run.simulated.tolist(), run.identical.tolist(), strict=True):
            rank = int(run.hosted[i])
            tables = int(self.program.table[rank]), int(run.program.table[rank])
            kinds = int(self.kind[rank]), self.communications.key_of(rank)
            key = (*tables, *kinds, identical)
            number = int(run.classes.of_rank[rank])
            if key not in known:
                delays, own = delay_of_class(run, number), self.communications.of(rank).rows
                delay = np.zeros(len(own), np.int64) if delays is None else delays[own]
                known[key] = self._slowed_rows(rank, delay, run.rows(i))
            found[number] = known[key]
        return found

    def _slowed_rows(self, rank: int, delay: Ints, rows: Rows) -> SlowedRows:
        """Timeline of a rank, run with some wire delays → its slowed rows.

        Parameters
        ----------
        rank : int
        delay : int64, shape (m,)
            Of its communications, in ps.
        rows : Rows
        """
        device = self.device(rank)
        own, of = self.communications.of(rank), self._kernels_of(rank)
        at = own.rows
        begin, wire, end = rows.begin[at], rows.wire[at], rows.end[at]

        n_terms = len(device.factors.terms)
        kernel_time = np.zeros((len(CLASSES), 2), np.int64)
        terms = np.zeros((len(CLASSES), n_terms), np.int64)
        which = duration = np.empty(0, np.int64)
        loads = _loads(own, begin, wire, end)
        of_kernels, of_communications = self._factors[int(self.kind[rank])]
        if len(loads.time) and len(of.rows):
            scale = self.duration_factors(rank, of.rows)
            met = slowed_kernels(
                *(rows.begin, of.rows, of.number, of.alone, scale), loads, of_kernels
            )
            which, duration = slowdowns(of.kind, of.alone, scale, *met, kernel_time, terms)
        wire_time = own.alone
        if len(at) and len(of.rows):
            time, use = of_communications.memory_use(rows.begin, rows.end, of.rows, of.memory_parts)
            wire_time = _slowed_wire_times(own, delay, wire, end, time, use, of_communications)
        return SlowedRows(of.rows[which], duration, wire_time, kernel_time, terms)

    def _kernels_of(self, rank: int) -> _Kernels:
        """Return the kernels of a rank's table on its GPU."""
        key = int(self.program.table[rank]), int(self.kind[rank])
        if key not in self._known_kernels:
            table, device = self.program.table_of(rank), self.device(rank)
            rows = np.flatnonzero(table.kind == _KERNEL)
            number = device.numbers(table, rows)
            known = number >= 0
            if not known.all():
                rows, number = rows[known], number[known]
            self._known_kernels[key] = _Kernels(
                rows=rows,
                number=number,
                alone=table.duration[rows],
                kind=device.work.kind[number],
                memory_parts=device.memory_parts[number],
            )
        return self._known_kernels[key]

    @cached_property
    def _known_kernels(self) -> dict[tuple[int, int], _Kernels]:
        """Kernels by table and kind of GPU."""
        return {}

    @cached_property
    def _factors(self) -> list[tuple[KernelFactors, CommunicationFactors]]:
        """Factors of the kernels of each kind of GPU, and of communications beside them."""
        distinct = self.communications.distinct

        def of(device: DeviceModel) -> tuple[KernelFactors, CommunicationFactors]:
            return (
                KernelFactors(
                    lambda kernel, *load: device.factors.kernels(kernel, Load(*load), distinct),
                    len(device.factors.terms),
                ),
                CommunicationFactors(device.factors.communications, USE_ONE),
            )

        return [of(device) for device in self.devices]

    def duration_factors(self, rank: int, rows: Ints) -> Floats:
        """Return the factors of some rows of a rank for its speed and jitter.

        Parameters
        ----------
        rank : int
            Its number in the program.
        rows : int64, shape (n,)
            Numbers of rows of its table.

        Returns
        -------
        float64, shape (n,)
            Above 0; 1 at speed 1 without jitter.
        """
        program = self.program
        factor = speed_factor(float(program.speed[rank]))
        if program.jitter is not None:
            factor = jitter_factors(program.jitter, rank, rows, int(factor))
        return np.broadcast_to(np.maximum(factor / ONE, 1 / ONE), rows.shape)


def _loads(own: RankCommunications, begin: Ints, wire: Ints, end: Ints) -> LoadIntervals:
    """Return the load of communications that began, moved data and ended at some times.

    `Load.which` is an entry of `CommunicationKernels.distinct`.
    """
    wire, end = own.occupied(begin, wire, end)
    bandwidth = np.rint(own.traffic / np.maximum(end - wire, 1) * 1e12).astype(np.int64)
    return load_intervals(begin, wire, end, own.taken, bandwidth, own.which, own.orders)


def _slowed_wire_times(
    own: RankCommunications,
    delay: Ints,
    wire: Ints,
    end: Ints,
    time: Ints,
    use: Ints,
    factors: CommunicationFactors,
) -> Ints:
    """Return wire times of communications beside the kernels of their rank, in ps.

    Parameters
    ----------
    own : RankCommunications
    delay : int64, shape (m,)
        The wire delay of each with which the rank was run, in ps.
    wire, end : int64, shape (m,)
        When the wire time of each communication began and ended in that run, in ps.
    time, use, factors
        As for `slowed_communications`.
    """
    # Where links are shared a communication takes longer than its price, by the same ratio with
    # and without slowdown.
    contended = (end - wire) / np.maximum(own.alone + delay, 1)
    lasting = slowed_communications(wire, own.alone * contended, time, use, factors)
    found = np.rint(lasting / np.where(contended > 0, contended, 1.0)).astype(np.int64)
    return np.maximum(found, own.alone)


def overlap_model(
    program: Program,
    network: Network,
    pricings: Sequence[Pricing],
    gpu_of: Ints | None,
    choice: OverlapChoice,
    source: str,
) -> OverlapModel:
    """Build the overlap model of a workload. Local.

    Parameters
    ----------
    program : Program
    network : Network
    pricings : sequence of Pricing
        Of each kind of GPU: its kernels.
    gpu_of : int64, shape (n_ranks,), or None
        The entry of `pricings` of each rank; None: all have the first.
    choice : OverlapChoice
    source : str
        The experiment's file: paths are relative to its folder, and errors name it.

    Raises
    ------
    InputError
        If a file that the experiment names cannot be read, or is not of its form.
    """
    folder = Path(source).parent
    try:
        constants = packaged_constants()
        if choice.calibration is not None:
            constants = read_constants(folder / choice.calibration)
        pairs = None if choice.pairs is None else folder / choice.pairs
        devices = tuple(_device(program, each, constants, pairs) for each in pricings)
    except InputError as error:
        raise InputError(f"{source}: [overlap] {error}") from error
    kind = np.zeros(program.n_ranks, np.int64) if gpu_of is None else gpu_of
    return OverlapModel(program, CommunicationKernels(program, network, constants), devices, kind)


def _device(
    program: Program, pricing: Pricing, constants: SlowdownConstants, pairs: Path | None
) -> DeviceModel:
    seconds = [duration / PICOSECONDS for _, duration in pricing.kernels]
    work = work_of(pricing.model, list(pricing.kernels.values()), seconds)
    model = Parametric(work, constants)
    factors: SlowdownFactors = ParametricFactors(model)
    if pairs is not None:
        factors = LearnedFactors(LearnedSlowdowns.read(pairs, work.parameters.name), model)
    return DeviceModel.of(program, factors, work, pricing.kernels)
