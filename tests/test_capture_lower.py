"""Recordings written by hand → programs; no PyTorch is needed for that."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mpisim.base.kinds import Phase
from mpisim.capture.lower import Part, program_of
from mpisim.capture.recording import Item, ItemKind, Recording
from mpisim.experiment import ProgramExperiment
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.counted import COUNTED, PricedShares
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.operators import OperatorCall, TensorSpec
from mpisim.operators.measured import MeasuredOperators
from mpisim.prediction.execution import execute
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.prediction.uncertainty import PathShares
from mpisim.program import Program

SHAPES = (128, 1024), (1024, 4096), (128, 4096)
PRODUCT = OperatorCall(
    "aten::mm",
    tuple(TensorSpec("float32", shape) for shape in SHAPES[:2]),
    (TensorSpec("float32", SHAPES[2]),),
)
VIEW = OperatorCall("aten::view", (TensorSpec("float32", SHAPES[2]),), PRODUCT.outputs)
GPU = find_gpu("h100-sxm")


def written(*calls: OperatorCall, graph: bool = False, measured: bool = False) -> Program:
    """Return the program of one rank that makes some calls, the first outside of a graph."""
    items = [
        Item(
            ItemKind.CALL, i, 0, (), -1, -1, -1, False, Phase.FORWARD, -1, call.name, 0, graph=graph
        )
        for i, call in enumerate(calls)
    ]
    items[0] = items[0]._replace(graph=False)
    recording = Recording(0, 1, list(calls), items, [(0,)], 1)
    times = MeasuredOperators([(call, 50e-6) for call in calls]) if measured else None
    return program_of([Part(recording, (0,))], Analytical(GPU), times)


def kept(program: Program) -> dict[tuple[str, int], object]:
    return dict(PricedShares.read(program.attributes[COUNTED], "here").kernels)


def test_what_a_measured_kernel_is_stands_beside_its_measured_time() -> None:
    """Communications slow it by what it computes, as they do the kernel that a model prices."""
    found = kept(written(PRODUCT, measured=True))
    assert isinstance(found["aten::mm", 50_000_000], Gemm)


def test_a_measured_call_without_kernels_is_not_said_to_be_one() -> None:
    found = kept(written(VIEW, measured=True))
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
