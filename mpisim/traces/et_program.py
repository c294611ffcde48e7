"""Execution traces of a job, which hold no times → a program with times from models.

Kernels take what the table of operators and the kernel models say; communications have a size and a
group and are left to the network; the CPU takes the five overheads of Lin et al. between and in
operators (``data/host_overheads.toml``). Streams: one of computation, one for each process group. A
communication waits for the kernels launched before it; kernels wait for it from where the program
did (``Work.wait``), or, as gradients' all-reduces are awaited without a record, from where the CPU
leaves the thread that issued it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import TraceError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity, picoseconds
from ..base.schema import build
from ..kernels import Gpu
from ..operators.measured import MeasuredOperators
from ..operators.pricing import OperatorPricing
from ..program import Kind, Operation, Program, ProgramBuilder, TableBuilder
from ..workloads.pricing import Launching
from .et import is_execution_trace, read_et
from .et_model import EtCommunication, ExecutionTrace
from .et_operators import EtLaunch, EtOperator, et_operators
from .sources import RANK_IN_NAME, is_folder, json_files

__all__ = ["HostOverheadTimes", "PricedJob", "execution_traces", "host_overhead_times", "price_job"]

FILE = "host_overheads.toml"
ANY = "any"
_OPERATIONS = {each.name.lower(): each for each in Operation}
_PAIRS = {"send": Kind.SEND, "recv": Kind.RECV}


@frozen
class HostOverheadTimes:
    """The five overheads of the hosts of one architecture's GPUs; see ``host_overheads.toml``."""

    T1: Quantity
    T2: Quantity
    T3: Quantity
    T4: Quantity
    T5: Quantity


def host_overhead_times(gpu: Gpu) -> HostOverheadTimes:
    """GPU → the overheads of hosts of its time."""
    tables = packaged(FILE)
    name = gpu.family if gpu.family in tables else ANY
    return build(HostOverheadTimes, tables[name], FILE, name)


@dataclass
class PricedJob:
    """A program made of execution traces, and what it rests on.

    Attributes
    ----------
    program : Program
    ranks : list of int
        As the files number them.
    named, unknown : float
        Seconds of kernels that models of their kind price, and of those priced by their bytes, over
        all ranks.
    host : float
        Seconds of CPU time over all ranks.
    spread : float
        What kernel and CPU times may be off together, in seconds over all ranks, by one standard
        deviation: all kernels are off together, and each overhead by itself.
    unknown_names : Counter
        Operators that the table does not know → how many calls.
    by_how : dict of str to float
        Seconds of kernels over all ranks that measured times price ("exact", "interpolated"), and
        models ("model").
    """

    program: Program
    ranks: list[int]
    named: float = 0.0
    unknown: float = 0.0
    host: float = 0.0
    spread: float = 0.0
    unknown_names: Counter[str] = field(default_factory=Counter)
    by_how: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative error bar of the kernels and the CPU time together."""
        return self.spread / ((self.named + self.unknown + self.host) or 1.0)


def execution_traces(paths: Sequence[str]) -> list[Path]:
    """Files and folders → the execution traces among them; other files in folders are passed over.

    Raises
    ------
    TraceError
        If a named file is none, or a folder holds none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not is_folder(path):
            if not is_execution_trace(path):
                raise TraceError(
                    f"{path}: not an execution trace; --gpu and --cluster price traces without "
                    "times, and a Kineto trace holds its own: --price changed starts from these"
                )
            found.append(path)
            continue
        inside = [each for each in json_files(path) if is_execution_trace(each)]
        if not inside:
            raise TraceError(f"{path}: no execution trace (.json or .json.gz with 'nodes') in it")
        found += inside
    return found


def price_job(
    files: Sequence[Path], gpu: Gpu, measured: MeasuredOperators | None = None
) -> PricedJob:
    """Read the execution traces of one job and price what they launch. Local.

    Parameters
    ----------
    files : sequence of Path
        One a rank.
    gpu : Gpu
        On which all run.
    measured : MeasuredOperators, optional
        Times of operators on that GPU, which come first.

    Raises
    ------
    TraceError
        If a file cannot be read, a rank is there twice, or one is missing with which another
        communicates.
    """
    traces = _by_rank(files)
    ranks = sorted(traces)
    times, pricing = host_overhead_times(gpu), OperatorPricing(gpu, measured)
    builder = ProgramBuilder()
    # The number of ranks bounds those of groups that were not recorded.
    writers = {
        rank: _Writer(rank, ranks, traces[rank], builder, gpu, times, pricing) for rank in ranks
    }
    for rank in ranks:
        writer = writers[rank]
        for operator in et_operators(traces[rank]):
            writer.add(operator)
        slots = writer.finish()
        builder.add_rank(builder.add_table(writer.rows.build()), slots)
    program = builder.build(
        {
            "source": "execution traces",
            "ranks": " ".join(map(str, ranks)),
            "world_size": str(len(ranks)),
        }
    )
    job = PricedJob(program, ranks)
    counted: Counter[str] = Counter()
    for writer in writers.values():
        job.named += writer.named / 1e12
        job.unknown += writer.unknown / 1e12
        job.spread += writer.spread / 1e12
        for how, length in writer.by_how.items():
            job.by_how[how] = job.by_how.get(how, 0.0) + length / 1e12
        job.unknown_names += writer.unknown_names
        counted += writer.overheads
    spreads = [job.spread]
    for name, count in counted.items():
        time: Quantity = getattr(times, name)
        job.host += count * time.si
        spreads.append(count * time.si * time.error)
    job.spread = math.hypot(*spreads)
    if not job.named + job.unknown:
        raise TraceError(f"{files[0]}: no operator here has a tensor on a GPU")
    return job


