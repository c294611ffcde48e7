"""Data dependencies between operators: who wrote what an operator reads."""

import pytest
from execution_traces import (
    ADD_,
    CONVOLUTION,
    COPY_,
    EMPTY,
    LINEAR,
    MM,
    VIEW,
    Writer,
    tensor,
)

from mpisim.traces.dependencies import data_dependencies
from mpisim.traces.et import read_et


@pytest.fixture
def depends(tmp_path):
    """Return the dependencies of a written trace, by identity, of nodes that compute."""

    def find(writer):
        et = read_et(writer.write(tmp_path / "et.json"))
        data = data_dependencies(et)
        return {
            int(et.id[i]): [int(et.id[k]) for k in data.of(i)]
            for i in range(len(et))
            if data.computes[i]
        }

    return find


@pytest.fixture(params=["1.0.1", "1.1.1-chakra.0.0.4"])
def writer(request):
    return Writer(request.param)


def test_an_operator_depends_on_who_wrote_its_inputs(writer, depends):
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    b = writer.add("aten::mm", [tensor(1), tensor(4)], [tensor(5)], MM)
    c = writer.add("aten::mm", [tensor(3), tensor(5)], [tensor(6)], MM)
    d = writer.add("aten::mm", [tensor(6), tensor(3)], [tensor(7)], MM)
    assert depends(writer) == {a: [], b: [], c: [a, b], d: [a, c]}


def test_in_place_and_views(writer, depends):
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    writer.add("aten::view", [tensor(3), [2, 2]], [tensor(3, identity=50)], VIEW)
    # In place on the view: reads what a wrote, and is what the next one reads.
    b = writer.add(
        "aten::add_", [tensor(3, identity=50), tensor(4)], [tensor(3, identity=50)], ADD_
    )
    c = writer.add("aten::mm", [tensor(3), tensor(2)], [tensor(5)], MM)
    # A copy overwrites: the old content is not read.
    d = writer.add("aten::copy_", [tensor(3), tensor(5), 0], [tensor(3)], COPY_)
    e = writer.add("aten::mm", [tensor(3), tensor(2)], [tensor(6)], MM)
    assert depends(writer) == {a: [], b: [a], c: [b], d: [c], e: [d]}


def test_composite_operators_leave_it_to_those_inside(writer, depends):
    linear = writer.add("aten::linear", [tensor(1), tensor(2)], [tensor(3)], LINEAR)
    mm = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM, linear)
    # Nothing inside but an allocation: the convolution itself computes.
    outer = writer.add("aten::cudnn_convolution", [tensor(3), tensor(2)], [tensor(4)], CONVOLUTION)
    writer.add("aten::empty", [[4]], [tensor(4)], EMPTY, outer)
    last = writer.add("aten::mm", [tensor(4), tensor(3)], [tensor(5)], MM)
    assert depends(writer) == {mm: [], outer: [mm], last: [mm, outer]}


def test_numbers_of_freed_storages_come_back(writer, depends):
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    writer.add("aten::empty", [[4]], [tensor(3, identity=70)], EMPTY)
    b = writer.add(
        "aten::add_", [tensor(3, identity=70), tensor(1)], [tensor(3, identity=70)], ADD_
    )
    assert depends(writer) == {a: [], b: []}


def test_parts_of_a_storage(writer, depends):
    # A bucket of 8 elements, filled in two parts and reduced as a whole.
    low, high = tensor(3, 4, 0, 31), tensor(3, 4, 4, 32)
    writer.add("aten::empty", [[8]], [tensor(3, 8)], EMPTY)
    a = writer.add("aten::copy_", [low, tensor(1), 0], [low], COPY_)
    b = writer.add("aten::copy_", [high, tensor(2), 0], [high], COPY_)
    whole = [[tensor(3, 8)], 5, 0, 0, "allreduce", [], []]
    c = writer.add("record_param_comms", whole, [[tensor(3, 8)]])
    d = writer.add("aten::mm", [high, tensor(1)], [tensor(4)], MM)
    e = writer.add("aten::copy_", [low, tensor(4), 0], [low], COPY_)
    f = writer.add("aten::mm", [high, tensor(1)], [tensor(5)], MM)
    assert depends(writer) == {a: [], b: [], c: [a, b], d: [c], e: [d], f: [c]}


def test_out_arguments_are_not_read(writer, depends):
    out = "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)"
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    b = writer.add("aten::mm", [tensor(1), tensor(2), tensor(3)], [tensor(3)], out)
    c = writer.add("aten::mm", [tensor(3), tensor(2)], [tensor(4)], MM)
    assert depends(writer) == {a: [], b: [], c: [b]}


def test_compiled_kernels_fill_what_is_new(depends):
    writer = Writer()
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    writer.add("aten::empty", [[4]], [tensor(4)], EMPTY)
    fused = [tensor(3), tensor(2), tensor(4), tensor(5), 16]
    b = writer.add("triton_fused_0", fused, kernel_backend="triton")
    c = writer.add("aten::mm", [tensor(4), tensor(5)], [tensor(6)], MM)
    d = writer.add("aten::mm", [tensor(2), tensor(1)], [tensor(7)], MM)
    assert depends(writer) == {a: [], b: [a], c: [b], d: []}


def test_gloo_operators_fill_their_output(depends):
    writer = Writer()
    gather = "c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor) -> (Tensor, W)"
    reduce = "c10d::allreduce_(Tensor[] tensors, int timeout) -> (Tensor[], W)"
    a = writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    b = writer.add("c10d::_allgather_base_", [tensor(6, 8), tensor(3)], [tensor(6, 8)], gather)
    c = writer.add("c10d::allreduce_", [[tensor(6, 8)], -1], [[tensor(6, 8)]], reduce)
    d = writer.add("aten::mm", [tensor(6, 8), tensor(2)], [tensor(7)], MM)
    assert depends(writer) == {a: [], b: [a], c: [b], d: [c]}


def test_recorded_order_is_kept(shared):
    for file in (
        "dlrm_v100_8rank/et_rank0.json.gz",
        "et_schema_samples/resnet_1gpu_1.1.1-chakra.0.0.4.json.gz",
    ):
        et = read_et(shared / "traces" / file)
        data = data_dependencies(et)
        assert len(data) > 400
        for node in range(len(et)):
            assert all(0 <= earlier < node for earlier in data.of(node).tolist())
        # DDP: every all-reduce reads the gradients that were copied into its bucket.
        reduces = [c.node for c in et.communications if c.collective == "all_reduce"]
        assert reduces
        for node in reduces:
            names = {et.name[i] for i in data.of(node).tolist()}
            assert names & {"aten::mul", "aten::mul_", "aten::copy_", "aten::div_"}
