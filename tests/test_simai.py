"""SimAI workloads: what waits for what in each policy, groups of ranks, pipelines, bad files."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simai_texts import ALL, COST, HYBRID, NS, layer, priced, program, took, written

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.formats import (
    import_program,
    read_simai,
    simai_program,
)
from mpisim.program import Kind, Operation, Phase, Program

# --- policies: times worked out by hand from Workload.cc ------------------------------------------


def test_transformer_waits_forward_and_for_inputs(tmp_path: Path) -> None:
    layers = [layer(fwd=(f, "ALLREDUCE", 8), ig=(f + 1, "ALLGATHER", 8)) for f in (100, 200)]
    forward = 100 + COST + 200 + COST
    backward = 201 + COST + 1 + 101 + COST + 1
    assert took(program(tmp_path, HYBRID, *layers)) == forward + backward


def test_transformer_does_not_wait_for_weights(tmp_path: Path) -> None:
    """The second layer's weight gradients travel while the first computes, and last to the end."""
    layers = [layer(fwd=(5, "NONE", 0), ig=(30_000, "NONE", 0)), layer(wg=(7, "ALLREDUCE", 8))]
    assert took(program(tmp_path, HYBRID, *layers)) == 5 + 1 + 1 + 7 + 30_000 + 1
    layers.reverse()
    assert took(program(tmp_path, HYBRID, *layers)) == 1 + 5 + 30_000 + 1 + 1 + 7 + COST


def test_the_update_time_passes_behind_every_communication(tmp_path: Path) -> None:
    layers = [layer(fwd=ALL, ig=ALL, wg=ALL, update=40)]
    assert took(program(tmp_path, HYBRID, *layers)) == 3 * (300 + COST + 40)
    layers = [layer(fwd=ALL, ig=(0, "NONE", 0), wg=(0, "NONE", 0), update=40)]
    assert took(program(tmp_path, HYBRID, *layers)) == 300 + COST + 40


def test_checkpoints_are_computed_again(tmp_path: Path) -> None:
    """From the last checkpoint up to, not with, the layer that asks for it."""
    header = HYBRID.replace("TRANSFORMER", "TRANSFORMER_FWD_IN_BCKWD")
    header += " checkpoints: 2 0 1 checkpoint_initiates: 1 3"
    layers = [layer(fwd=(10**i, "NONE", 0), ig=(0, "NONE", 0), wg=(0, "NONE", 0)) for i in range(4)]
    done = program(tmp_path, header, *layers)
    assert took(done) == 1111 + 10 + 100
    table = done.table_of(0)
    assert table.layer[table.phase == Phase.RECOMPUTE].tolist() == [1, 2]


def test_data(tmp_path: Path) -> None:
    """Weights before inputs; the first layer has no input gradient."""
    layers = [layer(fwd=(1, "ALLREDUCE", 8), ig=(50, "NONE", 0), wg=(7, "ALLREDUCE", 8))] * 2
    done = program(tmp_path, "DATA", *layers, ranks=4)
    assert took(done) == 1 + 1 + 7 + COST + COST  # both all-reduces, one after the other
    assert took(done, 10) == 1 + 1 + 7 + 50 + 7 + 10
    assert done.communicators.group(0) == (0, 1, 2, 3)


def test_model_and_inference(tmp_path: Path) -> None:
    layers = [layer(fwd=ALL, ig=ALL, wg=ALL)] * 2
    # The second layer's input gradients travel beside its weight gradients.
    backward = 300 + max(COST, 300) + 300 + 300
    assert took(program(tmp_path, "MODEL", *layers, ranks=4)) == 2 * (300 + COST) + backward
    alone = program(tmp_path, "DISTRIBUTED_INFERENCE", *layers, ranks=4)
    assert took(alone) == 2 * (300 + COST)


