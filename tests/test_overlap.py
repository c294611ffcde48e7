"""What overlaps is slower: worked by hand, and the same bits for any number of processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from programs import random_program

from mpisim import engine
from mpisim.engine.run import Run
from mpisim.experiment import load
from mpisim.kernels.slowdown import CLASSES, Load, packaged_constants
from mpisim.overlap import SlowdownOutcome, run_with_slowdown
from mpisim.overlap.communication_kernels import (
    CommunicationKernel,
    CommunicationKernels,
)
from mpisim.overlap.model import DeviceModel, OverlapModel
from mpisim.overlap.passes import words_of
from mpisim.overlap.retiming import RowTimes
from mpisim.overlap.timeline import (
    USE_ONE,
    CommunicationFactors,
    KernelFactors,
    load_intervals,
    slowed_communications,
    slowed_kernels,
)
from mpisim.prediction.network import network_of
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder
from mpisim.simulate import simulate
from mpisim.topo import AlphaBeta, Network, find_cluster

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_calls]


class Fixed:
    """Factors that are given.

    Kernels take `moving` times as long beside what moves data, `waiting` beside what waits;
    communications 1 + `lost` times beside a kernel.
    """

    terms = ("anything",)

    def __init__(self, moving: float = 2.0, waiting: float = 1.5, lost: float = 0.5) -> None:
        self.numbers: dict[str, Any] = {}
        self.moving, self.waiting, self.lost = moving, waiting, lost

    def kernels(
        self, kernel: np.ndarray, load: Load, beside: list[CommunicationKernel]
    ) -> tuple[np.ndarray, np.ndarray]:
        factor = np.where(load.bandwidth > 0, self.moving, self.waiting)
        return factor, np.ones((len(kernel), 1))

    def communications(self, use: np.ndarray) -> np.ndarray:
        return 1 + self.lost * use


def overlap_model(program: Program, network: Network, factors: Fixed | None = None) -> OverlapModel:
    """All kernels are known, of class 0, and use all of the memory."""
    keys = {
        (program.names[table.name[row]], int(table.duration[row]))
        for table in program.tables
        if table is not None
        for row in np.flatnonzero(table.kind == Kind.KERNEL)
    }
    kernels: Any = dict.fromkeys(sorted(keys))
    work: Any = SimpleNamespace(kind=np.zeros(len(keys), int), use=np.ones(len(keys)))
    device = DeviceModel.of(program, factors or Fixed(), work, kernels)
    communications = CommunicationKernels(program, network, packaged_constants())
    return OverlapModel(program, communications, (device,), np.zeros(program.n_ranks, np.int64))


def slowed(
    program: Program,
    network: Network,
    mode: Literal["static", "coupled"] = "static",
    comm: Intracomm | None = None,
    fold: bool | None = None,
    max_passes: int = 60,
    factors: Fixed | None = None,
) -> SlowdownOutcome:
    from mpi4py import MPI

    comm = comm or MPI.COMM_SELF

    def runner(program: Program, delays: Any, last: bool, placement: Any) -> Run:
        return engine.simulate(
            program,
            comm,
            network=network,
            critical_path=last,
            wire_delays=delays,
            placement=placement,
            fold=fold if placement is None else None,
        )

    return run_with_slowdown(
        overlap_model(program, network, factors), runner, mode, comm, max_passes
    )


def two_ranks() -> tuple[Program, AlphaBeta]:
    """Two ranks with an all-reduce that takes 60 ps alone.

    Rank 0: the all-reduce at once, beside kernels of 100 and 50 ps. Rank 1: a kernel of 40 ps,
    behind which come the all-reduce and, beside it, a kernel of 100 ps.
    """
    builder = ProgramBuilder()
    group = builder.communicator((0, 1))
    first = builder.table()
    first.collective(Operation.ALL_REDUCE, 0, stream=1, bytes=8)
    first.kernel("a", 0, 100)
    first.kernel("b", 0, 50)
    second = builder.table()
    before = second.kernel("c", 0, 40)
    second.collective(Operation.ALL_REDUCE, 0, stream=1, bytes=8, waits=[before])
    second.kernel("a", 0, 100)
    for table in (first, second):
        builder.add_rank(builder.add_table(table.build()), [group])
    return builder.build(), AlphaBeta(latency=60e-12, bandwidth=1e30)


def ends(run: Run, rank: int) -> list[tuple[int, int]]:
    rows = run.rows(run.hosted.tolist().index(rank))
    return list(zip(rows.begin.tolist(), rows.end.tolist(), strict=True))


def test_by_hand_static() -> None:
    found = slowed(*two_ranks())
    run = found.run
    # Without slowdown the all-reduce waits on rank 0 from 0 to 40, and moves data from 40 to 100.
    assert found.step_time_alone == 150
    # It is beside a kernel on both ranks all the time: 1.5 × 60 = 90.
    assert ends(run, 0)[0] == (0, 130)
    assert ends(run, 1)[1] == (40, 130)
    # Rank 0, "a": 40 / 1.5 + 60 / 2 = 56.67 done at 100, then 43.33 alone: 143.33. "b" was alone.
    assert ends(run, 0)[1:] == [(0, 143), (143, 193)]
    # Rank 1: "c" was alone; "a", from 40: 60 / 2 = 30 done at 100, then 70 alone: 130.
    assert [ends(run, 1)[i] for i in (0, 2)] == [(0, 40), (40, 170)]
    assert run.step_time == 193
    assert found.kernel_time[0].tolist() == [100 + 100, 143 + 130]
    assert found.wire_time.tolist() == [60 + 60, 90 + 90]


def test_by_hand_coupled() -> None:
    found = slowed(*two_ranks(), mode="coupled")
    run = found.run
    assert found.unconverged_rows == 0
    # The all-reduce now moves data from 40 to 130; kernels run beside it all that time.
    assert ends(run, 0)[0] == (0, 130)
    # Rank 0, "a": 40 / 1.5 + 90 / 2 = 71.67 done at 130, then 28.33 alone: 158.33.
    assert ends(run, 0)[1:] == [(0, 158), (158, 208)]
    # Rank 1, "a", from 40: 90 / 2 = 45 done at 130, then 55 alone: 145.
    assert ends(run, 1)[2] == (40, 185)
    assert run.step_time == 208
    path = run.critical_path
    assert path is not None
    assert int(path.end[-1]) == 208


@pytest.mark.parametrize(
    ("ranks", "size", "is_buffered"),
    [((0, 1), 1 << 24, True), ((0, 1), 1 << 30, False), ((0, 8), 1 << 24, False)],
)
def test_a_send_that_fits_into_buffers_waits_for_no_receiver(
    ranks: tuple[int, int], size: int, is_buffered: bool
) -> None:
    """Rank 0 sends beside a kernel of 10 ms, its receiver comes after 40 ms."""
    lasting = 10 * 10**9
    builder = ProgramBuilder()
    pair = builder.communicator(ranks)
    sender, receiver, idle = (builder.table() for _ in range(3))
    sender.point_to_point(Kind.SEND, 0, 1, size)
    sender.kernel("a", 0, lasting)
    before = receiver.kernel("c", 0, 4 * lasting)
    receiver.point_to_point(Kind.RECV, 0, 1, size, waits=[before])
    tables = [builder.add_table(each.build()) for each in (sender, receiver, idle)]
    for rank in range(16):
        role = ranks.index(rank) if rank in ranks else 2
        builder.add_rank(tables[role], [pair] if role < 2 else [])
    found = slowed(builder.build(), network_of(find_cluster("dgx-h100"), 2))
    moved = found.run.step_time - 4 * lasting
    # Half as fast beside what moves data; at 1 / 1.5 beside what waits, all the time.
    taken = lasting + moved / 2 if is_buffered else 1.5 * lasting
    assert ends(found.run, 0)[1] == (0, pytest.approx(taken, rel=1e-3))


@pytest.mark.parametrize(("flags", "taken"), [(Flag.NONE, 16), (Flag.COPY_ENGINE, 1)])
def test_multiprocessors_of_a_copy_engine(flags: Flag, taken: int) -> None:
    """NCCL: 16 channels to a peer; a copy engine: a block that waits."""
    builder = ProgramBuilder()
    pair = builder.communicator((0, 1))
    for kind in (Kind.SEND, Kind.RECV):
        table = builder.table()
        table.point_to_point(kind, 0, 1, 1 << 24, flags=flags)
        builder.add_rank(builder.add_table(table.build()), [pair])
    network = network_of(find_cluster("dgx-h100"), 1)
    kernels = CommunicationKernels(builder.build(), network, packaged_constants())
    assert [kernels.of(rank).taken.tolist() for rank in (0, 1)] == [[taken], [taken]]


def test_tables_that_swap_their_times_are_in_another_state() -> None:
    tables = [table for table in two_ranks()[0].tables if table is not None]
    length = min(map(len, tables))
    rows, none = np.arange(length - 1, length), np.empty(0, np.int64)

    def state(*last: int) -> list[int]:
        times = [RowTimes(t, rows, np.array([n]), none, none) for t, n in zip(tables, last)]
        found = sum(words_of(each, number) for number, each in enumerate(times))
        return np.asarray(found).tolist()

    assert state(120, 150) == state(120, 150)
    assert len({tuple(state(*last)) for last in ((120, 150), (150, 120), (150, 150))}) == 3


def test_passes_run_out() -> None:
    found = slowed(*two_ranks(), mode="coupled", max_passes=1)
    assert (found.passes, found.run.step_time) == (1, 193)  # as static
    assert found.unconverged_rows == 2  # "a" on both ranks: 158 and 145 come next


def test_nothing_overlaps() -> None:
    """The same bits as without slowdown."""
    builder = ProgramBuilder()
    group = builder.communicator((0, 1))
    table = builder.table()
    kernel = table.kernel("a", 0, 100)
    row = table.collective(Operation.ALL_REDUCE, 0, stream=1, bytes=1000, waits=[kernel])
    table.kernel("b", 0, 50, waits=[row])
    number = builder.add_table(table.build())
    for _ in range(2):
        builder.add_rank(number, [group])
    program, network = builder.build(), AlphaBeta(latency=1e-9, bandwidth=1e12)
    plain = engine.simulate(program, network=network)
    for mode in ("static", "coupled"):
        found = slowed(program, network, mode)  # type: ignore[arg-type]
        assert found.run.digest == plain.digest
        assert found.run.critical_path is not None
        assert not found.kernel_time.any()


def test_factor_one_changes_nothing() -> None:
    program, network = two_ranks()
    found = slowed(program, network, factors=Fixed(1.0, 1.0, 0.0))
    assert found.run.digest == engine.simulate(program, network=network).digest


NETWORK = AlphaBeta(3e-12, 1e12, ranks_per_node=2, node_latency=1e-12, node_bandwidth=3e12)

whole = st.builds(
    random_program,
    seed=st.integers(0, 2**32 - 1),
    n_tables=st.integers(1, 3),
    n_replicas=st.integers(1, 3),
    n_events=st.integers(0, 25),
    unpriced=st.just(True),
)


@given(program=whole, mode=st.sampled_from(["static", "coupled"]))
@example(  # rows that still change in the end
    random_program(seed=350600, n_tables=1, n_replicas=2, n_events=14, unpriced=True), "coupled"
)
@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
def test_same_bits(world: Intracomm, program: Program, mode: Literal["static", "coupled"]) -> None:
    """For any number of processes, folded or not; and nothing becomes faster."""
    alone = slowed(program, NETWORK, mode, fold=False)
    for fold in (True, False):
        found = slowed(program, NETWORK, mode, world, fold)
        assert found.run.digest == alone.run.digest
        assert found.run.step_time == alone.run.step_time
        for name in ("passes", "unconverged_rows", "step_time_alone"):
            assert getattr(found, name) == getattr(alone, name)
        for name in ("kernel_time", "wire_time", "terms"):
            assert getattr(found, name).tolist() == getattr(alone, name).tolist()
    assert alone.kernel_time[0, 1] >= alone.kernel_time[0, 0]
    for before, after in zip(program.tables, tables_of(alone.run, program), strict=True):
        assert before is not None
        kernels = before.kind <= Kind.COPY
        assert (after.duration[kernels] >= before.duration[kernels]).all()


def tables_of(run: Run, program: Program) -> list[Any]:
    """The table that the first rank of each original table has now."""
    first = np.unique(program.table, return_index=True)[1]
    return [run.program.table_of(int(rank)) for rank in first]


@given(program=whole)
@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
def test_coupled_is_consistent(program: Program) -> None:
    """One more pass over a run that has converged gives the durations that it has."""
    found = slowed(program, NETWORK, "coupled", max_passes=200)
    if found.unconverged_rows == 0:
        model = overlap_model(program, NETWORK)
        for number, slowed_rows in model.slowed_rows(found.run).items():
            rank = int(found.run.classes.representative[number])
            now = found.run.program.table_of(rank)
            kernels = np.flatnonzero(now.kind == Kind.KERNEL)
            expected = program.table_of(rank).duration.copy()
            expected[slowed_rows.rows] = slowed_rows.duration
            assert expected[kernels].tolist() == now.duration[kernels].tolist()


EXPERIMENT = (
    "model.layers=2",
    "model.hidden=1024",
    "model.ffn_hidden=2816",
    "model.heads=8",
    "model.kv_heads=8",
    "model.vocab=32000",
    "model.seq_len=1024",
    "plan.global_batch=8",
)


@pytest.mark.parametrize("mode", ["off", "static", "coupled"])
def test_experiment(world: Intracomm, mode: str) -> None:
    """The whole command: with links to share, on any number of processes."""
    changes = [
        *EXPERIMENT,
        f'overlap.model="{mode}"',
        "cluster.nodes=2",
        "plan.dp=8",
        "plan.global_batch=16",
        "framework.fully_shard=false",  # its launches take longer than a step of so small a model
    ]
    text, experiment = load(None, changes)
    alone = simulate(experiment, text=text)
    assert alone is not None
    found = simulate(experiment, world, text=text, fold=False)
    if found is not None:
        assert (found.digest, found.step_time_ps) == (alone.digest, alone.step_time_ps)
        assert found.attributes.get("overlap") == alone.attributes.get("overlap")
    said = alone.attributes
    missing = [line for line in said["not_modelled"] if "overlap" in line]
    assert bool(missing) == (mode == "off")
    if mode == "off":
        assert "overlap" not in said
        return
    assert said["overlap"].startswith(f"{mode}: the step takes ")
    assert said["overlap_added"] > 0
    assert any(line.startswith("matrix kernels: x 1.") for line in said["overlap_slowdowns"])


# --- the formula of one rank --------------------------------------------------------------------


def test_loads() -> None:
    """One waits from 0, moves from 4 to 10; the other from 6 to 12."""
    columns = [np.array(v) for v in ([0, 6], [4, 6], [10, 12], [16, 4], [50, 7])]
    found = load_intervals(*columns)
    assert found.time.tolist() == [0, 4, 6, 10, 12]
    assert found.load.taken.tolist() == [16, 16, 20, 4, 0]
    assert found.load.bandwidth.tolist() == [0, 50, 57, 7, 0]
    assert found.load.which.tolist() == [-1, 0, 0, 1, -1]


def test_a_kernel_over_several_intervals() -> None:
    loads = load_intervals(*(np.array(v) for v in ([0, 20], [4, 20], [10, 30], [16, 16], [50, 50])))

    def factor(kernel: np.ndarray, *load: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(load[1] > 0, 2.0, 1.5), np.ones((len(kernel), 1))

    begin = np.array([-5, 2, 40])
    met, spent, terms = slowed_kernels(
        *(begin, np.arange(3), np.zeros(3, int), np.array([10, 5, 3])),
        *(np.full(3, 2.0), loads, KernelFactors(factor, 1)),
    )
    # From -5: 5 alone, 4 / 1.5 + 6 / 2 = 5.67 by 10, then 9.33 alone: 24.33, before 20 comes.
    assert spent[0] == pytest.approx(5 + 4 + 6 + 9.3333333)
    # From 2: 2 / 1.5 + 6 / 2 = 4.33 by 10, then 5.67 alone.
    assert spent[1] == pytest.approx(8 + 5.6666667)
    assert met.tolist() == [0, 1]
    assert terms[:, 0].tolist() == [10.0, 8.0]


@given(
    begin=st.lists(st.integers(0, 10**12), min_size=1, max_size=5),
    lasting=st.integers(0, 10**11),
    factor=st.floats(1, 2),
)
def test_moved_is_bounded(begin: list[int], lasting: int, factor: float) -> None:
    """No faster than alone, no slower than slowed all the time."""
    slower = CommunicationFactors(lambda use: 1 + (factor - 1) * use, USE_ONE)
    kernel = np.array([10**11]), np.array([3 * 10**11]), np.array([0]), np.array([USE_ONE])
    time, use = slower.memory_use(*kernel)
    found = slowed_communications(
        np.array(begin), np.full(len(begin), float(lasting)), time, use, slower
    )
    assert (np.rint(found) >= lasting).all()
    assert (found <= lasting * factor + 1).all()
    outside = np.array(begin) >= 3 * 10**11
    assert (np.rint(found[outside]) == lasting).all()


def test_classes_have_constants() -> None:
    assert all(getattr(packaged_constants(), name).value >= 0 for name in CLASSES)
