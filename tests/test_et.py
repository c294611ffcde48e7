"""Reading execution traces: both layouts, communications, and what is refused."""

import gzip
import json

import pytest
from execution_traces import MM, Writer, tensor

from mpisim.base.errors import TraceError
from mpisim.traces.et import is_execution_trace, read_et
from mpisim.traces.et_communications import collective_name
from mpisim.traces.et_operators import et_operators
from mpisim.traces.show import overview

SCHEMAS = ("1.0.1", "1.0.3-chakra.0.0.4", "1.1.1-chakra.0.0.4")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_both_layouts_give_the_same(schema, tmp_path):
    writer = Writer(schema)
    outer = writer.add("## forward ##", scope=7)
    writer.add("aten::mm", [tensor(5), tensor(6, 8)], [tensor(7)], MM, outer, seq_id=3)
    writer.add("aten::cat", [[tensor(5), tensor(7)], 0], [tensor(8, 8)], "aten::cat(Tensor[] t)")
    writer.add("MmBackward0", [tensor(9)], scope=1, tid=2, fw_tid=1, fw_parent=4, seq_id=3)
    et = read_et(writer.write(tmp_path / "et.json"))
    assert et.schema == schema
    assert et.name[2:] == ["## forward ##", "aten::mm", "aten::cat", "MmBackward0"]
    assert et.id.tolist() == [1, 2, 3, 4, 5, 6]
    assert et.parent.tolist() == [-1, 0, 1, 2, 1, 1]
    assert et.fw_parent.tolist() == [-1, -1, -1, -1, -1, 3]
    assert et.sequence[3:].tolist() == [3, -1, 3]
    assert et.thread.tolist() == [0, 1, 1, 1, 1, 2]
    assert et.record_id.tolist() == [0, 0, 3, 4, 5, 6]
    assert et.op_schema[3] == MM
    assert [et.is_structure(i) for i in range(4)] == [True, True, False, False]
    mm = et.inputs.of(3)
    assert et.inputs.storage[mm].tolist() == [5, 6]
    assert et.inputs.argument[mm].tolist() == [0, 1]
    assert et.inputs.extent[mm].tolist() == [4, 8]
    cat = et.inputs.of(4)  # a list is one argument
    assert et.inputs.argument[cat].tolist() == [0, 0]
    assert et.inputs.dtypes == ["float"]
    assert et.inputs.devices == ["cuda:0"]


def test_strides_tell_the_extent_of_a_view(tmp_path):
    # Two columns of a 3 × 8 matrix: 6 elements, from the first to the last (2·8 + 1) + 1 = 18.
    node = {
        "id": 1,
        "name": "aten::sum",
        "parent": 1,
        "rf_id": 1,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
        "op_schema": "",
        "inputs": {
            "values": [tensor(4, 6)],
            "shapes": [[3, 2]],
            "types": ["Tensor(float)"],
            "strides": [[8, 1]],
        },
        "outputs": {
            "values": [[9, 0, 0, 0, 0, ""]],
            "shapes": [[]],
            "types": ["Tensor(nullptr (uninitialized))"],
        },
    }
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.1.1", "nodes": [node]}))
    et = read_et(path)
    assert et.inputs.extent.tolist() == [18]
    assert len(et.outputs) == 0  # an undefined tensor
    del node["inputs"]["strides"]
    path.write_text(json.dumps({"schema": "1.1.0", "nodes": [node]}))
    assert read_et(path).inputs.extent.tolist() == [-1]


