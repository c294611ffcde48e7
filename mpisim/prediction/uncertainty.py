"""Uncertainty of a step time: error bars of its inputs, propagated along the critical path.

First order, along the critical path: its pieces sum exactly to the step time, and each depends on a
few numbers that have error bars. If a number is off by a relative error e, all pieces that are
proportional to it change together, so the step time changes by e × their length. Different numbers
are taken as independent: their effects add in squares. A larger error would let another path become
critical; the first order does not see that, nor what the model leaves out. For both there is the
model's own error, as predictions of measured steps have shown it
(:mod:`mpisim.prediction.step_constants`).

`PathShares` says how much of the path depends on each number, `combine` adds the effects of their
errors, and `error_bar` is both for a prepared experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense, distinct
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..engine.critical_path import PieceKind
from ..engine.run import Run
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.numbers import quantity
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm
from ..kernels.scaled import rated_gpu
from ..program import UNPRICED, Operation
from ..topo.circuits import SETUP
from ..workloads.data_parallel.fsdp import ADD_ON_CPU
from ..workloads.input_pipeline import PREPARE
from ..workloads.offloaded_optimizer import CPU_OPTIMIZER
from .circuits import with_set_ups
from .prepared import PreparedExperiment
from .step_constants import model_class, packaged_constants

if TYPE_CHECKING:
    from ..engine.critical_path import CriticalPath
    from ..kernels.gpu import Gpu
    from ..overlap import OverlapSummary
    from .prepared_program import PreparedProgram

__all__ = [
    "Effect",
    "PathShares",
    "Uncertainty",
    "combine",
    "design_name",
    "difference_error",
    "equal_columns",
    "error_bar",
    "is_part",
    "propagate",
    "unnamed_class",
    "unshared_share",
]

Ints = NDArray[np.int64]

PLANS_FILE = "plans.toml"

GUESSED = "what is not said of the model"
"""Name of the error of a guessed model (`mpisim.experiment.likely_models`), on the whole step."""

UNNAMED = "framework not named"
"""Name of the error of an experiment that leaves its framework's ways open, on the whole step."""

OWN_KERNELS = "kernels of the framework's own"
"""Name of the error of norms and elementwise kernels that are not PyTorch's or NVIDIA's."""

UNNAMED_FILE = "calibration/unnamed_framework.toml"

BEFORE_2022 = ("pascal", "volta", "turing", "ampere", "cdna1", "cdna2")
"""Architectures of GPUs that came before 2022."""

UNCOMPARED = "framework, GPU or parallelism not compared with measured steps"
"""Name of the error of a framework, a division of the work and a design of GPUs of which together
no predictions were compared with measured steps, on the whole step."""

UNCOMPARED_FILE = "calibration/uncompared.toml"

PRODUCTS = (Attention, Convolution, Gemm, GroupedGemm)
"""Kernels of libraries that frameworks share."""

ON_DEVICE = (PieceKind.COMPUTE, PieceKind.COPY, PieceKind.COMMUNICATION)


@frozen
class Effect:
    """Error of the step time from the error of one number.

    Attributes
    ----------
    name : str
    share : float
        Share of the step time that is proportional to the number.
    error : float
        Relative error bar of the number.
    source : str
        Where the number comes from.
    """

    name: str
    share: float
    error: float
    source: str

    @property
    def effect(self) -> float:
        """Relative error of the step time from this number alone."""
        return self.share * self.error


@frozen
class Uncertainty:
    """The error bar of a step time.

    Attributes
    ----------
    relative : float
        One standard deviation, as a fraction of the step time.
    effects : tuple of Effect
        The numbers that matter, the largest effect first.
    """

    relative: float
    effects: tuple[Effect, ...]


def propagate(
    path: CriticalPath,
    shares: Callable[[int], Mapping[str, float]],
    numbers: Mapping[str, Quantity],
) -> Uncertainty:
    """Combine the error bars of the numbers that a critical path depends on.

    Parameters
    ----------
    path : CriticalPath
    shares : callable
        For the i-th piece of the path, the share of its length that is proportional (directly or
        inversely) to each number, by name.
    numbers : mapping of str to Quantity
        The numbers.

    Returns
    -------
    Uncertainty
    """
    total = int(path.end[-1]) if len(path.end) else 0
    lengths: dict[str, float] = {}
    for piece, length in enumerate((path.end - path.begin).tolist()):
        for name, share in shares(piece).items():
            lengths[name] = lengths.get(name, 0.0) + share * length
    return combine(lengths, total, numbers)