def _by_rank(files: Sequence[Path]) -> dict[int, ExecutionTrace]:
    found: dict[int, ExecutionTrace] = {}
    for path in files:
        et = read_et(path, arguments=True)
        by_name = RANK_IN_NAME.findall(path.name)
        rank = et.rank if et.rank is not None else int(by_name[-1]) if by_name else 0
        if len(files) > 1 and et.rank is None and not by_name:
            raise TraceError(f"{path}: its rank is neither in its groups nor in its name (rankN)")
        if rank in found:
            raise TraceError(f"{path}: rank {rank} is already given by {found[rank].path}")
        found[rank] = et
    return found


class _Writer:
    """Writes the rows of one rank."""

    def __init__(
        self,
        rank: int,
        ranks: list[int],
        et: ExecutionTrace,
        builder: ProgramBuilder,
        gpu: Gpu,
        times: HostOverheadTimes,
        pricing: OperatorPricing,
    ) -> None:
        self.rank, self.ranks, self.et = rank, ranks, et
        self.builder, self.pricing = builder, pricing
        self.rows: TableBuilder = builder.table(et.path.name)
        self.latency, self.gap = picoseconds(gpu.launch_latency.si), picoseconds(gpu.kernel_gap.si)
        self.times = {name: picoseconds(getattr(times, name).si) for name in vars(times)}
        self.overheads: Counter[str] = Counter()
        self.unknown_names: Counter[str] = Counter()
        self.by_how: Counter[str] = Counter()
        self.named = self.unknown = 0
        self.spread = 0.0
        self._pending = 0
        self._last = -1
        self._awaited: list[int] = []
        self._open: list[tuple[int, int]] = []
        self._slots: dict[int, int] = {}

    def _take(self, name: str) -> None:
        """Let the CPU take one of the overheads."""
        self._pending += self.times[name]
        self.overheads[name] += 1

    def _launch(self) -> Launching:
        """Return the columns of a launch: the CPU time before it, and its own."""
        host, self._pending = self._pending, 0
        self.overheads["T4"] += 1
        return Launching(host=host, launch=self.latency, launch_cost=self.times["T4"])

    def add(self, operator: EtOperator) -> None:
        """Write the rows of an operator that lies in no other."""
        self._take("T1")
        for row, thread in self._open:
            if thread != operator.thread:
                self._awaited.append(row)
        self._open = [each for each in self._open if each[1] == operator.thread]
        begun = False
        for launch in operator.launches:
            if launch.awaits:
                if self._open:
                    self._awaited.append(self._open.pop(0)[0])
                continue
            self._take("T5" if begun else "T2")
            begun = True
            if launch.communication is not None:
                self._communicate(launch.communication, operator.thread)
            else:
                self._compute(launch)
        self._take("T3" if begun else "T5")

    def _compute(self, launch: EtLaunch) -> None:
        assert launch.launched is not None
        priced = self.pricing.price(launch.launched, launch.call)
        for nth, (kernel, estimate) in enumerate(zip(priced.kernels, priced.estimates)):
            if nth:
                self._take("T5")
            copies = kernel.family == "copy"
            self._last = self.rows.kernel(
                launch.name,
                0,
                estimate.duration,
                waits=self._awaited,
                kind=Kind.COPY if copies else Kind.KERNEL,
                bytes=kernel.traffic if copies else -1,
                gap=self.gap,
                **self._launch(),
            )
            self._awaited = []
        self.spread += priced.error * priced.duration
        self.by_how[priced.how] += priced.duration
        if priced.known:
            self.named += priced.duration
        else:
            self.unknown += priced.duration
            self.unknown_names[launch.name] += 1
        if launch.blocks and self._last >= 0:
            self.rows.host_wait([self._last], host=self._pending)
            self._pending = 0

    def _communicate(self, found: EtCommunication, thread: int) -> None:
        members = found.ranks or tuple(self.ranks)
        missing = [each for each in members if each not in self.ranks]
        if missing:
            raise TraceError(
                f"{self.et.path}: node {self.et.id[found.node]} communicates with rank "
                f"{missing[0]}, whose trace is not among the files"
            )
        waits = [*self._awaited, *([self._last] if self._last >= 0 else [])]
        numbers = [self.ranks.index(each) for each in members]
        if found.collective in _PAIRS:
            way = _PAIRS[found.collective]
            me, other = self.ranks.index(self.rank), numbers[found.peer]
            pair = (me, other) if way is Kind.SEND else (other, me)
            slot = self._slot(self.builder.communicator(pair, f"{pair[0]} to {pair[1]}"))
            row = self.rows.point_to_point(
                way, slot, 1 + slot, found.bytes, waits=waits, **self._launch()
            )
        else:
            operation = _OPERATIONS.get(found.collective)
            if operation is None:
                raise TraceError(
                    f"{self.et.path}: node {self.et.id[found.node]} communicates by "
                    f"{found.recorded_name!r}, which no network model prices"
                )
            slot = self._slot(self.builder.communicator(numbers, found.group_name or None))
            row = self.rows.collective(
                operation, slot, 1 + slot, found.bytes, waits=waits, **self._launch()
            )
        self._open.append((row, thread))

    def _slot(self, communicator: int) -> int:
        return self._slots.setdefault(communicator, len(self._slots))

    def finish(self) -> list[int]:
        """Let the CPU wait for all that is under way; return the communicator of each slot."""
        left = [row for row, _ in self._open] + self._awaited
        last = [self._last] if self._last >= 0 else []
        self.rows.host_wait(sorted({*left, *last}), host=self._pending, name="end of the trace")
        self._pending = 0
        return list(self._slots)
