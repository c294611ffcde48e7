"""Traces of a job → a program; each process reads the ranks it hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..mpi.parallel import collective_errors, progress
from ..program import Names, Program, Table
from .assemble import CommunicatorSlots, break_cycles
from .communications import Communication, rank_communications
from .host import Call, host_calls, is_communication_kernel
from .kineto import KERNEL, KinetoTrace, device_part
from .kineto_file import read_kineto
from .lower import Lowered, lower
from .matching import Matching, match_communications
from .nsys import read_nsys
from .operator_calls import LaunchedCall, launched_calls
from .overheads import HostOverheads, host_overheads
from .shift import shift_second_half
from .sources import Source
from .timing import DeviceTiming, explain_late_starts, measure_timing
from .waits import Inference, infer_waits

__all__ = ["RankFacts", "RankTrace", "TraceProgram", "read_program", "read_rank"]


@dataclass
class RankFacts:
    """What is known about one rank's trace beside its rows.

    Attributes
    ----------
    rank : int
        Global rank, as the files number it.
    lowered : Lowered
        Rows, and what was recorded of each.
    counts : Counter
        Inference rules used.
    late : tuple of (int, float)
        Device operations that started later than all their known inputs, and by how many seconds.
    kept : dict of int to float
        Seconds replayed as recorded though their cause is not known, by step (-1: in none): late
        starts, stalls, communications without a partner.
    overheads : HostOverheads
    bytes_read : int
        Size of the decompressed file.
    device_name : str
    kernels : int
    calls : list of LaunchedCall, optional
        Calls of operators, where `read_program` kept them; empty without shapes.
    """

    rank: int
    lowered: Lowered
    counts: Counter[str]
    late: tuple[int, float]
    kept: dict[int, float]
    overheads: HostOverheads
    bytes_read: int
    device_name: str
    kernels: int
    calls: list[LaunchedCall] | None = None


@dataclass
class TraceProgram:
    """A program read from traces.

    Attributes
    ----------
    program : Program
        Simulated rank ``i`` is the i-th of `ranks`; partial when several processes read.
    ranks : list of int
        Global ranks, as the files number them.
    facts : dict of int to RankFacts
        By simulated rank; only those read here.
    matching : Matching
        The same on every process.
    start : int64, shape (n_ranks,)
        Clock-aligned start of each rank relative to the first, in ps (as in the program).
    recorded_groups : tuple of (tuple of int or None)
        Of each communicator, the global ranks that the files name as its group, also those without
        a trace; None where they name none.
    """

    program: Program
    ranks: list[int]
    facts: dict[int, RankFacts]
    matching: Matching
    world_size: int
    recorded_groups: tuple[tuple[int, ...] | None, ...] = ()


@dataclass
class RankTrace:
    """One rank's trace and what was found out about it, before its table is written."""

    trace: KinetoTrace
    calls: list[Call]
    inferred: Inference
    timing: DeviceTiming
    communications: list[Communication]
    overheads: HostOverheads
    operators: list[LaunchedCall] | None = None


def read_program(
    sources: Sequence[Source],
    comm: Any,
    placement: NDArray[np.int32],
    late_edges: bool = True,
    shift: tuple[int, float] | None = None,
    keep_calls: bool = False,
) -> TraceProgram:
    """Read the traces of one job. **Collective.**

    Each process parses the files of its own ranks only. What the ranks communicated is exchanged
    once, so that all processes match it in the same way.

    Parameters
    ----------
    sources : sequence of Source
        Files in order of rank; the same on every process.
    comm : mpi4py.MPI.Comm
    placement : int32, shape (n_ranks,)
        The process of every simulated rank.
    late_edges : bool
        Whether starts later than their known inputs may be explained by recorded times.
    shift : (int, float), optional
        For tests: shift the second half of what the n-th rank recorded by so many seconds.
    keep_calls : bool
        Whether to keep the operators' calls of some ranks, which takes time to find and memory: of
        the ranks read here the first of each set of kernel names, which tells stages of a pipeline
        apart.

    Raises
    ------
    TraceError
        If a file cannot be read or understood, or the files are not of one job.
    """
    mine = np.flatnonzero(placement == comm.rank).tolist()
    held: dict[int, RankTrace] = {}
    seen: set[frozenset[str]] | None = set() if keep_calls else None
    label = f"reading {len(sources)} traces"
    with collective_errors(comm), progress(comm, label, len(mine)) as update:
        for done, i in enumerate(mine):
            update(done)
            by = shift[1] if shift is not None and shift[0] == i else 0.0
            held[i] = read_rank(sources[i], late_edges, by, seen)
    own = {i: (r.communications, _start(r), _window(r)) for i, r in held.items()}
    everyone: dict[int, Any] = {}
    for part in comm.allgather(own):
        everyone.update(part)
    _check_one_job(sources, everyone)
    matching = match_communications(
        {source.rank: everyone[i][0] for i, source in enumerate(sources)}
    )
    break_cycles(matching)
    ranks = [source.rank for source in sources]
    layout = CommunicatorSlots(matching, ranks)
    alone: dict[int, list[int]] = {rank: [] for rank in ranks}
    for of in matching.operations:
        if len(of.members) == 1:
            alone[of.members[0].rank].append(of.members[0].op)
    names = Names()
    facts: dict[int, RankFacts] = {}
    tables: list[Table | None] = [None] * len(sources)
    with collective_errors(comm):
        for i in mine:
            facts[i] = _write(i, held.pop(i), sources[i], layout, names, alone[sources[i].rank])
            tables[i] = facts[i].lowered.table
    # Plain integers: picoseconds since the epoch do not fit 64 bits.
    starts = [everyone[i][1] - matching.offset[rank] for i, rank in enumerate(ranks)]
    slots = [layout.slots(i) for i in range(len(sources))]
    world = max(source.world_size for source in sources) or len(sources)
    with collective_errors(comm):
        program = Program(
            names=tuple(names),
            tables=tuple(tables),
            communicators=layout.communicators(),
            table=np.arange(len(sources), dtype=np.int32),
            slot_index=np.concatenate([[0], np.cumsum([len(own) for own in slots])]),
            slots=np.array([c for own in slots for c in own], np.int32),
            speed=np.ones(len(sources)),
            start=np.array([start - min(starts) for start in starts], np.int64),
            attributes={
                "source": "traces",
                "ranks": " ".join(map(str, ranks)),
                "world_size": str(world),
            },
        )
    return TraceProgram(program, ranks, facts, matching, world, tuple(layout.recorded_groups))


