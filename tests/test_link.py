"""Joining an execution trace to a Kineto trace: three ways, and when none holds."""

import json

import pytest
from execution_traces import MM, Writer, tensor

from mpisim.base.errors import TraceError
from mpisim.traces.et import read_et
from mpisim.traces.kineto_file import read_kineto
from mpisim.traces.link import link_traces

NAMES = ["aten::linear", "aten::mm", "aten::relu", "aten::mm", "aten::sum", "aten::div"] * 4


def write_et(path, names):
    writer = Writer()
    for k, name in enumerate(names):
        writer.add(name, [tensor(1)], [tensor(10 + k)], MM)
    return read_et(writer.write(path))


def write_kineto(path, names, args=lambda k: {}, thread=lambda k: 1):
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": thread(k),
            "ts": 10 * k,
            "dur": 5,
            "args": args(k),
        }
        for k, name in enumerate(names)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return read_kineto(path)


@pytest.fixture
def et(tmp_path):
    return write_et(tmp_path / "et.json", NAMES)


def test_by_record_id(et, tmp_path):
    # Nodes have record ids 3, 4, …; the file shows the operators without the last two.
    trace = write_kineto(
        tmp_path / "k.json", NAMES[:-2], lambda k: {"Record function id": k + 3, "External id": k}
    )
    link = link_traces(et, trace)
    assert link.method == "record id"
    assert link.node_of_operator.tolist() == list(range(2, 24))
    assert (link.matched, link.unmatched_nodes, link.unmatched_operators) == (22, 2, 0)


def test_by_external_id(et, tmp_path):
    names = list(NAMES)
    names[5] = "aten::renamed"
    # The text form is that of some builds.
    trace = write_kineto(tmp_path / "k.json", names, lambda k: {"External id": str(k + 103)})
    link = link_traces(et, trace)
    assert (link.method, link.constant, link.renamed) == ("external id", 100, 1)
    assert (link.matched, link.unmatched_nodes, link.unmatched_operators) == (23, 1, 1)
    assert link.node_of_operator[5] == -1
    assert "External id - rf_id = 100" in link.describe()


def test_by_names_with_some_missing(et, tmp_path):
    kept = [k for k in range(len(NAMES)) if k not in (3, 14)]
    trace = write_kineto(tmp_path / "k.json", [NAMES[k] for k in kept], lambda k: {"x": 1})
    link = link_traces(et, trace)
    assert link.method == "names"
    assert link.matched == 22
    # Where a name is alone in its neighbourhood there is one way only.
    for operator, k in enumerate(kept):
        if NAMES[k] in ("aten::sum", "aten::relu"):
            assert link.node_of_operator[operator] == k + 2


def test_by_names_one_step_of_many(tmp_path):
    step = ["aten::linear", "aten::mm", "aten::relu", "aten::sum", "aten::div"]
    et = write_et(tmp_path / "et.json", step * 2)
    noise = [f"aten::warm{k}" for k in range(20)]
    trace = write_kineto(tmp_path / "k.json", noise + step * 2 + noise)
    link = link_traces(et, trace)
    assert link.node_of_operator[20:30].tolist() == list(range(2, 12))
    assert link.matched == 10
    assert link.unmatched_operators == 40


def test_by_names_thread_by_thread(tmp_path):
    writer = Writer()
    for k in range(10):
        writer.add(f"aten::forward{k}", [tensor(1)], [tensor(9)], MM)
        writer.add(f"aten::backward{k}", [tensor(1)], [tensor(9)], MM, tid=2)
    et = read_et(writer.write(tmp_path / "et.json"))
    # Elsewhere the threads took turns otherwise: in one list half would be lost.
    names = [f"aten::forward{k}" for k in range(10)] + [f"aten::backward{k}" for k in range(10)]
    trace = write_kineto(tmp_path / "k.json", names, thread=lambda k: 7 - k // 10)
    assert link_traces(et, trace).matched == 20


def test_identities_of_another_step_are_not_believed(et, tmp_path):
    # Record ids of a later step name other operators.
    trace = write_kineto(tmp_path / "k.json", NAMES, lambda k: {"Record function id": k + 5})
    link = link_traces(et, trace)
    assert (link.method, link.matched) == ("names", 24)
    assert link.node_of_operator.tolist() == list(range(2, 26))


def test_files_of_different_programs_are_refused(et, tmp_path):
    trace = write_kineto(tmp_path / "k.json", [f"aten::other{k}" for k in range(20)])
    with pytest.raises(TraceError, match="only 0 of 20 operators have a counterpart"):
        link_traces(et, trace)


@pytest.mark.parametrize(
    ("folder", "suffix", "method", "matched", "nodes", "operators"),
    [
        # "The same step" to the operator, but the two threads took turns otherwise.
        ("dlrm_v100_8rank", "_rank1", "names", 1672, 0, 1),
        ("triosim_vgg13_h100_1gpu", "", "names", 900, 0, 0),
        # One step in the execution trace, 40 in the Kineto trace.
        ("linear_2080ti_1gpu", "", "names", 928, 0, 36150),
        # The records of process groups are no operators in Kineto.
        ("gloo_cpu_ddp_2rank_torch2.13", "_rank1", "record id", 1058, 2, 0),
    ],
)
def test_recorded_traces(shared, folder, suffix, method, matched, nodes, operators):
    folder = shared / "traces" / folder
    et = read_et(folder / f"et{suffix}.json.gz")
    trace = read_kineto(folder / f"kineto{suffix}.json.gz")
    link = link_traces(et, trace)
    assert (link.method, link.matched) == (method, matched)
    assert (link.unmatched_nodes, link.unmatched_operators) == (nodes, operators)
    for operator, node in enumerate(link.node_of_operator.tolist()):
        assert node < 0 or et.name[node] == trace.operators.name[operator]
