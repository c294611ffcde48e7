"""SimAI texts that mpisim writes: read again they take as long; what they cannot say is refused."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from simai_texts import COST, priced, took

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.formats import (
    rank_to_write,
    read_simai,
    simai_program,
    write_simai,
)
from mpisim.formats.simai_layers import micro_batches
from mpisim.program import Kind, Operation, Phase, Program, ProgramBuilder, load

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
        (["plan.pp=2", "plan.tp=2", "plan.pipeline=zb-h1"], "gradients of weights in passes of"),
        (["plan.pp=2", "plan.tp=2", "plan.pipeline=chimera"], "3 go through different layers"),
        (
            ["plan.pp=2", "plan.vpp=2", "plan.tp=2", "plan.pipeline=zb-v"],
            "gradients of weights in passes of their own",
        ),
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
