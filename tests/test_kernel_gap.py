"""What lies between two kernels of a stream: once each, once in a graph, as recorded in a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from toys import Times, instant

from mpisim.base.quantity import Quantity
from mpisim.engine.critical_path import PieceKind
from mpisim.experiment import load
from mpisim.kernels import find_gpu, gpu_names
from mpisim.kernels.operations import Elementwise, GroupedGemm
from mpisim.kernels.recorded import Recorded
from mpisim.prediction.execution import execute
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.program import Kind
from mpisim.workloads.operators import Compute
from mpisim.workloads.pricing import Pricing

US = 1_000_000
GAP, IN_GRAPH = 2 * US, 1 * US


def gpu() -> Any:
    def us(value: float) -> Quantity:
        return Quantity(value, "us", 0.5, "test")

    return replace(instant(), kernel_gap=us(2), graph_gap=us(1))


def step(*changes: str) -> tuple[PreparedExperiment, Any]:
    found = prepare(load("llama3-8b-8-h100", ["cluster.nodes=1", *changes])[1])
    return found, execute(found, MPI.COMM_SELF, critical_path=True)[0]


def without_gaps(prepared: PreparedExperiment) -> PreparedExperiment:
    tables = (
        None if table is None else replace(table, gap=0 * table.gap, original=None)
        for table in prepared.program.tables
    )
    program = prepared.program.replace(tables=tuple(tables))
    return replace(prepared, workload=replace(prepared.workload, program=program))


def test_each_kernel_of_a_row_has_one() -> None:
    kernel = Compute("kernel", Elementwise(10))
    experts = Compute("experts", GroupedGemm(64, 4, 8, 8, dtype="bf16"), launches=4)
    for captured, gap in ((False, GAP), (True, IN_GRAPH)):
        pricing = Pricing(Times(gpu()), cuda_graphs=captured)
        assert pricing.gap_before(kernel) == gap
        assert pricing.gap_before(replace(kernel, launches=3)) == 3 * gap
        assert pricing.gap_before(replace(kernel, calls=3)) == 4 * gap
        assert pricing.gap_before(experts) == gap  # on several streams
        # Of a part of a layer that is captured by itself, all but the first.
        assert pricing.gap_before(replace(kernel, launches=0)) == IN_GRAPH


def test_what_was_recorded_keeps_its_own() -> None:
    recorded = Recorded("kernel", 5 * US, gap=7)
    assert Pricing(Times(gpu())).gap_before(Compute("kernel", recorded)) == 7


@pytest.mark.parametrize(
    ("changes", "name"), [((), "kernel_gap"), (("framework.cuda_graphs=true",), "graph_gap")]
)
def test_steps_are_longer_by_the_gaps_on_their_path(changes: tuple[str, ...], name: str) -> None:
    prepared, run = step(*changes)
    path = run.critical_path
    gap = round(getattr(prepared.gpu, name).si * 1e12)
    gaps = path.kind == PieceKind.GAP
    assert set(path.lengths[gaps] // path.times[gaps]) == {gap}
    table = prepared.program.table_of(0)
    assert set(table.gap[table.kind == Kind.KERNEL]) == {gap}
    assert set(table.gap[table.is_communication]) == {0}
    # The path crosses most kernels of the step; what they add is what depends on the number.
    shares = PathShares(prepared, run).lengths()
    assert shares[name] == path.lengths[gaps].sum() > 0
    assert path.lengths[gaps].sum() / run.step_time < 0.02
    # Without gaps the path is shorter by no more than that; another may have become critical.
    less = run.step_time - execute(without_gaps(prepared), MPI.COMM_SELF)[0].step_time
    assert 0.9 * shares[name] <= less <= shares[name]


def test_in_a_graph_gaps_of_a_row_of_several_kernels_are_its_own() -> None:
    prepared, _ = step("framework.cuda_graphs=true")
    tables = (each and replace(each, gap=3 * each.gap) for each in prepared.program.tables)
    program = prepared.program.replace(tables=tuple(tables))
    prepared = replace(prepared, workload=replace(prepared.workload, program=program))
    run = execute(prepared, MPI.COMM_SELF, critical_path=True)[0]
    shares = PathShares(prepared, run).lengths()
    assert "kernel_gap" not in shares
    assert shares["graph_gap"] > 0


def test_small_kernels_beside_others_in_the_graph_of_a_module_have_its_gaps() -> None:
    """Casts with current scaling launch three of them; the graph holds those as well."""
    prepared, run = step(
        'framework.cuda_graph_modules=["attn"]',
        "plan.precision.products=fp8",
        "plan.precision.fp8_scaling=current",
    )
    path, table = run.critical_path, prepared.program.table_of(0)
    replayed = table.launch == 0
    gap = round(prepared.gpu.graph_gap.si * 1e12)
    assert {gap, 4 * gap} == set(table.gap[replayed & (table.kind == Kind.KERNEL)])
    gaps = (path.kind == PieceKind.GAP) & replayed[path.row]
    shares = PathShares(prepared, run).lengths()
    assert shares["graph_gap"] == path.lengths[gaps].sum() > 0


def test_every_gpu_has_gaps_of_about_a_microsecond() -> None:
    found = np.array([[find_gpu(n).kernel_gap.si, find_gpu(n).graph_gap.si] for n in gpu_names()])
    assert (found > 0.3e-6).all()
    assert (found < 2e-6).all()
    assert (found[:, 1] <= found[:, 0]).all()