def test_customized_layers_have_policies_of_their_own(tmp_path: Path) -> None:
    header = "HYBRID_CUSTOMIZED model_parallel_NPU_group: 2 all_gpus: 4"
    layers = [layer(fwd=ALL, wg=ALL, more=own) for own in ("DATA", "MODEL", "HYBRID_DATA_MODEL")]
    done = program(tmp_path, header, *layers)
    table = done.table_of(3)
    comm = table.is_communication
    said = [
        (done.names[n], done.communicators.group(int(done.slots_of(3)[s])))
        for n, s in zip(table.name[comm], table.slot[comm], strict=True)
    ]
    everyone, model, data = (0, 1, 2, 3), (2, 3), (1, 3)
    assert [group for _, group in said] == [everyone, model, data, everyone]
    done = program(
        tmp_path,
        "HYBRID_MODEL_DATA model_parallel_NPU_group: 2 all_gpus: 4",
        layer(fwd=ALL, wg=ALL),
    )
    groups = [done.communicators.group(int(c)) for c in done.slots_of(3)]
    assert groups == [(1, 3), (2, 3)]


def test_dlrm_exchanges_embeddings_beside_the_bottom_network(tmp_path: Path) -> None:
    def layers() -> list[str]:
        embedding = layer("embedding", fwd=(5, "ALLTOALL", 8), ig=(0, "ALLTOALL", 8))
        return [embedding, *[layer(fwd=(4000, "NONE", 0), ig=(4000, "NONE", 0))] * 3]

    done = program(tmp_path, "HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER: 2", *layers(), ranks=2)
    forward = 5 + max(8000, COST) + 4000
    # Behind the top layer the gradients go back, while the bottom network computes.
    backward = 1 + 4000 + max(COST, 1 + 4000 + 1 + 4000 + 1)
    assert took(done) == forward + backward
    enhanced = program(
        tmp_path, "HYBRID_DLRM_ENHANCED DLRM_LAST_BOTTOM_LAYER: 2", *layers(), ranks=2
    )
    assert took(enhanced) == forward + backward


def test_micro_benchmark(tmp_path: Path) -> None:
    done = program(tmp_path, "MICRO", layer(wg=(5, "ALLTOALL", 1024)), ranks=8)
    assert took(done) == COST
    assert done.table_of(0).operation.tolist() == [Operation.ALL_TO_ALL]


# --- groups -------------------------------------------------------------------------------------


def test_groups_of_ranks(tmp_path: Path) -> None:
    """Tensor-parallel ranks side by side, then experts, then the other data-parallel ranks."""
    header = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 2 pp: 1 ga: 1 all_gpus: 8"
    kinds = ("ALLREDUCE_EP", "ALLREDUCE_DP_EP", "ALLREDUCE")
    layers = [layer(fwd=ALL), *(layer(wg=(1, kind, 8)) for kind in kinds)]
    done = program(tmp_path, header, *layers)
    named = {
        done.communicators.names[c]: done.communicators.group(int(c)) for c in done.slots_of(5)
    }
    assert named == {"TP": (4, 5), "DP": (1, 3, 5, 7), "DP_EP": (1, 5), "EP": (5, 7)}


def test_nothing_is_sent_to_nobody(tmp_path: Path) -> None:
    header = HYBRID.replace("group: 2", "group: 1").replace("gpus: 4", "gpus: 1")
    done = program(tmp_path, header, layer(fwd=ALL, ig=ALL, wg=ALL, update=9))
    assert took(done) == 900
    assert took(program(tmp_path, HYBRID, layer(fwd=(300, "ALLREDUCE", 0)))) == 302


# --- pipelines ----------------------------------------------------------------------------------


def pipelined(
    folder: Path, stages: int, count: int, chunks: int, time: tuple[int, int, int], sent: int = 64
) -> Program:
    header = (
        f"HYBRID_TRANSFORMER model_parallel_NPU_group: 1 ep: 1 pp: {stages} vpp: {chunks} "
        f"ga: {count} all_gpus: {2 * stages} pp_comm: {sent}"
    )
    forward, inputs, weights = ((ns, "NONE", 0) for ns in time)
    block = layer("attention", forward, inputs, weights)
    one = [layer("embedding_layer", *[(0, "NONE", 0)] * 3), *[block] * (2 * chunks)]
    return program(folder, header, *one * count)