def combine(
    lengths: Mapping[str, float],
    total: int,
    numbers: Mapping[str, Quantity],
    model_error: tuple[str, Quantity] | None = None,
) -> Uncertainty:
    """Combine the error bars of numbers, given how much of a step depends on each.

    Parameters
    ----------
    lengths : mapping of str to float
        In ps, by name of the number.
    total : int
        The step, in ps.
    numbers : mapping of str to Quantity
    model_error : tuple of str and Quantity, optional
        What the model leaves out, as a factor of the whole step: its name, and 1 with the error
        bar that steps which it was not fitted to have shown.
    """
    effects = [
        Effect(name, length / total, numbers[name].error, numbers[name].source)
        for name, length in lengths.items()
        if total and name in numbers and numbers[name].error > 0
    ]
    if total and model_error is not None:
        name, number = model_error
        effects.append(Effect(name, 1.0, number.error, number.source))
    effects.sort(key=lambda each: (-each.effect, each.name))
    relative = math.sqrt(math.fsum(each.effect**2 for each in effects))
    return Uncertainty(relative, tuple(effects))


# --- shares of the critical path ------------------------------------------------------------------


class PathShares:
    """The numbers each piece of a critical path depends on.

    Called with the number of a piece it returns the share of its length that is proportional to
    each number, by name. `equal_pieces` sorts them, so that each kind is looked up once.
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
        """Whether a piece is the host's work for the next step."""
        return self._name(piece) == PREPARE

    def is_of_host_cpu(self, piece: int) -> bool:
        """Whether a piece is what the host's CPUs do with what is offloaded."""
        return self._name(piece) in (CPU_OPTIMIZER, ADD_ON_CPU)

    def _name(self, piece: int) -> str:
        """Return the name of a piece's row."""
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        program = self.prepared.program
        return program.names[program.table_of(rank).name[row]]

    def _gap_length(self, piece: int) -> int:
        """Return what lies before the kernel of a piece, in ps."""
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
        """Return what is known of a kernel by its name and duration; empty if nothing."""
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
        """Return how much of the step depends on each number, in ps."""
        length = self.path.lengths
        found: dict[str, float] = {}
        for piece, pieces in self.equal_pieces():
            whole = int(length[pieces].sum())
            for name, share in self(piece).items():
                found[name] = found.get(name, 0.0) + share * whole
        return found


def equal_columns(columns: Ints) -> tuple[Ints, int]:
    """Columns of several numbers, at least 0 → which are equal.

    Parameters
    ----------
    columns : int64, shape (k, n)

    Returns
    -------
    int64, shape (n,)
        Equal numbers, from 0 on, for equal columns.
    int
        How many there are.
    """
    found, n = dense(columns[0])
    for row in columns[1:]:
        more, m = dense(row)
        found, n = dense(found * max(m, 1) + more)
    return found, n


# --- of an experiment -----------------------------------------------------------------------------


def error_bar(
    prepared: PreparedExperiment,
    run: Run,
    lengths: Mapping[str, float] | None = None,
    *,
    model_error: bool = True,
    overlap: OverlapSummary | None = None,
    shares: PathShares | None = None,
) -> Uncertainty:
    """Return the error bar of a step time, and its parts. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    run : Run
        With its critical path.
    lengths : mapping of str to float, optional
        `PathShares.lengths`, if known.
    model_error : bool
        Whether it holds what the model leaves out.
    overlap : OverlapSummary, optional
        What slowed what overlaps, if that was modelled.
    shares : PathShares, optional
        Of the run, if known.
    """
    numbers = {
        name: number for name, number in vars(prepared.gpu).items() if isinstance(number, Quantity)
    }
    numbers |= dict(prepared.network.numbers)
    for pricing in reversed(prepared.workload.pricings):  # of equal names those of most nodes count
        numbers |= dict(pricing.model.numbers)
    if lengths is None:
        lengths = (shares or PathShares(prepared, run)).lengths()
    if overlap is not None and run.critical_path is not None:
        numbers |= overlap.numbers
        lengths = {**lengths, **overlap.lengths()}
    if prepared.input_pipeline is not None:
        numbers |= prepared.input_pipeline.numbers
    numbers |= prepared.host.numbers(prepared.experiment.plan)
    guess = prepared.experiment.guess
    if guess is not None:
        numbers[GUESSED] = Quantity(1, "1", guess.error, "published models of such sizes")
        lengths = {**lengths, GUESSED: float(run.step_time)}
    numbers[OWN_KERNELS] = quantity("own_kernels")
    if not prepared.experiment.says_framework:
        numbers[UNNAMED] = _unnamed(prepared)
        lengths = {**lengths, UNNAMED: float(run.step_time)}
    if not _compared(prepared):
        numbers[UNCOMPARED] = build(
            Quantity, packaged(UNCOMPARED_FILE)["dense"], UNCOMPARED_FILE, "dense"
        )
        lengths = {**lengths, UNCOMPARED: float(run.step_time)}
    left_out = _model_error(prepared) if model_error else None
    return combine(lengths, run.step_time, numbers, left_out)


