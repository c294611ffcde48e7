"""SimAI workloads: what waits for what in each policy, groups of ranks, pipelines, bad files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.formats import (
    import_program,
    rank_to_write,
    read_simai,
    simai_program,
    write_simai,
)
from mpisim.formats.simai_layers import micro_batches
from mpisim.program import Kind, Operation, Phase, Program, ProgramBuilder, load
from mpisim.topo import AlphaBeta

NS = 1000
COST = 10_000
"""Of every communication, in ns: latency only."""


def priced(ns: int = COST) -> AlphaBeta:
    return AlphaBeta(latency=ns * 1e-9, bandwidth=1e30)


def took(program: Program, ns: int = COST) -> float:
    """Simulated time in ns."""
    run = engine.simulate(program, network=priced(ns))
    return max(int(run.rows(i).end.max()) for i in range(len(run.hosted))) / NS


def layer(
    name: str = "layer",
    fwd: tuple[int, str, int] = (1, "NONE", 0),
    ig: tuple[int, str, int] = (1, "NONE", 0),
    wg: tuple[int, str, int] = (1, "NONE", 0),
    update: int = 0,
    more: str = "",
) -> str:
    parts = "\t".join(f"{time} {kind} {size}" for time, kind, size in (fwd, ig, wg))
    return f"{name} -1 {parts} {update} {more}"


def written(folder: Path, header: str, *layers: str) -> Path:
    path = folder / "workload.txt"
    path.write_text("\n".join([header, str(len(layers)), *layers]))
    return path


def program(folder: Path, header: str, *layers: str, ranks: int = 0) -> Program:
    return simai_program(written(folder, header, *layers), ranks)


HYBRID = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4"
ALL = (300, "ALLREDUCE", 8)


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


# --- written -------------------------------------------------------------------------------------

GPT = """\
title = "GPT-2 on 8 GPUs"
model = { preset = "gpt2", layers = 4, hidden = 1024, heads = 16 }
plan = { tp = 4, dp = 2, sp = true, zero = 1, micro_batch = 4, global_batch = 32 }
cluster = { preset = "dgx-h100", nodes = 1 }
"""


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Changes of a plan → the step, and that of its SimAI text, read again; in s."""

    def export(*changes: str) -> list[float]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "gpt.toml").write_text(GPT)
        given = [word for change in changes for word in ("--set", change)]
        steps = []
        assert main(["run", "gpt.toml", *given, "-o", "run.h5", "--json", "a.json"]) == 0
        assert main(["export", "run.h5", "--format", "simai", "-o", "step.txt"]) == 0
        assert main(["program", "import", "step.txt", "-o", "step.h5"]) == 0
        on = ["--set", "cluster.preset=dgx-h100"]
        assert main(["run", "step.h5", *on, "--json", "b.json"]) == 0
        for name in ("a.json", "b.json"):
            steps.append(json.loads((tmp_path / name).read_text())["step_time"])
        return steps

    return export


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("plan.recompute=full",),
        ("plan.tp=1", "plan.sp=false", "plan.dp=8"),
        ("plan.tp=8", "plan.dp=1", "plan.zero=0"),
        ("plan.tp=1", "plan.sp=false", "plan.dp=8", "plan.zero=3"),
        ("plan.tp=2", "plan.pp=2", "model.layers=12"),
        ("plan.tp=2", "plan.pp=2", "model.layers=12", "plan.vpp=2", "plan.pipeline=interleaved"),
    ],
)
def test_a_step_that_is_written_and_read_takes_as_long(
    exported: Callable[..., list[float]], changes: tuple[str, ...]
) -> None:
    first, again = exported(*changes)
    assert again == pytest.approx(first, rel=0.02)


def test_few_micro_batches_on_many_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on 16 stages, of which the last is the busiest, and sums up gradients before the rest."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "simai-llama3-405b-1024-h100", "-o", "run.h5", "--json", "a.json"]) == 0
    assert main(["export", "run.h5", "--format", "simai", "-o", "step.txt"]) == 0
    assert main(["program", "import", "step.txt", "-o", "step.h5"]) == 0
    assert main(["run", "step.h5", "--set", "cluster.preset=dgx-h100", "--json", "b.json"]) == 0
    first, again = (
        json.loads((tmp_path / name).read_text())["step_time"] for name in ("a.json", "b.json")
    )
    assert again == pytest.approx(first, rel=0.05)


