"""Recordings written by hand → programs; no PyTorch is needed for that."""

from __future__ import annotations

import json

import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.kept_step import kept_step, recording_of
from mpisim.capture.lower import Part, program_of
from mpisim.capture.recording import Item, ItemKind, Recording
from mpisim.engine.run import Run
from mpisim.experiment import ProgramExperiment
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.counted import COUNTED, PricedShares
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.operators import OperatorCall, TensorSpec
from mpisim.operators.measured import MeasuredOperators
from mpisim.prediction.execution import execute
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared_program import PreparedProgram, prepare_captured
from mpisim.prediction.program_statements import program_error_bar
from mpisim.program import Program
from mpisim.workloads.data_parallel.frameworks import frameworks
from mpisim.workloads.operators import Compute
from mpisim.workloads.pricing import NO_LAUNCH, Pricing

SHAPES = (128, 1024), (1024, 4096), (128, 4096)
PRODUCT = OperatorCall(
    "aten::mm",
    tuple(TensorSpec("float32", shape) for shape in SHAPES[:2]),
    (TensorSpec("float32", SHAPES[2]),),
)
VIEW = OperatorCall("aten::view", (TensorSpec("float32", SHAPES[2]),), PRODUCT.outputs)
GPU = find_gpu("h100-sxm")


def written(*calls: OperatorCall, graph: bool = False, measured: float = 0) -> Program:
    """Return the program of one rank that makes some calls, the first outside of a graph."""
    items = [
        Item(
            ItemKind.CALL, i, 0, (), -1, -1, -1, False, Phase.FORWARD, -1, call.name, 0, graph=graph
        )
        for i, call in enumerate(calls)
    ]
    items[0] = items[0]._replace(graph=False)
    recording = Recording(0, 1, list(calls), items, [(0,)], 1)
    times = MeasuredOperators([(call, measured) for call in calls]) if measured else None
    return program_of([Part(recording, (0,))], Analytical(GPU), times)


def kept(program: Program) -> dict[tuple[str, int], object]:
    return dict(PricedShares.read(program.attributes[COUNTED], "here").kernels)


def test_what_a_measured_kernel_is_stands_beside_its_measured_time() -> None:
    """Communications slow it by what it computes, as they do the kernel that a model prices."""
    found = kept(written(PRODUCT, measured=50e-6))
    assert isinstance(found["aten::mm", 50_000_000], Gemm)


def test_a_measured_call_without_kernels_is_not_said_to_be_one() -> None:
    found = kept(written(VIEW, measured=50e-6))
    assert not any(isinstance(kernel, Elementwise) for kernel in found.values())


@pytest.mark.parametrize("graph", [False, True])
def test_gaps_in_a_graph_depend_on_its_number(graph: bool) -> None:
    program = written(*[PRODUCT] * 4, graph=graph)
    gaps = [GPU.kernel_gap.si, *[(GPU.graph_gap if graph else GPU.kernel_gap).si] * 3]
    assert program.tables[0].gap.tolist() == [round(gap * 1e12) for gap in gaps]
    prepared = prepare_captured(ProgramExperiment("", source="here"), program)
    run = execute(prepared, MPI.COMM_SELF, critical_path=True)[0]
    lengths = PathShares(prepared, run).lengths()
    assert ("graph_gap" in lengths) is graph
    if graph:
        assert lengths["graph_gap"] == 3 * round(GPU.graph_gap.si * 1e12)
        assert set(lengths) <= set(prepared.counted.numbers)


@pytest.mark.parametrize("part", [0.4, 0.8, 0.97, 1.03, 1.3, 1.7])
def test_the_error_of_launches_is_that_of_slower_and_faster_cpus(part: float) -> None:
    """Kernels of a part of their launch's time, beside two more simulations."""
    launch = GPU.host_gap.si + GPU.launch_call.si
    program = written(*[PRODUCT] * 300, measured=part * launch)

    def run(factor: float) -> tuple[PreparedProgram, Run]:
        tables = {"scale": {"launch_time": factor}}
        prepared = prepare_captured(ProgramExperiment("", tables, source="here"), program)
        return prepared, execute(prepared, MPI.COMM_SELF, critical_path=True)[0]

    prepared, middle = run(1)
    bar = program_error_bar(prepared, middle)
    assert bar is not None
    effects = {each.name: each.effect for each in bar.effects}
    error = GPU.host_gap.error * GPU.host_gap.si / launch
    slower, faster = (run(1 + sign * error)[1].step_time for sign in (1, -1))
    simulated = (slower - faster) / 2 / middle.step_time
    assert effects.get("host_gap", 0.0) == pytest.approx(simulated, abs=0.02)


def test_copies_of_the_reducer_are_launched_as_in_generated_steps() -> None:
    """`Compute.launch_share` of a generated step's copies, in a captured one."""
    share = frameworks().ddp.copy_launch.value
    pricing = Pricing(Analytical(GPU))
    copies = Compute("copy gradient into bucket", Elementwise(8), launch_share=share)
    for by_reducer, graph, expected in (
        (False, False, pricing.launching),
        (True, False, pricing.launching_for(copies)),
        (True, True, NO_LAUNCH),
    ):
        item = Item(
            *(ItemKind.CALL, 0, 0, (), -1, -1, -1, False, Phase.BACKWARD, -1, "copy", 0),
            graph=graph,
            by_reducer=by_reducer,
        )
        recording = Recording(0, 1, [PRODUCT], [item], [(0,)], 1)
        (table,) = program_of([Part(recording, (0,))], Analytical(GPU)).tables
        assert table is not None
        for column, value in expected.items():
            assert getattr(table, column).tolist() == [value], column


def test_a_kept_step_knows_what_launches_its_items() -> None:
    """`mpisim.extrapolate` leaves out what DDP's reducer does for a group of one."""
    items = [
        Item(
            *(ItemKind.CALL, 0, 0, (), -1, -1, -1, False, Phase.BACKWARD, -1, "copy", 0),
            graph=graph,
            by_reducer=by_reducer,
        )
        for graph in (False, True)
        for by_reducer in (False, True)
    ]
    recording = Recording(0, 1, [PRODUCT], items, [(0,)], 1)
    text = kept_step(recording)
    assert json.loads(text)["version"] == 2
    assert recording_of(text, "test").items == items


def test_kept_steps_of_the_first_version_are_read() -> None:
    """They tell graphs from Python alone: all that Python did not launch was a graph's."""
    items = [
        Item(
            *(ItemKind.CALL, 0, 0, (), -1, -1, -1, False, Phase.BACKWARD, -1, "copy", 0),
            graph=graph,
        )
        for graph in (False, True)
    ]
    kept = json.loads(kept_step(Recording(0, 1, [PRODUCT], items, [(0,)], 1)))
    assert recording_of(json.dumps(kept | {"version": 1}), "test").items == items
    with pytest.raises(InputError, match="version 3, and this mpisim reads 1 to 2; capture it"):
        recording_of(json.dumps(kept | {"version": 3}), "test")