@settings(max_examples=30, deadline=None)
@given(
    stages=st.integers(2, 4),
    groups=st.integers(1, 3),
    chunks=st.integers(1, 3),
    time=st.tuples(*[st.integers(1, 50)] * 3),
)
def test_the_bubble_is_the_one_of_simai(
    tmp_path_factory: pytest.TempPathFactory,
    stages: int,
    groups: int,
    chunks: int,
    time: tuple[int, int, int],
) -> None:
    """SimAI's Layer.cc: (pp - 1) / (ga · vpp) of the time that the stage computes."""
    count = stages * groups
    done = pipelined(tmp_path_factory.mktemp("w"), stages, count, chunks, time)
    work = count * 2 * chunks * sum(time)
    assert took(done, 0) == work + work * (stages - 1) / (count * chunks)


def test_messages_between_stages(tmp_path: Path) -> None:
    """Each chunk and micro-batch but the ends: 2·vpp·ga messages for a stage in the middle."""
    done = pipelined(tmp_path, 3, 3, 2, (5, 5, 5), sent=4096)
    sends = [int((done.table_of(2 * s).kind == Kind.SEND).sum()) for s in range(3)]
    assert sends == [2 * 2 * 3 - 3, 2 * 2 * 3, 2 * 2 * 3 - 3]
    table = done.table_of(2)
    assert set(table.bytes[table.kind == Kind.SEND].tolist()) == {4096}
    assert set(np.unique(table.micro_batch).tolist()) == {0, 1, 2}


# --- real files ---------------------------------------------------------------------------------


def test_a_real_workload(shared: Path) -> None:
    """12 stages: the time that SimAI's analytical mode would add up, but for communication.

    Its first and last chunks differ a little (embedding, head), so the bubble does, too. Fewer
    data-parallel ranks than in the file, which has 9,216 GPUs.
    """
    path = shared / "traces" / "simai_workloads" / "workload_analytical.txt.gz"
    workload = read_simai(path)
    assert (workload.n_ranks, workload.micro_batches, workload.chunks) == (9216, 24, 8)
    done = simai_program(dataclasses.replace(workload, n_ranks=384))
    assert len(done.tables) == workload.pipeline == 12
    with gzip.open(path, "rt") as file:
        rows = [line.split() for line in file.read().splitlines()[2:]]
    assert len(rows) == len(workload.layers) == 1789
    work = sum(int(row[2]) + int(row[5]) + int(row[8]) for row in rows)
    table = done.table_of(0)
    kernels = (table.kind == Kind.KERNEL) & (table.stream == 0)
    assert int(table.duration[kernels].sum()) == work * NS
    run = engine.simulate(done, network=priced(0))
    assert max(run.rank_end) / NS == pytest.approx(work * (1 + 11 / (24 * 8)), rel=0.01)


def test_the_all_reduce_benchmark(shared: Path) -> None:
    done = import_program([shared / "traces" / "simai_workloads" / "microAllReduce.txt.gz"])
    assert done.n_ranks == 8
    assert done.table_of(0).bytes[done.table_of(0).is_communication].tolist() == [2**24, 2**26]
    assert took(done) == 2 * (556_000 + COST + 1) + 4


# --- bad files ----------------------------------------------------------------------------------

