"""Piece of the critical path → share of its time proportional to each hardware or model number.

A kernel depends on numbers of its kernel model, a communication on bandwidths and latencies, the
CPU work on operator times. The model that priced a piece gives its shares. Error bars
(:mod:`.uncertainty`), sensitivities (:mod:`.sensitivities`) and constants fitted to measured steps
(:mod:`mpisim.validate`) rest on these shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct, equal_columns
from ..engine.critical_path import PieceKind
from ..engine.run import Run
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm, Kernel
from ..program import UNPRICED, Operation
from ..topo.circuits import SETUP
from ..workloads.data_parallel.fsdp import ADD_ON_CPU
from ..workloads.input_pipeline import PREPARE
from ..workloads.offloaded_optimizer import CPU_OPTIMIZER
from .circuits import with_set_ups
from .prepared import PreparedExperiment

if TYPE_CHECKING:
    from .prepared_program import PreparedProgram

__all__ = ["OWN_KERNELS", "PathShares"]

Ints = NDArray[np.int64]

OWN_KERNELS = "kernels of the framework's own"
"""Name of the error of norms and elementwise kernels that are not PyTorch's or NVIDIA's."""

PRODUCTS = (Attention, Convolution, Gemm, GroupedGemm)
"""Kernels of libraries that frameworks share."""

ON_DEVICE = (PieceKind.COMPUTE, PieceKind.COPY, PieceKind.COMMUNICATION)


class PathShares:
    """Piece of a critical path → name of each number it depends on → share proportional to it.

    Called with the index of a piece. `equal_pieces` groups them, so that each kind is looked up
    once.

    Parameters
    ----------
    prepared : PreparedExperiment or PreparedProgram
        What was run.
    run : Run
        With its critical path.
    """

    def __init__(self, prepared: PreparedExperiment | PreparedProgram, run: Run) -> None:
        assert run.critical_path is not None
        self.prepared, self.path = prepared, run.critical_path
        groups = prepared.program.communicators
        self.label = np.zeros(len(groups), np.int64)
        self._equal: list[tuple[int, Ints]] | None = None
        if prepared.network is not None:
            self.label, self.classes = prepared.network.group_classes(
                groups.index, groups.members, prepared.program.operation_bits
            )
            self.communication = cache(prepared.network.shares)
        self._own_kernels = (
            isinstance(prepared, PreparedExperiment)
            and (profile := prepared.experiment.profile) is not None
            and profile.own_kernels
        )
        # With the durations of communications that wait for circuits to be set up.
        self._waiting = with_set_ups(prepared.program, prepared.network)

    def __call__(self, piece: int) -> Mapping[str, float]:
        kind = PieceKind(int(self.path.kind[piece]))
        if kind is PieceKind.COMMUNICATION:
            return self._communicates(piece)
        return self._works(piece, kind)

    def _works(self, piece: int, kind: PieceKind) -> Mapping[str, float]:
        path, prepared = self.path, self.prepared
        if not isinstance(prepared, PreparedExperiment):  # what was recorded depends on nothing
            counted = prepared.counted
            if kind is PieceKind.HOST:
                return counted.host
            if kind is PieceKind.LAUNCH:
                return counted.launch
            if kind is PieceKind.GAP:
                return counted.gap.get(self._gap_length(piece), {})
            on_device = kind in (PieceKind.COMPUTE, PieceKind.COPY)
            return self._kernel(piece, counted.shares) if on_device else {}
        if kind is PieceKind.HOST:
            shares = prepared.workload.pricing_of(int(path.rank[piece])).host_shares
            if prepared.constants is None:
                return shares
            if prepared.constants.covers("host", prepared.constants.framework):
                shares = {}
            return {**shares, prepared.constants.host: 1.0}
        if kind is PieceKind.LAUNCH:
            return {"launch_latency": 1.0}
        if kind is PieceKind.GAP:
            return self._gap(piece)
        if kind is PieceKind.START and prepared.constants is not None:
            return {prepared.constants.overhead[0]: 1.0}
        if kind is PieceKind.COPY and self.prepares_batch(piece):
            assert prepared.input_pipeline is not None
            return dict.fromkeys(prepared.input_pipeline.numbers, 1.0)
        if kind is PieceKind.COPY and self.is_of_host_cpu(piece):
            return dict.fromkeys(prepared.host.numbers(prepared.experiment.plan), 1.0)
        if kind is not PieceKind.COMPUTE:
            return {}
        pricing = prepared.workload.pricing_of(int(path.rank[piece]))
        shares = self._kernel(piece, pricing.shares)
        if self._own_kernels and not isinstance(self._kernel(piece, pricing.kernels), PRODUCTS):
            shares = {**shares, OWN_KERNELS: 1.0}
        return shares

    def prepares_batch(self, piece: int) -> bool:
        """Whether a piece is the host loading the batch of the next step."""
        return self._name(piece) == PREPARE

    def is_of_host_cpu(self, piece: int) -> bool:
        """Whether a piece is work of the host's CPUs on offloaded states."""
        return self._name(piece) in (CPU_OPTIMIZER, ADD_ON_CPU)

    def _name(self, piece: int) -> str:
        """Return the name of a piece's row."""
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        program = self.prepared.program
        return program.names[program.table_of(rank).name[row]]

    def _gap_length(self, piece: int) -> int:
        """Return the gap before the kernel of a piece, in ps."""
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        return int(self.prepared.program.table_of(rank).gap[row])

    def _gap(self, piece: int) -> Mapping[str, float]:
        assert isinstance(self.prepared, PreparedExperiment)
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        # A row of several kernels has as many gaps; in a graph all of them are those of graphs.
        # In that of a module all rows but the first have no launch of their own.
        replayed = self.prepared.program.table_of(rank).launch[row] == 0
        in_graph = self.prepared.workload.pricing_of(rank).captured or replayed
        return {"graph_gap" if in_graph else "kernel_gap": 1.0}

    def _kernel(self, piece: int, known: Mapping[tuple[str, int], Any]) -> Any:
        """Return the shares of a kernel by its name and duration; empty if unknown."""
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        table = self.prepared.program.table_of(rank)
        name = self.prepared.program.names[table.name[row]]
        return known.get((name, int(table.duration[row])), {})

    def _communicates(self, piece: int) -> Mapping[str, float]:
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        program = self.prepared.program
        table = program.table_of(rank)
        if table.duration[row] != UNPRICED:
            return {}
        group = program.slots_of(rank)[table.slot[row]]
        shares = self.communication(
            Operation(int(table.operation[row])),
            int(table.bytes[row]),
            self.classes[self.label[group]],
        )
        waits = self.set_up_share(piece)
        if not waits:
            return shares
        return {name: (1 - waits) * each for name, each in shares.items()} | {SETUP: waits}

    def set_up_share(self, piece: int) -> float:
        """Return the share of a communication's time in which it waits for circuits."""
        program, network = self.prepared.program, self.prepared.network
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        waits = int(self._waiting.table_of(rank).duration[row])
        table = program.table_of(rank)
        if waits == table.duration[row]:
            return 0.0
        assert network is not None
        group = self.classes[self.label[program.slots_of(rank)[table.slot[row]]]]
        price = network.price(
            Operation(int(table.operation[row])), max(int(table.bytes[row]), 0), group
        )
        return 1 - price.duration / waits

    def equal_pieces(self) -> list[tuple[int, Ints]]:
        """Return one piece of each kind, and all pieces of that kind.

        Kernels are equal by name and duration, what lies between them by its length and whether it
        is in the graph of a module, communications by operation, size and what they wait for
        circuits, over groups of one class.
        """
        if self._equal is None:
            self._equal = self._sorted_pieces()
        return self._equal

    def _sorted_pieces(self) -> list[tuple[int, Ints]]:
        path, program = self.path, self.prepared.program
        keys = np.zeros((5, len(path.kind)), np.int64)
        keys[0] = path.kind
        on_device = np.isin(path.kind, ON_DEVICE)
        of_piece = program.table[path.rank]
        gaps = path.kind == PieceKind.GAP
        for number in distinct(of_piece[gaps]).tolist():
            pieces = np.flatnonzero(gaps & (of_piece == number))
            table = program.table_of(int(path.rank[pieces[0]]))
            row = path.row[pieces]
            keys[1, pieces], keys[2, pieces] = table.gap[row], table.launch[row] == 0
        for number in distinct(of_piece[on_device]).tolist():
            pieces = np.flatnonzero(on_device & (of_piece == number))
            rank, row = path.rank[pieces], path.row[pieces]
            table = program.table_of(int(rank[0]))
            compute = path.kind[pieces] != PieceKind.COMMUNICATION
            kernels, at = pieces[compute], row[compute]
            keys[1, kernels], keys[2, kernels] = table.name[at], table.duration[at]
            sends, at = pieces[~compute], row[~compute]
            group = program.slots[program.slot_index[rank[~compute]] + table.slot[at]]
            columns = table.operation[at], table.bytes[at] + 1, self.label[group]
            for i, column in enumerate(columns, start=1):
                keys[i, sends] = column
            if self._waiting is not program:
                keys[4, sends] = [
                    self._waiting.table_of(a).duration[b] + 1
                    for a, b in zip(path.rank[sends].tolist(), at.tolist(), strict=True)
                ]
        kind, n = equal_columns(keys)
        order = np.argsort(kind, kind="stable")
        ends = np.cumsum(np.bincount(kind, minlength=n))
        return [(int(pieces[0]), pieces) for pieces in np.split(order, ends[:-1]) if len(pieces)]

    def lengths(self) -> dict[str, float]:
        """Return the part of the step proportional to each number, in ps."""
        length = self.path.lengths
        found: dict[str, float] = {}
        for piece, pieces in self.equal_pieces():
            whole = int(length[pieces].sum())
            for name, share in self(piece).items():
                found[name] = found.get(name, 0.0) + share * whole
        return found

    def averaging(self) -> dict[str, float]:
        """Critical path → the factor by which errors of unlike kernels shrink in a sum, by number.

        A kernel's error is partly its own (`Estimate.own`): over the kernels of a step, equal ones
        counted together, that part adds up in squares. Numbers whose errors do not shrink are left
        out, and programs whose kernels are not known.
        """
        if not isinstance(self.prepared, PreparedExperiment):
            return {}
        length = self.path.lengths
        whole: dict[str, float] = {}
        shared: dict[str, float] = {}
        own: dict[tuple[str, Kernel], float] = {}
        for piece, pieces in self.equal_pieces():
            if PieceKind(int(self.path.kind[piece])) is not PieceKind.COMPUTE:
                continue
            pricing = self.prepared.workload.pricing_of(int(self.path.rank[piece]))
            kernel = self._kernel(piece, pricing.kernels)
            if not kernel:
                continue
            estimate = pricing.model.estimate(kernel)
            together = int(length[pieces].sum())
            for name, share in estimate.shares.items():
                moved, apart = share * together, estimate.own.get(name, 0.0)
                whole[name] = whole.get(name, 0.0) + moved
                shared[name] = shared.get(name, 0.0) + moved * math.sqrt(1 - apart)
                if apart:
                    each = own.get((name, kernel), 0.0)
                    own[name, kernel] = each + moved * math.sqrt(apart)
        squares = {name: each**2 for name, each in shared.items()}
        for (name, _), each in own.items():
            squares[name] += each**2
        names = {name for name, _ in own if whole[name]}
        return {name: math.sqrt(squares[name]) / whole[name] for name in sorted(names)}