def test_communications_by_position(tmp_path):
    old = Writer("1.0.1")
    big, small = tensor(5, 16), tensor(6, 4)
    old.add("record_param_comms", [big, 41, 9, 2, "all_to_allv", [8, 8], [2, 2]], [small])
    old.add("record_param_comms", [41, 0, 2, "wait", [], []])
    et = read_et(old.write(tmp_path / "old.json"))
    (found,) = et.communications
    assert (found.collective, found.recorded_name) == ("all_to_all", "all_to_allv")
    assert (found.in_elements, found.in_bytes, found.out_bytes, found.bytes) == (16, 64, 16, 64)
    assert (found.in_split, found.out_split) == ((8, 8), (2, 2))
    assert (found.sequence, found.rank, found.group_size, found.ranks) == (41, 2, 0, ())
    assert et.rank == 2

    new = Writer("1.0.3-chakra.0.0.4")
    group = ["3", "tp"]
    new.add("record_param_comms", [[big], 7, group, 1, "allreduce", [], [], 1, 2, 4], [[big]])
    new.add("record_param_comms", [[big], 8, group, 3, "broadcast", [], [], 1, 2, 4], [[big]])
    new.add("record_param_comms", [7, ["", ""], 1, "wait", [], [], -1, -1, 1])
    et = read_et(new.write(tmp_path / "new.json"))
    reduce, broadcast = et.communications
    assert (reduce.group_name, reduce.group_description) == ("3", "tp")
    assert reduce.ranks == (1, 3, 5, 7)
    assert (reduce.rank, reduce.peer, broadcast.rank, broadcast.peer) == (1, -1, -1, 3)
    assert et.rank == 3  # place 1 in the group


def test_communications_by_attributes_and_groups(tmp_path):
    writer = Writer()
    config = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "ranks": [],
            "group_size": 4,
            "group_count": 2,
        },
        {
            "pg_name": "1",
            "pg_desc": "dp",
            "backend_config": "cuda:nccl",
            "ranks": [1, 3],
            "group_size": 2,
            "group_count": 2,
        },
    ]
    writer.add("## process_group:init ##", [json.dumps(config)])
    attributes = {
        "collective_name": "_allgather_base",
        "dtype": "BFloat16",
        "in_msg_nelems": 10,
        "out_msg_nelems": 20,
        "in_split_size": "[]",
        "out_split_size": "[]",
        "global_rank_start": 1,
        "global_rank_stride": 2,
        "pg_name": "1",
        "pg_desc": "dp",
        "pg_size": 2,
    }
    inputs = [3, ["1", "dp"], 0, "_allgather_base", [], [], 1, 2, 2]
    writer.add("record_param_comms", inputs, **attributes)
    wait = attributes | {"collective_name": "wait", "pg_size": 1}
    writer.add("record_param_comms", [3, ["", ""], 0, "wait", [], []], **wait)
    et = read_et(writer.write(tmp_path / "et.json"))
    assert et.groups["0"].ranks == (0, 1, 2, 3)  # empty means the world
    assert et.groups["1"].ranks == (1, 3)
    (found,) = et.communications
    assert found.collective == "all_gather"
    assert (found.in_bytes, found.out_bytes, found.ranks) == (20, 40, (1, 3))
    assert et.rank == 1


def test_a_node_is_kept_whose_enclosing_operator_was_not_written(tmp_path):
    writer = Writer()
    outer = writer.add("aten::linear", [tensor(5)], [tensor(7)], "aten::linear(Tensor input)")
    writer.add("aten::mm", [tensor(5)], [tensor(7)], MM, outer)
    writer.nodes = [node for node in writer.nodes if node["id"] != outer]
    et = read_et(writer.write(tmp_path / "et.json"), arguments=True)
    assert et.n_orphans == 1
    assert et.parent[et.name.index("aten::mm")] == -1
    assert [each.name for each in et_operators(et)] == ["aten::mm"]
    assert "the operators around 1 of them were not written" in overview(et)


def test_gloo_is_read_from_its_operators(tmp_path):
    writer = Writer()
    reduce = (
        "c10d::allreduce_(Tensor[] tensors, __torch__.ProcessGroup process_group, int timeout) -> "
        "(Tensor[], __torch__.Work)"
    )
    gather = "c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor) -> (Tensor, W)"
    writer.add("c10d::allreduce_", [[tensor(5)], "<Object>", -1], [[tensor(5)]], reduce)
    writer.add("c10d::_allgather_base_", [tensor(6, 8), tensor(7)], [tensor(6, 8)], gather)
    found = read_et(writer.write(tmp_path / "et.json")).communications
    assert [c.collective for c in found] == ["all_reduce", "all_gather"]
    assert [(c.in_bytes, c.out_bytes) for c in found] == [(16, 16), (16, 32)]


def test_names_of_collectives():
    spellings = {
        "allreduce_coalesced": "all_reduce",
        "REDUCE_SCATTER": "reduce_scatter",
        "_reduce_scatter_base": "reduce_scatter",
        "ALLTOALL_BASE": "all_to_all",
        "send": "send",
        "reduce": "reduce",
        "something": "something",
    }
    assert {name: collective_name(name) for name in spellings} == spellings