ROW = layer()
BAD = [
    ("HYBRID_TRANSFORMR", [ROW], r"line 1: unknown parallelism policy .*HYBRID_TRANSFORMER"),
    ("DATA all_gpu: 4", [ROW], r"line 1: unknown key 'all_gpu' \(did you mean 'all_gpus'\?\)"),
    ("DATA all_gpus: many", [ROW], "line 1: all_gpus is 'many'; it must be a whole number"),
    ("DATA all_gpus:", [ROW], "line 1: 'all_gpus' has no value"),
    ("DATA", [ROW], "does not say for how many ranks; give --ranks"),
    (HYBRID, [ROW + " 5"], "line 3: 13 fields; a layer of a HYBRID_TRANSFORMER workload has 12"),
    (HYBRID, ["layer -1 1 NONE"], "line 3: 4 fields"),
    (HYBRID, [ROW, layer(fwd=(1, "ALLREDUSE", 8))], r"line 4: forward: .*did you mean 'ALLREDUCE'"),
    (HYBRID, [layer(fwd=(-1, "NONE", 0))], "line 3: forward: the time in ns is '-1'"),
    (HYBRID, [layer(wg=(1, "NONE", -1))], "line 3: weight gradient: the size is '-1'"),
    (HYBRID, [ROW.replace(" 1 ", " 1.5 ", 1)], "line 3: forward: the time in ns is '1.5'"),
    (HYBRID.replace("group: 2", "group: 3"), [ROW], "4 ranks cannot be divided into groups of 3"),
    (HYBRID.replace("group: 2", "group: 0"), [ROW], "HYBRID_TRANSFORMER needs model_parallel_NPU"),
    (HYBRID.replace("ep: 1", "ep: 3"), [ROW], "'ep' is 3, which does not divide the 2"),
    (HYBRID.replace(" pp: 1", " pp: 2"), [ROW], "'ga' is 1, but 0 layers are called 'embedding_l"),
    (HYBRID.replace(" pp: 1", " pp: 2").replace("vpp: 1", "vpp: 3"), [ROW], "schedule interleaved"),
    ("DATA pp: 2 all_gpus: 4", [ROW], "'pp' is 2, but DATA has no pipeline"),
    ("HYBRID_DLRM all_gpus: 4", [ROW], "needs DLRM_LAST_BOTTOM_LAYER"),
    ("HYBRID_CUSTOMIZED all_gpus: 4", [ROW + " DATTA"], "line 3: .*'DATTA' .did you mean 'DATA'"),
    (HYBRID + " checkpoints: 1 9", [ROW], "line 1: checkpoints names layer 9; there are 1"),
]


@pytest.mark.parametrize(("header", "layers", "says"), BAD)
def test_bad_files_are_one_line(tmp_path: Path, header: str, layers: list[str], says: str) -> None:
    path = written(tmp_path, header, *layers)
    with pytest.raises(InputError, match=says) as caught:
        import_program([path])
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_messages_of_sequence_parallel_ranks(tmp_path: Path) -> None:
    """The generator divides there, and so writes ``8388608.0``."""
    header = HYBRID + " pp_comm: 8388608.0"
    assert read_simai(written(tmp_path, header, ROW)).pipeline_bytes == 8388608
    with pytest.raises(InputError, match=r"line 1: pp_comm is '8\.5'"):
        read_simai(written(tmp_path, HYBRID + " pp_comm: 8.5", ROW))


def test_micro_batches_that_differ(tmp_path: Path) -> None:
    header = HYBRID.replace(" pp: 1", " pp: 2").replace("ga: 1", "ga: 2")
    begin, block = layer("embedding_layer"), layer("attention")
    with pytest.raises(InputError, match="layers of micro-batch 0 are not those of the last"):
        program(tmp_path, header, begin, block, begin, block, block)
    header = header.replace("vpp: 1", "vpp: 2")
    with pytest.raises(InputError, match="'vpp' is 2, which does not divide the 3 layers"):
        program(tmp_path, header, *[begin, *[block] * 3] * 2)


def test_truncated_files(tmp_path: Path) -> None:
    path = written(tmp_path, HYBRID, ROW, ROW)
    path.write_text(path.read_text().rpartition("\n")[0])
    with pytest.raises(InputError, match="line 2 says 2 layers, but 1 lines follow"):
        read_simai(path)
    path.write_text(HYBRID)
    with pytest.raises(InputError, match="truncated"):
        read_simai(path)
    path.write_bytes(b"DATA \xff\xfe\n1\n")
    with pytest.raises(InputError, match="not a text file"):
        read_simai(path)
    with pytest.raises(InputError, match="'all_gpus' is 4, but 8 ranks are asked for"):
        simai_program(written(tmp_path, HYBRID, ROW), 8)