def test_the_text_is_as_simai_writes_it(
    exported: Callable[..., list[float]], tmp_path: Path, shared: Path
) -> None:
    """Keys of the header, their order, and columns: those of SimAI's example."""
    exported()
    lines = (tmp_path / "step.txt").read_text().splitlines()
    with gzip.open(shared / "traces/simai_workloads/workload_analytical.txt.gz", "rt") as file:
        example = file.read().splitlines()
    words, theirs = (re.sub(r"\d+", "N", each[0]).split() for each in (lines, example))
    assert words == theirs
    assert int(lines[1]) == len(lines) - 2
    assert {line.count("\t") for line in lines[2:]} == {example[2].count("\t")} == {11}
    workload = read_simai(tmp_path / "step.txt")
    assert (workload.tensor, workload.expert, workload.n_ranks) == (4, 1, 8)


def test_both_commands_say_what_overlaps_otherwise(
    exported: Callable[..., list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ZeRO 3 the gathers of parameters in the forward pass: one for each layer, at least."""
    capsys.readouterr()
    exported("plan.tp=1", "plan.sp=false", "plan.dp=8", "plan.zero=3")
    said = re.findall(r"; in SimAI (\d+) communications of a rank with", capsys.readouterr().out)
    options = ["--set", "plan.tp=1", "--set", "plan.sp=false", "--set", "plan.dp=8"]
    program = ["--set", "plan.zero=3", "--save-program", "whole.h5"]
    assert main(["run", "gpt.toml", *options, *program]) == 0
    assert main(["program", "export", "whole.h5", "--format", "simai", "-o", "whole.txt"]) == 0
    said += re.findall(r"; in SimAI (\d+) communications of a rank with", capsys.readouterr().out)
    assert len(said) == 2
    assert said[0] == said[1]
    assert int(said[0]) >= 4


def test_communications_are_kept(exported: Callable[..., list[float]], tmp_path: Path) -> None:
    """As many of each operation and size, but those below 1 KiB."""
    exported()
    assert main(["run", "gpt.toml", "--save-program", "whole.h5"]) == 0
    counts = []
    for name in ("whole.h5", "step.h5"):
        table = load(tmp_path / name).table_of(0)
        large = table.is_communication & (table.bytes >= 1024)
        pairs = zip(table.operation[large].tolist(), table.bytes[large].tolist(), strict=True)
        counts.append(Counter(pairs))
    assert counts[0] == counts[1]


def test_what_simai_has_no_word_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.toml").write_text(GPT)
    for change, says in (
        (["plan.pp=2", "plan.tp=2", "plan.pipeline=zb-h1"], "1 times forward and 2 times backwa"),
        (
            ["plan.pp=2", "plan.cp=2", "plan.tp=2", "plan.dp=1"],
            "rank 0 exchanges messages with ranks 2, 4; in",
        ),
        (["plan.cp=2", "plan.tp=2"], "SimAI's layers have no send_recv"),
    ):
        given = [word for each in change for word in ("--set", each)]
        options = ["--save-program", "step.h5", "--overwrite"]
        assert main(["run", "gpt.toml", *given, *options]) == 0
        capsys.readouterr()
        assert main(["program", "export", "step.h5", "--format", "simai", "-o", "x.txt"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
        assert not (tmp_path / "x.txt").exists()


def test_a_pipeline_is_one_stage_with_equal_micro_batches(
    exported: Callable[..., list[float]], tmp_path: Path
) -> None:
    """As the generator writes it: sizes, messages, and micro-batches behind their embedding."""
    exported("plan.tp=2", "plan.pp=2", "plan.pipeline=interleaved", "plan.vpp=2")
    workload = read_simai(tmp_path / "step.txt")
    sizes = (workload.tensor, workload.pipeline, workload.chunks, workload.micro_batches)
    assert sizes == (2, 2, 2, 4)
    assert workload.n_ranks == 8
    assert workload.pipeline_bytes == 4 * 1024 * 1024 * 2 // 2  # a sequence-parallel rank's share
    found = micro_batches(workload)
    assert found.first + 4 * found.length == len(workload.layers)
    assert len(found.chunks) == 3
    assert main(["export", "run.h5", "--format", "simai", "-o", "first.txt", "--ranks", "1"]) == 0
    names = [
        {each.name for each in one.layers} for one in (read_simai(tmp_path / "first.txt"), workload)
    ]
    assert "embedding_all-reduce" in names[0] - names[1]
    assert "loss_maximum_all-reduce" in names[1] - names[0]


def test_waits_for_other_stages_are_not_in_the_text(tmp_path: Path) -> None:
    """Two stages of a rank: the second one's kernels begin when the first has computed."""
    builder = ProgramBuilder()
    for stage, time in enumerate((1_000_000, 5_000_000)):
        rows = builder.table(f"stage {stage}")
        for batch in range(2):
            rows.tags(phase=Phase.FORWARD, micro_batch=batch)
            if stage:
                ready = [rows.point_to_point(Kind.RECV, 0, 1, 4096)]
                done = rows.kernel("layer", 0, time, waits=ready)
            else:
                done = rows.kernel("layer", 0, time)
                rows.point_to_point(Kind.SEND, 0, 1, 4096, waits=[done])
        for batch in range(2):
            rows.tags(phase=Phase.BACKWARD, micro_batch=batch)
            if stage:
                done = rows.kernel("gradient", 0, 2 * time)
                rows.point_to_point(Kind.SEND, 1, 2, 2048, waits=[done])
            else:
                ready = [rows.point_to_point(Kind.RECV, 1, 2, 2048)]
                rows.kernel("gradient", 0, 2 * time, waits=ready)
        builder.add_table(rows.build())
        messages = [builder.communicator(pair, "message") for pair in ((0, 1), (1, 0))]
        builder.add_rank(stage, messages)
    two = builder.build({})
    run = engine.simulate(two, network=priced())
    rows_of = run.rows(0)
    found = write_simai(two, tmp_path / "0.txt", np.stack([rows_of.begin, rows_of.end]), rank=0)
    assert (found.stage, found.stages) == (0, 2)
    lines = (tmp_path / "0.txt").read_text().splitlines()
    assert lines[0].endswith(
        "pp: 2 vpp: 1 ga: 2 all_gpus: 2 checkpoints: 0 checkpoint_initiates: 0 pp_comm 4096"
    )
    none = "-1 0 NONE 0 0 NONE 0 0 NONE 0 0"
    batch = [
        f"embedding_layer {none}",
        f"chunk {none}",
        "forward -1 1000 NONE 0 2000 NONE 0 0 NONE 0 0",
    ]
    assert [line.replace("\t", " ") for line in lines[2:]] == 2 * batch
    assert write_simai(two, tmp_path / "1.txt").stage == 1  # the one that takes longest
    again = simai_program(tmp_path / "1.txt")
    assert took(again) == 3 * (5_000 + 10_000) + 2 * COST


def pipeline(times: Sequence[int], batches: int, norm: bool = False) -> Program:
    """Stages of a rank, forward passes of these times and backward ones of twice as much, in ps."""
    builder = ProgramBuilder()
    count = len(times)
    for stage, time in enumerate(times):
        rows = builder.table(f"stage {stage}")
        bound = [builder.communicator(tuple(range(count)), "norm")] if norm else []
        done = -1
        for phase, step in ((Phase.FORWARD, 1), (Phase.BACKWARD, -1)):
            before, after = stage - step, stage + step
            slots = {}
            for pair in ((before, stage), (stage, after)):
                if min(pair) >= 0 and max(pair) < count:
                    slots[pair] = len(bound)
                    bound.append(builder.communicator(pair, "message"))
            for batch in range(batches):
                rows.tags(phase=phase, micro_batch=batch)
                ready = []
                if (before, stage) in slots:
                    slot = slots[before, stage]
                    ready = [rows.point_to_point(Kind.RECV, slot, 1 + slot, 4096)]
                takes = time if step > 0 else 2 * time
                done = rows.kernel("layer", 0, takes, waits=ready)
                if (stage, after) in slots:
                    slot = slots[stage, after]
                    rows.point_to_point(Kind.SEND, slot, 1 + slot, 4096, waits=[done])
        if norm:
            rows.tags(phase=Phase.OPTIMIZER, micro_batch=-1)
            summed = rows.collective(Operation.ALL_REDUCE, 0, 9, 4, waits=[done])
            rows.kernel("update", 0, 1_000_000, waits=[summed])
        builder.add_table(rows.build())
        builder.add_rank(stage, bound)
    return builder.build({})


def test_waits_for_small_collectives_with_other_stages_are_not_in_the_text(tmp_path: Path) -> None:
    """The norm of gradients waits for the slowest stage, which the bubble has already."""
    two = pipeline((9_000_000, 1_000_000), 2, norm=True)
    rows_of = engine.simulate(two, network=priced()).rows(1)
    times = np.stack([rows_of.begin, rows_of.end])
    write_simai(two, tmp_path / "1.txt", times, rank=1)
    lines = (tmp_path / "1.txt").read_text().splitlines()
    assert lines[2].replace("\t", " ") == "backward -1 0 NONE 0 1000 NONE 0 0 NONE 0 0"


@pytest.mark.parametrize(("batches", "stage"), [(1, 0), (2, 0), (8, 3), (64, 3)])
def test_the_stage_that_is_written_makes_as_long_a_step(batches: int, stage: int) -> None:
    """Three short stages and a long one: of many micro-batches the long one says how long."""
    four = pipeline((1_000_000, 1_000_000, 1_000_000, 10_000_000), batches)
    assert rank_to_write(four) == stage


def test_stages_that_are_no_neighbours_are_refused(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"stage {rank}").tags(phase=Phase.FORWARD, micro_batch=0)
        done = rows.kernel("layer", 0, 1000 * (rank + 1))
        for slot in range(3):
            rows.point_to_point(Kind.SEND, slot, 1 + slot, 4096, waits=[done])
            rows.point_to_point(Kind.RECV, 3 + slot, 4 + slot, 4096)
        builder.add_table(rows.build())
        others = [other for other in range(4) if other != rank]
        pairs = [*((rank, other) for other in others), *((other, rank) for other in others)]
        builder.add_rank(rank, [builder.communicator(pair, "message") for pair in pairs])
    with pytest.raises(InputError, match="rank 0 exchanges messages with ranks 1, 2, 3; in a Sim"):
        write_simai(builder.build({}), tmp_path / "x.txt")


def test_a_chain_by_hand(tmp_path: Path) -> None:
    """A kernel, an all-reduce that is waited for, one that is not: two lines."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}") if not rank else None
        if rows is not None:
            first = rows.tags(phase=Phase.FORWARD).kernel("qkv", 0, 3_000_500)
            done = rows.collective(Operation.ALL_REDUCE, 0, 1, 4096, waits=[first])
            second = rows.tags(phase=Phase.BACKWARD).kernel("dgrad", 0, 2_000_500, waits=[done])
            rows.collective(Operation.REDUCE_SCATTER, 1, 2, 8192, waits=[second])
            rows.kernel("wgrad", 0, 1_000_000)
            builder.add_table(rows.build())
        tensor = builder.communicator((rank - rank % 2, rank - rank % 2 + 1), "tp")
        data = builder.communicator((rank % 2, rank % 2 + 2), "dp")
        builder.add_rank(0, [tensor, data])
    found = write_simai(builder.build({}), tmp_path / "step.txt")
    lines = (tmp_path / "step.txt").read_text().splitlines()
    assert lines[0].startswith("HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 ")
    assert [line.replace("\t", " ") for line in lines[2:]] == [
        "all_reduce -1 3000 ALLREDUCE 4096 1000 NONE 0 0 NONE 0 0",
        "reduce_scatter -1 0 NONE 0 0 NONE 0 2000 REDUCESCATTER_DP_EP 8192 0",
    ]
    assert (found.layers, found.changed) == (2, 0)