def difference_error(
    one: Mapping[str, float],
    one_time: float,
    other: Mapping[str, float],
    other_time: float,
    unshared: float | None = None,
) -> float:
    """Two predicted steps → one standard deviation of the difference of their times.

    An input that is off is off for both: what depends on it in both cancels, as far as both depend
    on it equally long. Of what the model leaves out most is the same share of both; the rest is
    each plan's own.

    Parameters
    ----------
    one, other : mapping of str to float
        Relative error of each step from each number alone (`Effect.effect`).
    one_time, other_time : float
        Of the steps, in one unit, which is that of the result.
    unshared : float, optional
        What the model leaves out and the two do not share, relative to the shorter step; by
        default as measured plans show (``data/plans.toml``).
    """
    if unshared is None:
        unshared = unshared_share()
    return math.hypot(
        unshared * min(one_time, other_time),
        *(
            one.get(name, 0.0) * one_time - other.get(name, 0.0) * other_time
            for name in sorted({*one, *other})
        ),
    )


def unshared_share() -> float:
    """Return the model error that two plans do not share, relative to the shorter step."""
    return build(Quantity, packaged(PLANS_FILE)["unshared"], PLANS_FILE, "unshared").value


def _unnamed(prepared: PreparedExperiment) -> Quantity:
    """Return 1 with the error bar of not knowing the framework."""
    designs = [design_name(rated_gpu(each.model.gpu)) for each in prepared.workload.pricings]
    experiment = prepared.experiment
    kind = model_class(experiment.model)
    key = unnamed_class(kind, experiment.plan.zero, designs)
    return build(Quantity, packaged(UNNAMED_FILE)[key], UNNAMED_FILE, key)


def unnamed_class(kind: str, zero: int, designs: Sequence[str]) -> str:
    """Kind of model, stage of ZeRO, designs of GPUs → class of what a framework's name is worth.

    Dense transformers whose states alone are sharded, or parameters, too; on GPUs of before 2022
    apart, as frameworks of their time had kernels that those of today, for which common practice
    stands, have not.

    Parameters
    ----------
    kind : str
        As `model_class` names it.
    zero : int
    designs : sequence of str
        As `design_name` writes them.
    """
    if kind != "dense":
        return kind
    sharding = "sharded" if zero >= 2 else "dense"
    older = any(each.split(",")[0] in BEFORE_2022 for each in designs)
    return f"{sharding}_before_2022" if older else sharding


def _compared(prepared: PreparedExperiment) -> bool:
    """Whether measured steps of this framework, kind of plan and GPU were compared.

    Those of dense transformers: of other models the error of the model is that of few, unlike
    steps. A division counts that is part of one that was (`is_part`). Frameworks that run one
    library count as one, versions that a profile does not cover as none. What an experiment without
    a framework's name leaves open has an error of its own.
    """
    experiment = prepared.experiment
    if model_class(experiment.model) != "dense":
        return True
    seen: Mapping[str, Any] = packaged(UNCOMPARED_FILE)
    designs = {design_name(rated_gpu(each.model.gpu)) for each in prepared.workload.pricings}
    if experiment.profile is None:
        return designs <= {design for _, design, _ in seen["ways"]}
    version = experiment.framework.version
    if version and experiment.profile.stands_for(version):
        return False
    library = seen["libraries"].get(experiment.profile.host, experiment.profile.host)
    division = experiment.plan.division(prepared.workload.layout.grid.dp)
    return all(
        any(each[:2] == [library, design] and is_part(division, each[2]) for each in seen["ways"])
        for design in designs
    )


def is_part(division: str, other: str) -> bool:
    """Two divisions of the work → whether the other divides it along all axes of the first.

    Steps of the other then had every kind of kernel and communication that the first has, and one
    GPU is part of all.

    Parameters
    ----------
    division, other : str
        As `Plan.division` writes them.
    """
    alone = {"one GPU"}
    return set(division.split("+")) - alone <= set(other.split("+"))


def design_name(gpu: Gpu) -> str:
    """GPU → its architecture and the lanes of a multiprocessor, as ``"ampere, 64 lanes"``."""
    family, many_lanes = GpuParameters.of(gpu).design
    return f"{family}, {128 if many_lanes else 64} lanes"


def _model_error(prepared: PreparedExperiment) -> tuple[str, Quantity] | None:
    """Return name and size of the model error."""
    applied, kind = prepared.constants, model_class(prepared.experiment.model)
    if applied is None:
        found = packaged_constants().model_error
        return None if found is None else ("model error", found.plain[kind])
    found = applied.constants.model_error
    if found is None:
        return None
    if applied.fitted:
        return "model error (calibrated)", found.known[kind]
    return "model error (calibrated; framework or GPU new)", found.unknown[kind]