def read_source(source: Source) -> KinetoTrace:
    """Read one rank's file, whichever sort it is. Local.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
    if source.process >= 0:
        return read_nsys(source.path, source.process)
    return read_kineto(source.path)


def read_rank(
    source: Source,
    late_edges: bool = True,
    shift: float = 0.0,
    seen: set[frozenset[str]] | None = None,
) -> RankTrace:
    """Read one rank's trace and find out what its rows depend on. Local.

    Parameters
    ----------
    source : Source
    late_edges : bool
        Whether starts later than their known inputs may be explained by recorded times.
    shift : float
        For tests: seconds by which the second half of the recording is shifted.
    seen : set of frozenset of str, optional
        Names of the kernels of earlier ranks: a rank of others joins them, and keeps the calls of
        its operators.

    Raises
    ------
    TraceError
        If the file cannot be read or understood, or holds no GPU work.
    """
    trace = read_source(source)
    if not len(trace.device):
        raise TraceError(
            f"{source.path}: no GPU kernels in this trace; only traces of GPU work can be replayed"
        )
    if shift:
        trace = shift_second_half(trace, round(shift * 1e12))
    calls = host_calls(trace)
    inferred = infer_waits(trace, calls)
    measure = explain_late_starts if late_edges else measure_timing
    timing = measure(trace, calls, inferred)
    return RankTrace(
        device_part(trace),
        calls,
        inferred,
        timing,
        rank_communications(trace, calls, source.rank),
        host_overheads(trace, calls, inferred),
        None if seen is None or source.process >= 0 else _operators(trace, seen),
    )


def _operators(trace: KinetoTrace, seen: set[frozenset[str]]) -> list[LaunchedCall] | None:
    """Return the calls of a rank's operators, none without shapes; None if its names are `seen`."""
    names = frozenset(trace.device.name)
    if names in seen:
        return None
    seen.add(names)
    try:
        return launched_calls(trace)
    except TraceError:
        return []


def _start(rank: RankTrace) -> int:
    """When the rank's first event began, ps since the epoch."""
    first = [rank.calls[0].begin] if rank.calls else []
    return rank.trace.origin * 1_000_000 + min([*first, int(rank.trace.device.begin[0])])


def _window(rank: RankTrace) -> tuple[int, int]:
    epoch = rank.trace.origin * 1_000_000
    return epoch + int(rank.trace.device.begin[0]), epoch + int(rank.trace.device.end.max())


def _check_one_job(sources: Sequence[Source], everyone: dict[int, Any]) -> None:
    """Refuse files whose recordings do not overlap in time: they are not of one run."""
    windows = {i: entry[2] for i, entry in everyone.items()}
    first = min(windows, key=lambda i: windows[i])
    for i, (begin, end) in sorted(windows.items()):
        if begin > windows[first][1] or end < windows[first][0]:
            raise TraceError(
                f"{sources[i].path}: recorded at another time than {sources[first].path}; "
                "these are traces of two jobs"
            )


def _kept(rank: RankTrace, lowered: Lowered, alone: list[int]) -> dict[int, float]:
    """Return what is replayed as recorded though its cause is not known, in seconds by step.

    `alone` are the communications without a partner, whose waiting is included.
    """
    device = rank.trace.device
    unknown = np.maximum(rank.timing.excess, 0)
    unknown[alone] += (device.end - device.begin)[alone]
    rows = np.flatnonzero((lowered.op >= 0) & np.append(True, np.diff(lowered.op) != 0))
    steps = np.full(len(device), -1, np.int64)
    steps[lowered.op[rows]] = lowered.table.step[rows]
    found: dict[int, float] = {}
    for step in np.unique(steps).tolist():
        found[step] = float(unknown[steps == step].sum()) / 1e12
    first = int(device.begin[0])
    for stall in lowered.stalls:
        if stall.end > first:  # what comes before all work of the device is in no step
            found[stall.step] = found.get(stall.step, 0.0) + stall.seconds
    return found


def _write(
    index: int,
    rank: RankTrace,
    source: Source,
    layout: CommunicatorSlots,
    names: Names,
    alone: list[int],
) -> RankFacts:
    """Write the table of one rank."""
    device = rank.trace.device
    lowered = lower(
        rank.trace,
        rank.calls,
        rank.inferred,
        rank.timing,
        names,
        [is_communication_kernel(name) for name in device.name],
        layout.emitter(index, device.name, device.stream.tolist()),
    )
    excess = rank.timing.excess[rank.timing.excess > 0]
    return RankFacts(
        rank=source.rank,
        lowered=lowered,
        counts=rank.inferred.counts,
        late=(len(excess), float(excess.sum()) / 1e12),
        kept=_kept(rank, lowered, alone),
        overheads=rank.overheads,
        bytes_read=rank.trace.size,
        device_name=rank.trace.device_name,
        kernels=int((device.kind == KERNEL).sum()),
        calls=rank.operators,
    )