def damaged(change):
    """A trace file as text, after a change to what would be written."""
    writer = Writer("1.0.1")
    writer.add("aten::mm", [tensor(5)], [tensor(7)], MM)
    content = {"schema": "1.0.1", "nodes": writer.nodes}
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema="2.0.0"), "unknown execution trace schema '2.0.0'"),
        (lambda c: c.pop("schema"), "missing required field `schema`"),
        (lambda c: c.update(nodes=[]), "without nodes"),
        (lambda c: c["nodes"][2].pop("name"), "missing required field `name` - at `$.nodes[2]`"),
        (lambda c: c["nodes"][2].pop("rf_id"), "node 3 ('aten::mm') has no 'rf_id'"),
        (lambda c: c["nodes"][2].pop("parent"), "node 3 ('aten::mm') has no 'parent'"),
        (lambda c: c["nodes"][2].update(id="x"), "Expected `int`, got `str` - at `$.nodes[2].id`"),
        (lambda c: c["nodes"][2].update(id=2), "two nodes have the id 2"),
        (lambda c: c["nodes"][2].update(id=1 << 70), "t.json: "),
        (lambda c: c["nodes"][2].update(parent=99), "has the parent 99, which is not in the file"),
        (lambda c: c["nodes"][1].update(parent=3), "parent 3, which began after it"),
        (lambda c: c["nodes"][2]["inputs"][0].__setitem__(3, -4), "impossible tensor"),
        (
            lambda c: c["nodes"][2].update(
                name="## process_group:init ##", inputs=["[{}]"], input_types=["String"]
            ),
            "not a list of process groups ('group_size')",
        ),
    ],
)
def test_a_bad_trace_is_refused_in_one_line(change, message, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(damaged(change))
    with pytest.raises(TraceError) as error:
        read_et(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_other_files_are_told_apart(tmp_path):
    et = Writer().write(tmp_path / "et.json")
    packed = tmp_path / "et.json.gz"
    packed.write_bytes(gzip.compress(et.read_bytes()))
    kineto = tmp_path / "kineto.json"
    kineto.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert is_execution_trace(et)
    assert is_execution_trace(packed)
    assert not is_execution_trace(kineto)
    with pytest.raises(TraceError, match="this is a Kineto trace"):
        read_et(kineto)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(packed.read_bytes()[:-20])
    assert is_execution_trace(cut)  # only the head is looked at
    with pytest.raises(TraceError, match="truncated gzip"):
        read_et(cut)
    cut.write_text(et.read_text()[:-20])
    with pytest.raises(TraceError, match="not valid JSON"):
        read_et(cut)
    with pytest.raises(TraceError, match="cannot be read"):
        is_execution_trace(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("file", "schema", "nodes", "communications", "groups"),
    [
        ("dlrm_v100_8rank/et_rank5.json.gz", "1.0.1", 1675, 8, 0),
        (
            "et_schema_samples/resnet_1gpu_1.0.3-chakra.0.0.4.json.gz",
            "1.0.3-chakra.0.0.4",
            14391,
            21,
            0,
        ),
        (
            "et_schema_samples/resnet_rank1of2_1.1.0-chakra.0.0.4.json.gz",
            "1.1.0-chakra.0.0.4",
            14392,
            21,
            1,
        ),
        ("et_schema_samples/pt2_triton_1.1.1-chakra.0.0.4.json.gz", "1.1.1-chakra.0.0.4", 20, 0, 0),
        ("gloo_cpu_ddp_2rank_torch2.13/et_rank1.json.gz", "1.1.1-chakra.0.0.4", 1063, 14, 2),
    ],
)
def test_recorded_traces(shared, file, schema, nodes, communications, groups):
    et = read_et(shared / "traces" / file)
    assert (et.schema, len(et), len(et.communications)) == (schema, nodes, communications)
    assert len(et.groups) == groups
    if "rank5" in file:
        assert et.rank == 5
        assert {c.in_bytes for c in et.communications if c.recorded_name == "all_to_all"} == {192}
    if "rank1of2" in file:
        assert et.rank == 1
        assert all(c.ranks == (0, 1) for c in et.communications)
        assert sum(c.bytes for c in et.communications) == 306_684_384 + 637_440 + 1_272
