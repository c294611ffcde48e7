"""Recordings of captured ranks → a program: priced kernels, copies, communications, waits.

Each recording becomes one table, which all ranks that play its part share; their communicators are
the groups that they have in the place of its own. Launches take the CPU what they take in the
programs that mpisim generates (`mpisim.workloads.pricing`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..base.errors import InputError
from ..base.kinds import Flag, Kind, Operation
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..kernels import gpu_names
from ..kernels.alternatives.database import EXACT, INTERPOLATED
from ..kernels.counted import COUNTED, kept_kernels
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.model import KernelModel
from ..kernels.operations import Copy
from ..operators.measured import MeasuredOperators
from ..operators.pricing import MEASURED, Priced, as_measured, measured_share
from ..operators.recurrent import ONE_CALL
from ..operators.table import kernels_of
from ..operators.transformer_engine import looped
from ..program import KEPT_STEP, Program, ProgramBuilder, Table
from ..program.table_builder import TableBuilder
from ..workloads.data_parallel.frameworks import frameworks
from ..workloads.host import BANDWIDTH, SHARE, Host
from ..workloads.pricing import NO_LAUNCH, Launching, Pricing, shortened
from .device import FILE
from .kept_step import CAPTURED, kept_step
from .recording import HostWork, Item, ItemKind, Recording, Wait

__all__ = ["Part", "program_of"]

UNKNOWN = "kernels of unknown operators"
"""Name of the error of what is priced by its bytes alone."""

ON_CPU = -2
"""Stream number of CPU operators (optimizers, conversions)."""

Slot = tuple[int, int, int]
"""Place of a group among those of a rank; positions of sender and receiver, -1 for collectives."""


class Part(NamedTuple):
    """A recording, and the ranks that do what it says.

    Attributes
    ----------
    recording : Recording
    ranks : tuple of int
    """

    recording: Recording
    ranks: tuple[int, ...]


class _TableWriter:
    """Writes the table of one recording."""

    def __init__(
        self,
        part: Recording,
        pricing: Pricing,
        builder: TableBuilder,
        host: Host | None,
        measured: MeasuredOperators | None,
    ) -> None:
        self.recording, self.pricing, self.rows = part, pricing, builder
        self.host = host
        self.host_numbers: dict[str, Quantity] = {}
        self.by_how: Counter[str] = Counter()
        self.place = {number: i for i, number in enumerate(part.own_groups())}
        self.slots: dict[Slot, int] = {}
        self.unknown: Counter[str] = Counter()
        self._items: dict[int, list[int]] = {}
        self._rows: dict[int, list[int]] = {}
        self._pending: dict[int, set[int]] = {}
        self._streams: dict[int, int] = {}
        self._copy_launch = frameworks().ddp.copy_launch.value
        self._launched = [kernels_of(call) for call in part.calls]
        find = (lambda call: None) if measured is None else measured.find
        self._measured = [find(call) for call in part.calls]

    def table(self) -> Table:
        """Return the table."""
        for number, item in enumerate(self.recording.items):
            self.rows.tags(phase=item.phase, layer=item.layer, step=item.step)
            if item.kind is ItemKind.HOST_WAIT:
                waits = {row for wait in item.waits for row in self._before(wait)}
                if waits:
                    self.rows.host_wait(sorted(waits), name=item.name)
                continue
            if item.kind is ItemKind.HOST_WORK:
                self._host_work(item)
                continue
            pending = self._pending.setdefault(item.stream, set())
            pending |= {row for wait in item.waits for row in self._before(wait)}
            for row in self._written(item):
                self._items.setdefault(item.stream, []).append(number)
                self._rows.setdefault(item.stream, []).append(row)
        return self.rows.build()

    def _before(self, wait: Wait) -> list[int]:
        """Return the last row of a stream up to an item: none or one."""
        at = bisect_right(self._items.get(wait.stream, []), wait.item)
        return [self._rows[wait.stream][at - 1]] if at else []

    def _take(self, stream: int) -> list[int]:
        """Return what the next row of a stream waits for, besides the one before."""
        return sorted(self._pending.pop(stream, set()))

    def _stream(self, stream: int) -> int:
        """Return the number of a stream in the table, in the order of first use; 0 is the first."""
        if not self._streams:
            self._streams[0] = 0
        return self._streams.setdefault(stream, len(self._streams))

    def _written(self, item: Item) -> list[int]:
        """Write the rows of what an item launches, and return them."""
        launching = NO_LAUNCH if item.graph else self.pricing.launching
        if item.by_reducer:
            launching = shortened(launching, self._copy_launch)
        if item.kind is ItemKind.CALL:
            return self._kernels(item, launching)
        if item.kind is ItemKind.COPY:
            duration = self.pricing.estimate(item.name, Copy(max(item.bytes, 1), "host")).duration
            return [
                self.rows.kernel(
                    item.name,
                    self._stream(item.stream),
                    duration,
                    waits=self._take(item.stream),
                    kind=Kind.COPY,
                    bytes=item.bytes,
                    gap=self._gap(item),
                    **launching,
                )
            ]
        group = self.recording.groups[item.group]
        if len(group) == 1:
            return []
        stream = self._stream(item.stream)
        place = self.place[item.group]
        before = len(self.rows) - 1
        joined = item.joined and self._rows.get(item.stream, [-1])[-1] == before
        flags = Flag.JOINED if joined else Flag.NONE
        waits = [] if joined else self._take(item.stream)
        if joined:
            launching = NO_LAUNCH
        if item.kind is ItemKind.COLLECTIVE:
            slot = self.slots.setdefault((place, -1, -1), len(self.slots))
            return [
                self.rows.collective(
                    Operation(item.number),
                    slot,
                    stream,
                    item.bytes,
                    waits=waits,
                    flags=flags,
                    name=item.name,
                    **launching,
                )
            ]
        mine = group.index(self.recording.rank)
        sends = item.kind is ItemKind.SEND
        pair = (mine, item.peer) if sends else (item.peer, mine)
        slot = self.slots.setdefault((place, *pair), len(self.slots))
        return [
            self.rows.point_to_point(
                Kind.SEND if sends else Kind.RECV,
                slot,
                stream,
                item.bytes,
                waits=waits,
                flags=flags,
                **launching,
            )
        ]

    def _host_work(self, item: Item) -> None:
        """Write a CPU operator: a row beside the GPU's streams, and the host's wait for it."""
        assert self.host is not None
        loops = item.number == HostWork.LOOP
        duration = self.host.duration(item.bytes, loops=loops)
        share = f"{SHARE}, in a loop of operations" if loops else SHARE
        self.host_numbers[share] = self.host.share_of(loops=loops)
        self.pricing.shares[item.name, duration] = {BANDWIDTH: 1.0, share: 1.0}
        row = self.rows.kernel(item.name, self._stream(ON_CPU), duration, kind=Kind.COPY)
        self.rows.host_wait([row], name=f"wait for {item.name}")

    def _gap(self, item: Item) -> int:
        """Return what lies between a kernel or a copy and what ended before it, in ps."""
        return self.pricing.graph_gap if item.graph else self.pricing.gap

    def _kernels(self, item: Item, launching: Launching) -> list[int]:
        launched, found = self._launched[item.number], self._measured[item.number]
        operator, name = self.recording.calls[item.number].name, item.name
        if found is None and not launched.known and launched.kernels:
            self.unknown[operator] += len(launched.kernels)
            name = f"{name} (unknown)"
        priced = Priced(
            launched.kernels,
            tuple(self.pricing.estimate(name, kernel) for kernel in launched.kernels),
            launched.known,
        )
        if found is not None:
            priced = as_measured(priced, found)
        self.by_how[priced.how] += priced.duration
        launches = looped(self.recording.calls[item.number])
        if launches > 1 and not item.graph:
            launching = self.pricing.launching_of(launches, compiled_loop=True)
        rows: list[int] = []
        for kernel, estimate in zip(priced.kernels, priced.estimates):
            if rows and operator in ONE_CALL:
                launching = Launching(
                    host=0, launch=launching["launch"], launch_cost=launching["launch_cost"]
                )
            if found is not None:
                self.pricing.shares[name, estimate.duration] = estimate.shares
                if launched.kernels:  # rows of measured kernels have other durations than models'
                    self.pricing.kernels[name, estimate.duration] = kernel
            elif not launched.known:
                self.pricing.shares[name, estimate.duration] = {UNKNOWN: 1.0}
            copies = isinstance(kernel, Copy)
            rows.append(
                self.rows.kernel(
                    name,
                    self._stream(item.stream),
                    estimate.duration,
                    waits=self._take(item.stream),
                    kind=Kind.COPY if copies else Kind.KERNEL,
                    bytes=kernel.bytes if isinstance(kernel, Copy) else -1,
                    gap=self._gap(item),
                    **launching,
                )
            )
        return rows


def program_of(
    parts: Sequence[Part],
    model: KernelModel,
    measured: MeasuredOperators | None = None,
    *,
    host: Host | None = None,
) -> Program:
    """Recordings and the ranks that each stands for → the program of all ranks.

    Parameters
    ----------
    parts : sequence of Part
        Every rank in one of them.
    model : KernelModel
        Of the GPU.
    measured : MeasuredOperators, optional
        Times of operators on that GPU, which come first.
    host : Host, optional
        Of the GPUs of a node; recordings in which the CPU works in its memory need it.

    Raises
    ------
    InputError
        If ranks have other groups than the one that was captured for them.
    """
    pricing = Pricing(model)
    builder = ProgramBuilder()
    groups = parts[0].recording.groups
    world = parts[0].recording.world
    own: list[list[int]] = [[] for _ in range(world)]
    for number, members in enumerate(groups):
        for rank in members:
            own[rank].append(number)
    bound: dict[int, tuple[int, list[int]]] = {}
    unknown: Counter[str] = Counter()
    by_how: Counter[str] = Counter()
    of_host: dict[str, Quantity] = {}
    for recording, ranks in parts:
        if recording.groups != groups:
            raise InputError(
                f"rank {recording.rank} makes other process groups than rank "
                f"{parts[0].recording.rank}: {len(recording.groups)}, not {len(groups)}; all "
                "ranks must call new_group alike"
            )
        rows = builder.table(f"rank {recording.rank}")
        writer = _TableWriter(recording, pricing, rows, host, measured)
        table = builder.add_table(writer.table())
        unknown += writer.unknown
        of_host |= writer.host_numbers
        for how, time in writer.by_how.items():
            by_how[how] += time * len(ranks)
        for rank in ranks:
            bound[rank] = (table, _bindings(builder, groups, own[rank], writer.slots))
    for rank in range(world):
        table, slots = bound[rank]
        builder.add_rank(table, slots)
    return builder.build(attributes=_attributes(parts, pricing, unknown, by_how, host, of_host))


def _bindings(
    builder: ProgramBuilder,
    groups: Sequence[tuple[int, ...]],
    own: Sequence[int],
    slots: dict[Slot, int],
) -> list[int]:
    """Return the communicator of each slot of a rank with these groups."""
    found = []
    for place, sender, receiver in slots:
        number = own[place]
        name = "world" if number == 0 else f"group {number}"
        members: tuple[int, ...] = groups[number]
        if sender >= 0:
            members = (members[sender], members[receiver])
            name = f"{name}, {sender} to {receiver}"
        found.append(builder.communicator(members, name))
    return found


def _attributes(
    parts: Sequence[Part],
    pricing: Pricing,
    unknown: Counter[str],
    by_how: Counter[str],
    host: Host | None,
    of_host: dict[str, Quantity],
) -> dict[str, str]:
    """Return what the program says of itself: where it is from, and what its prices rest on."""
    first = parts[0].recording
    gpu = pricing.model.gpu
    numbers = _errors(pricing, by_how)
    if host is not None and of_host:
        numbers[BANDWIDTH] = host.bandwidth.error
        numbers |= {name: share.error for name, share in of_host.items()}
    if unknown:
        numbers[UNKNOWN] = packaged(FILE)["unknown"]["error"]
    shares = [[row, length, dict(rest)] for (row, length), rest in pricing.shares.items()]
    name = GpuParameters.of(gpu).name
    named = name in gpu_names()  # a file's is not found again where the program is read
    captured = ", ".join(str(part.recording.rank) for part in parts[:8])
    captured += ", …" if len(parts) > 8 else ""
    assumptions = [
        f"captured with PyTorch {first.torch} on rank {captured} of {first.world}; all others do "
        "as the one of them that has their place in their groups",
        f"kernels priced for {gpu.title} by the shapes of their tensors; each takes the CPU "
        f"{(gpu.host_gap.si + gpu.launch_call.si) * 1e6:.0f} µs to launch, views none",
        *measured_share(by_how),
        *(
            f"the CPUs work on parameters{name.removeprefix(SHARE)} at {host.rate(share)}"
            for name, share in of_host.items()
            if host is not None
        ),
        *(f"not as in the script: {line}" for line in _united(parts, "replaced")),
        *(f"value not known: {line}" for line in _united(parts, "values")),
        *(
            f"{name}: unknown, {count} kernels priced by the bytes of their tensors"
            for name, count in sorted(unknown.items())
        ),
    ]
    if not first.warm_up:
        assumptions.append("the first step is recorded: the script makes no second one")
    missing = [
        "the CPU's own work but on parameters and gradients: data loading, the script's Python "
        "beside launches",
        "values: work that depends on them is taken as said above",
    ]
    text = {
        "numbers": numbers,
        "shares": shares,
        "host": dict(pricing.host_shares),
        "launch": {"launch_latency": 1.0},
        "gap": [[pricing.graph_gap, {"graph_gap": 1.0}], [pricing.gap, {"kernel_gap": 1.0}]],
        "kernels": kept_kernels(pricing.kernels) if named else [],
        "gpu": name,
        "assumptions": assumptions,
        "not_modelled": missing,
    }
    kept = {KEPT_STEP: kept_step(first)} if first.world == 1 else {}
    captured = f"{len(parts)} of {first.world} ranks"
    return {COUNTED: json.dumps(text), CAPTURED: captured, **kept}


def _errors(pricing: Pricing, by_how: Counter[str]) -> dict[str, float]:
    """Prices of kernels and how they were found → relative error of each number that they use."""
    used = {number for shares in pricing.shares.values() for number in shares}
    numbers = {
        name: quantity.error for name, quantity in pricing.model.numbers.items() if name in used
    }
    for name in ("host_gap", "launch_call", "launch_latency", "kernel_gap", "graph_gap"):
        numbers[name] = getattr(pricing.model.gpu, name).error
    for how, number in MEASURED.items():
        if by_how[how]:
            numbers[number] = (EXACT if how == "exact" else INTERPOLATED).error
    return numbers


def _united(parts: Sequence[Part], which: str) -> list[str]:
    """Return the lines of all recordings, each once, with how often it happened on a rank."""
    found: Counter[str] = Counter()
    for part in parts:
        found |= getattr(part.recording, which)
    return [
        f"{line} ({count} times)" if count > 1 else line for line, count in sorted(found.items())
    ]
