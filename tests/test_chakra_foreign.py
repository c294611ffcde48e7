"""Chakra files of other tools: streams, waits, groups, and what such files leave out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra_oracle import chakra, write

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.formats import import_program, read_chakra
from mpisim.formats.chakra_schema import read_nodes
from mpisim.kernels import find_gpu
from mpisim.kernels.counted import PRICED, RooflinePricer
from mpisim.program import UNPRICED, Kind, Operation, Program, Table
from mpisim.topo import AlphaBeta

__all__ = ["chakra"]

COLLECTIVE = {"type": "COMM_COLL_NODE", "name": "reduce"}
GPU = {"is_cpu_op": False}
CPU = {"is_cpu_op": True}


def only(program: Program) -> Table:
    assert program.n_ranks == 1
    return program.table_of(0)


def names(program: Program) -> list[str]:
    return [program.names[i] for i in program.table_of(0).name]


def waits(table: Table, row: int) -> list[int]:
    return table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()


def kernel(id: int, *deps: int, us: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "type": "COMP_NODE",
        "name": f"kernel {id}",
        "duration_micros": us,
        "data_deps": deps,
        **more,
    }


def cpu(id: int, *deps: int, us: int = 1, **more: Any) -> dict[str, Any]:
    return kernel(id, *deps, us=us, attr=CPU, **more) | {"name": f"cpu {id}"}


def reduce(id: int, *deps: int, **attributes: Any) -> dict[str, Any]:
    return {
        **COLLECTIVE,
        "id": id,
        "data_deps": deps,
        "attr": {"comm_type": 0, "comm_size": 64} | GPU | attributes,
    }


# --- order, streams, waits ----------------------------------------------------------------------


def test_the_order_of_dependencies_not_of_the_file(chakra: Any, tmp_path: Path) -> None:
    path = write(chakra, tmp_path / "a.0.et", kernel(5, 7), kernel(0), kernel(7, 0), kernel(2, 5))
    assert names(read_chakra([path])) == ["kernel 0", "kernel 7", "kernel 5", "kernel 2"]


def test_recorded_starts_come_before_numbers(chakra: Any, tmp_path: Path) -> None:
    nodes = [kernel(1, start_time_micros=30), kernel(2, start_time_micros=10)]
    program = read_chakra([write(chakra, tmp_path / "a.et", *nodes)])
    assert names(program) == ["kernel 2", "kernel 1"]


def test_streams_where_the_file_says_and_where_not(chakra: Any, tmp_path: Path) -> None:
    said = [kernel(i, attr=GPU | {"stream": stream}) for i, stream in enumerate((20, 7, 20))]
    table = only(read_chakra([write(chakra, tmp_path / "a.0.et", *said)]))
    assert table.stream.tolist() == [0, 1, 0]
    (tmp_path / "b").mkdir()
    unsaid = [kernel(1), reduce(2, 1, pg_name="3"), reduce(3, 1, pg_name="4"), kernel(4, 1, 2)]
    write(chakra, tmp_path / "b" / "b.0.et", *unsaid)
    (tmp_path / "b" / "groups.json").write_text(json.dumps({"3": [0], "4": [0]}))
    table = only(import_program([tmp_path / "b"]))
    assert table.stream.tolist() == [0, 1, 2, 0]
    assert [waits(table, row) for row in range(4)] == [[], [0], [0], [1]]
    assert table.duration.tolist() == [10**6, UNPRICED, UNPRICED, 10**6]


def test_the_cpu_waits_for_the_device(chakra: Any, tmp_path: Path) -> None:
    nodes = [cpu(1, us=3), kernel(2, 1, us=10), cpu(3, 2, us=4), kernel(4, 3, 2), cpu(5, 2, us=6)]
    program = read_chakra([write(chakra, tmp_path / "a.0.et", *nodes)])
    table = only(program)
    assert [Kind(k).name for k in table.kind] == ["HOST", "KERNEL", "HOST_WAIT", "KERNEL", "HOST"]
    assert waits(table, 2) == [1]  # and node 5 has no need to wait again
    run = engine.simulate(program)
    assert run.rows(0).end.tolist() == [us * 10**6 for us in (3, 13, 17, 18, 23)]


def test_what_converters_leave_behind_is_passed_over(chakra: Any, tmp_path: Path) -> None:
    """Dependencies on themselves, on nodes dropped, and on callers that come later."""
    nodes = [
        kernel(1, 1, 99, ctrl_deps=[1]),
        {"id": 2, "type": "INVALID_NODE", "data_deps": [1]},
        kernel(3, 2, attr=GPU | {"stream": 5}),
        kernel(4, ctrl_deps=[5, 3]),
        kernel(5, 4),
    ]
    program = read_chakra([write(chakra, tmp_path / "a.0.et", *nodes)])
    table = only(program)
    assert names(program) == ["kernel 1", "kernel 3", "kernel 4", "kernel 5"]
    assert waits(table, 1) == [0]  # through the node that does nothing
    assert waits(table, 2) == [1]
    assert program.attributes["dependencies on nodes that are not there"] == "1"
    assert program.attributes["control dependencies against the data's order"] == "1"


# --- communications -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int64_val", "uint64_val", "int32_val", "uint32_val"])
def test_any_integer_type_will_do(chakra: Any, tmp_path: Path, kind: str) -> None:
    attributes = {"comm_type": (kind, 7), "comm_size": (kind, 4096)}
    node = {**COLLECTIVE, "attr": attributes}  # id, is_cpu_op, version: left out
    table = only(read_chakra([write(chakra, tmp_path / "a.et", node)]))
    assert table.operation.tolist() == [Operation.REDUCE_SCATTER]
    assert table.bytes.tolist() == [4096]


def test_sizes_are_of_the_whole_buffer(chakra: Any, tmp_path: Path) -> None:
    for rank in range(4):
        write(chakra, tmp_path / f"a.{rank}.et", reduce(1, comm_type=2), reduce(2, 1, comm_type=6))
    table = read_chakra([tmp_path]).table_of(3)
    assert table.operation.tolist() == [Operation.ALL_GATHER, Operation.ALL_TO_ALL]
    assert table.bytes.tolist() == [4 * 64, 64]


def test_the_wire_time_is_that_of_the_last_to_come(chakra: Any, tmp_path: Path) -> None:
    for rank, us in enumerate((50, 9, 30)):
        nodes = [kernel(1, us=60 - us), reduce(2, 1) | {"duration_micros": us}]
        write(chakra, tmp_path / f"a.{rank}.et", *nodes)
    program = read_chakra([tmp_path])
    assert [program.table_of(r).duration[1] for r in range(3)] == [9 * 10**6] * 3
    run = engine.simulate(program)
    assert [run.rows(r).end[1] for r in range(3)] == [60 * 10**6] * 3


def test_messages(chakra: Any, tmp_path: Path) -> None:
    def half(id: int, kind: str, **attributes: int) -> dict[str, Any]:
        return {
            "id": id,
            "type": f"COMM_{kind}_NODE",
            "name": kind.lower(),
            "attr": {"comm_size": 1000, **attributes},
        }

    write(
        chakra,
        tmp_path / "a.0.et",
        half(1, "SEND", comm_dst=1, comm_tag=5),
        half(2, "RECV", comm_src=1),
    )
    write(
        chakra,
        tmp_path / "a.1.et",
        half(1, "SEND", comm_src=1, comm_dst=0),
        half(2, "RECV", comm_src=0, comm_dst=1, comm_tag=5),
    )
    program = read_chakra([tmp_path])
    assert program.communicators.names == ("0 to 1, tag 5", "1 to 0, tag 0")
    assert [program.communicators.group(c) for c in range(2)] == [(0, 1), (1, 0)]
    engine.simulate(program, network=AlphaBeta(latency=1e-6, bandwidth=1e9))


def test_groups_that_pytorch_names(chakra: Any, tmp_path: Path) -> None:
    described = [{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [1, 0]}]
    init = {
        "id": 9,
        "type": "METADATA_NODE",
        "name": "## process_group:init ##",
        "inputs": chakra.IOInfo(values=repr([json.dumps(described)])),
    }
    for rank in range(3):
        nodes = [reduce(1, pg_name="0"), *([reduce(2, 1, pg_name="7")] if rank < 2 else [])]
        write(chakra, tmp_path / f"a.{rank}.et", init, *nodes)
    program = read_chakra([tmp_path])
    groups = [program.communicators.group(c) for c in range(len(program.communicators))]
    assert groups == [(0, 1, 2), (1, 0)]


def test_one_rank_of_a_job_keeps_what_it_recorded(chakra: Any, tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"1": [3, 5]}')
    node = reduce(1, pg_name="1") | {"duration_micros": 8}
    send = {"id": 2, "type": "COMM_SEND_NODE", "duration_micros": 4, "attr": {"comm_dst": 5}}
    path = write(chakra, tmp_path / "a.3.et", node, send)
    table = only(read_chakra([path, tmp_path / "groups.json"]))
    assert table.duration.tolist() == [8 * 10**6, 4 * 10**6]
    path = write(chakra, tmp_path / "a.3.et", reduce(1, pg_name="1"))
    with pytest.raises(InputError, match="group '1' has ranks that are not here"):
        read_chakra([tmp_path])


# --- real files ---------------------------------------------------------------------------------


def test_real_files(shared: Path) -> None:
    """Of the converter: device and CPU time as in the files."""
    folder = shared / "traces" / "chakra_et_samples"
    for name in ("mlcommons_feeder_chakra.0.et.gz", "mlcommons_test_chakra.0.et.gz"):
        _, nodes = read_nodes(folder / name)
        program = import_program([folder / name])
        table = only(program)
        on_cpu = [any(a.name == "is_cpu_op" and a.bool_val for a in node.attr) for node in nodes]
        micros = np.array([node.duration_micros for node in nodes])
        cpu_time = int(micros[on_cpu].sum()) * 10**6
        assert table.duration.sum() == int(micros.sum()) * 10**6 - cpu_time
        assert int((table.host + table.launch_cost).sum()) == cpu_time
        assert int(table.is_device.sum()) == len(nodes) - sum(on_cpu)
        run = engine.simulate(program)
        longest = max(cpu_time, int(table.duration[table.stream == 0].sum()))
        assert longest <= run.rows(0).end.max() <= table.duration.sum() + cpu_time
    program = import_program([folder / "astrasim_all_reduce.0.et.gz"])
    assert only(program).bytes.tolist() == [1 << 20]


# --- bad files ----------------------------------------------------------------------------------

BAD: list[tuple[list[dict[str, Any]], str]] = [
    ([], "without nodes"),
    ([kernel(1), kernel(1)], r"node 1 \('kernel 1'\) has the id 1 of node 0"),
    ([kernel(1, 2), kernel(2, 1)], "one of 2 that wait for each other in a circle"),
    ([{"id": 1, "type": "STORAGE_NODE"}], "is of type 8 .STORAGE_NODE., which is not read"),
    ([{"id": 1, "type": 99}], "is of type 99 .unknown."),
    ([kernel(1, us=10**15)], "at most 1000000000000 are read"),
    ([{**COLLECTIVE, "attr": {"comm_size": 8}}], "node 0 .*comm_type is missing"),
    ([reduce(1, comm_type=12)], "comm_type is 12; it must be from 0 .ALL_REDUCE. to 9 .BARRIER."),
    ([reduce(1, comm_size=-5)], "comm_size is -5; it must be a whole number"),
    ([reduce(1, comm_size="big")], "comm_size is 'big'"),
    ([reduce(1, pg_name="4")], "process group '4' is unknown .known: none."),
    ([kernel(1, attr={"stream": "seven"})], "stream is 'seven'"),
    ([{"id": 1, "type": "COMM_SEND_NODE", "attr": {"comm_dst": 0}}], "SEND from rank 0 to rank 0"),
    ([{"id": 1, "type": "COMM_RECV_NODE", "attr": {"comm_src": 4}}], "rank 4, is not here"),
]


@pytest.mark.parametrize(("nodes", "says"), BAD)
def test_bad_files_are_one_line(
    chakra: Any, tmp_path: Path, nodes: list[dict[str, Any]], says: str
) -> None:
    path = write(chakra, tmp_path / "a.0.et", *nodes, version="0.0.4")
    with pytest.raises(InputError, match=says) as caught:
        import_program([path])
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_bad_sets_of_files(chakra: Any, tmp_path: Path) -> None:
    path = write(chakra, tmp_path / "a.0.et", kernel(1))
    write(chakra, tmp_path / "a.2.et", kernel(1))
    with pytest.raises(InputError, match="2 ranks are here, rank 1 is missing"):
        read_chakra([tmp_path])
    other = write(chakra, tmp_path / "b.0.et", kernel(1))
    with pytest.raises(InputError, match="rank 0 is already given by"):
        read_chakra([path, other])
    with pytest.raises(InputError, match="does not say its rank"):
        read_chakra([path, write(chakra, tmp_path / "b.et", kernel(1))])
    for text, says in (("[1]", "are an object"), ('{"1": [-1]}', "list of ranks"), ("{", "JSON")):
        (tmp_path / "groups.json").write_text(text)
        with pytest.raises(InputError, match=says):
            read_chakra([path, tmp_path / "groups.json"])


def test_bytes_that_are_no_such_file(tmp_path: Path, chakra: Any) -> None:
    path = tmp_path / "a.0.et"
    good = write(chakra, path, kernel(1), kernel(2)).read_bytes()
    bad = {
        good[:-3]: "truncated, or no Chakra execution trace: node 1 should have",
        b"": "the file is empty",
        b"\xff" * 80: "the metadata, at byte 0, has no valid length",
        b"PK\x03\x04" * 100: "truncated|decoded|unknown field",
        gzip.compress(good)[:-9]: "damaged or truncated gzip file",
        good + b"\x04\xf8\x7f\x01\x02": "unknown field, number 2047; .* 1 to 11|decoded",
        good + b"\x02\x0a\x05": "node 2 cannot be decoded",
    }
    for raw, says in bad.items():
        path.write_bytes(raw)
        with pytest.raises(InputError, match=says) as caught:
            import_program([path])
        assert "\n" not in str(caught.value)


# --- operations that are counted, not timed -------------------------------------------------------

COUNTS = {"num_ops": 10**12, "tensor_size": 10**6}
BYTES = {"tensor_size": 10**9}


def counted(id: int, *deps: int, **attributes: int) -> dict[str, Any]:
    return kernel(id, *deps, us=0, attr=GPU | attributes)


def h100(precision: Any = "bf16") -> RooflinePricer:
    return RooflinePricer(find_gpu("h100-sxm"), precision)


def test_what_counts_operations_takes_what_the_roofline_says(chakra: Any, tmp_path: Path) -> None:
    nodes = [counted(1, **COUNTS), counted(2, 1, **BYTES), kernel(3, 2, us=7)]
    write(chakra, tmp_path / "t.0.et", *nodes)
    program = read_chakra([tmp_path / "t.0.et"], h100())
    gpu = find_gpu("h100-sxm")
    rate = gpu.peak("bf16").si * gpu.gemm_fraction.si
    moved = gpu.bandwidth.si * gpu.memory_fraction.si
    expected = [
        1e12 / rate + gpu.gemm_floor.si,
        1e9 / moved + gpu.memory_floor.si,
        7e-6,
    ]
    assert only(program).duration / 1e12 == pytest.approx(expected)
    assert program.attributes[PRICED].startswith("2 nodes without a duration, by num_ops and ")
    double = read_chakra([tmp_path / "t.0.et"], h100("fp8"))
    assert only(double).duration[0] < only(program).duration[0]
    assert only(double).duration[1] == only(program).duration[1]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (counted(1, **COUNTS), "name a GPU .--gpu. whose roofline prices its num_ops"),
        (counted(1), "neither num_ops nor tensor_size that a GPU's roofline could price"),
        ({"id": 1, "type": "MEM_LOAD_NODE", "name": "kernel 1", "attr": BYTES}, "name a GPU"),
        ({"id": 1, "type": "MEM_STORE_NODE", "name": "kernel 1"}, "neither num_ops nor"),
        (
            {**COLLECTIVE, "id": 1, "name": "kernel 1", "attr": {"comm_type": 0}},
            "it has neither duration_micros nor comm_size",
        ),
    ],
)
def test_what_has_no_duration_is_not_free(
    chakra: Any, tmp_path: Path, node: dict[str, Any], message: str
) -> None:
    write(chakra, tmp_path / "t.0.et", node)
    with pytest.raises(InputError, match=rf"t.0.et: node 0 \('kernel 1'\): .*{message}") as error:
        read_chakra([tmp_path / "t.0.et"])
    assert "\n" not in str(error.value)


def test_kernels_recorded_as_nothing_are_counted(chakra: Any, tmp_path: Path) -> None:
    write(chakra, tmp_path / "t.0.et", kernel(1, us=3), kernel(2, us=0), kernel(3, us=0))
    program = read_chakra([tmp_path / "t.0.et"])
    assert only(program).duration.tolist() == [3 * 10**6, 0, 0]
    assert program.attributes["kernels recorded as 0 µs"] == "2"


def test_memory_of_the_host_is_as_far_as_its_link(chakra: Any, tmp_path: Path) -> None:
    load = {"id": 1, "type": "MEM_LOAD_NODE", "name": "load", "attr": BYTES}
    write(chakra, tmp_path / "t.0.et", load)
    gpu = find_gpu("h100-sxm")
    expected = 1e9 / (gpu.pcie.si * gpu.pcie_fraction.si) + gpu.copy_floor.si
    found = only(read_chakra([tmp_path / "t.0.et"], h100())).duration[0] / 1e12
    assert found == pytest.approx(expected)


def test_the_command_line_prices_and_says_so(
    chakra: Any, call_mpisim: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "et").mkdir()
    for rank in range(2):
        write(chakra, tmp_path / "et" / f"t.{rank}.et", counted(1, **COUNTS), reduce(2, 1))
    ask = ["program", "import", "et", "-o", "t.h5"]
    refused = call_mpisim(ask)
    assert refused.rc == 2
    assert len(refused.errors) == 1
    done = call_mpisim([*ask, "--gpu", "h100-sxm", "--overwrite"])
    assert done.rc == 0, done.stderr
    here = ["--set", "cluster.preset=dgx-h100"]
    here.append("--details")
    ran = call_mpisim(["run", "t.h5", *here, "--json", "t.json", "--save-program", "again.h5"])
    assert ran.rc == 0, ran.stderr
    assert "priced by roofline" in ran.stdout
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["step_time_ps"] > 10**9
    assert "gemm_fraction" in ran.stdout
    assert call_mpisim(["run", "again.h5", *here]).stdout == ran.stdout


def test_a_gpu_is_for_chakra_alone(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("DATA\n1\nlayer -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 64 0\n")
    with pytest.raises(InputError, match="--gpu is for Chakra traces"):
        import_program([tmp_path / "w.txt"], 2, h100())
    said = import_program([tmp_path / "w.txt"], 2).attributes["no compute time"]
    assert said == "1 of 1 layers; their communications alone take time"
