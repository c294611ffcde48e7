"""The end of a step: further reductions, the norm, clipping, the optimizer's kernels."""

from __future__ import annotations

import pytest
from plans import plan_of
from sharing import layer, stepped, told
from toys import Free

from mpisim import engine
from mpisim.program import Phase
from mpisim.workloads.data_parallel import make_strategy
from mpisim.workloads.grid import Grid, Groups
from mpisim.workloads.operators import Parameter
from mpisim.workloads.optimizer import FOREACH_KERNELS, optimizer_bytes

NORM = Parameter("norm", 16, replicated=True)
WORDS = Parameter("words", 64, tied=True)


def end(rows: list[str]) -> list[str]:
    """The rows after the last backward or message."""
    passes = [i for i, row in enumerate(rows) if " backward" in row or row.startswith("send")]
    return rows[max(passes) + 1 :]


def test_sequence_parallel_ranks_add_up_what_they_hold_in_common() -> None:
    net = (layer("a", 40, NORM, NORM),)
    rows = end(told(stepped(net, 2, tp=2, global_batch=1).program))
    assert rows == [
        "flatten gradients",
        "replicated gradient all-reduce [tp 128] < flatten gradients",
        "unflatten gradient < replicated gradient all-reduce",
        "unflatten gradient",
        "gradient norm",
        "gradient norm all-reduce [model 4] < gradient norm",
        "read gradient norm < gradient norm all-reduce",
        "wait for gradient norm < read gradient norm",
        "clip gradients",
        "adam",
        "convert weights",
    ]
    without = told(stepped(net, 2, tp=2, sp=False, global_batch=1).program)
    assert not any("replicated" in row for row in without)


def test_norms_of_heads_are_added_up_without_sequence_parallelism_too() -> None:
    # _allreduce_layernorm_grads of megatron/core/distributed/finalize_model_grads.py
    heads = Parameter("query norm", 8, replicated=True, partial=True)
    rows = end(told(stepped((layer("a", 40, NORM, heads),), 2, tp=2, sp=False).program))
    assert rows[:3] == [
        "flatten gradients",
        "replicated gradient all-reduce [tp 32] < flatten gradients",
        "unflatten gradient < replicated gradient all-reduce",
    ]
    alone = told(stepped((layer("a", 40, NORM, heads),), 1).program)
    assert not any("replicated" in row for row in alone)


def test_tied_embeddings_are_added_up_over_first_and_last_stage() -> None:
    net = (
        layer("embedding", WORDS),
        layer("a", 40),
        layer("b", 40),
        layer("c", 40),
        layer("head", WORDS),
    )
    program = stepped(net, 3, pp=3, global_batch=3).program
    tied = "embedding gradient all-reduce [embedding 256]"
    for rank, times in ((0, 1), (1, 0), (2, 1)):
        found = [row for row in told(program, rank) if row.startswith(tied)]
        assert len(found) == times
    alone = told(stepped(net, 1, global_batch=1).program)
    assert not any(row.startswith("embedding gradient") for row in alone)


def test_a_matrix_held_twice_is_reduced_and_updated_once() -> None:
    net = (layer("embedding", WORDS), layer("a", 40), layer("head", WORDS))
    rows = told(stepped(net, 2, dp_style="megatron").program)
    assert "gradient all-reduce [dp 416] < scale gradients" in rows
    assert rows.index("gradient all-reduce [dp 416] < scale gradients") > rows.index(
        "embedding backward"
    )


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_both_directions_of_a_pipeline_are_added_up(schedule: str) -> None:
    net = tuple(layer(name, 40) for name in "ab")
    plan = {"pp": 2, "schedule": schedule, "global_batch": 8, "dp": 2}
    rows = end(told(stepped(net, 4, **plan).program))
    assert "gradient all-reduce [mirror 320]" in [row.split(" <")[0] for row in rows]
    sharded = end(told(stepped(net, 4, zero=1, **plan).program))
    assert "gradient all-reduce [mirror 160]" in [row.split(" <")[0] for row in sharded]


def test_fp16_checks_for_overflow_before_it_clips() -> None:
    net = (layer("a", 40),)
    rows = end(told(stepped(net, 2, tp=2, precision="fp16", global_batch=1).program))
    assert rows[:5] == [
        "unscale gradients",
        "overflow all-reduce [model 4] < unscale gradients",
        "read overflow < overflow all-reduce",
        "wait for overflow < read overflow",
        "gradient norm",
    ]


def test_deepspeed_checks_fp16_gradients_one_by_one() -> None:
    # FP16_Optimizer.step of deepspeed/runtime/fp16/fused_optimizer.py; a gradient of 40 in fp16 is
    # converted to be summed, as CheckOverflow does, and once more to be updated with.
    net = (layer("a", 40), layer("b", 60))
    keys: dict[str, object] = {"dp_style": "deepspeed", "precision": "fp16", "global_batch": 1}
    program = stepped(net, 2, tp=2, **keys).program
    rows = end(told(program))
    each = ["convert gradient", "sum gradient", "read overflow"]
    waits = "wait for overflow < read overflow"
    assert rows == [
        *(*each, waits),
        *(*each, waits),
        "overflow all-reduce [model 4] < read overflow",
        "read overflow < overflow all-reduce",
        waits,
        "convert gradients",
        "flatten gradients",
        "gradient norm",
        "gradient norm all-reduce [model 4] < gradient norm",
        "read gradient norm < gradient norm all-reduce",
        "wait for gradient norm < read gradient norm",
        "clip gradients",
        "adam",
        "convert weights",
    ]
    table = program.table_of(0)
    bytes_of: dict[str, int] = {}  # one ps a byte
    for name, duration in zip(table.name, table.duration, strict=True):
        known = program.names[name]
        bytes_of[known] = bytes_of.get(known, 0) + int(duration)
    assert bytes_of["convert gradient"] == bytes_of["convert gradients"] == 6 * 100
    assert bytes_of["sum gradient"] == 4 * 100
    assert bytes_of["flatten gradients"] == bytes_of["clip gradients"] == 8 * 100
    # It unscales without clipping, too; other formats and ZeRO have other optimizers.
    assert end(told(stepped(net, 2, tp=2, clip=False, **keys).program)) == rows
    for other in ({"precision": "bf16"}, {"zero": 1}, {"precision_gradients": "fp32"}):
        found = told(stepped(net, 2, tp=2, **{**keys, **other}).program)
        assert not any("flatten gradients" in row for row in found)


def test_norms_are_added_up_over_those_who_share_gradients() -> None:
    net = (layer("a", 40),)
    for plan, groups in (
        ({"dp_style": "ddp"}, []),
        ({"dp_style": "megatron"}, ["model"]),
        ({"dp_style": "megatron", "zero": 1}, ["instance"]),
        ({"dp_style": "deepspeed", "zero": 1}, ["dp", "model"]),
        ({"dp_style": "fsdp", "zero": 3}, ["dp", "model"]),
        ({"dp_style": "fsdp", "zero": 3, "zero_group": 2}, ["shard", "model"]),
    ):
        rows = told(stepped(net, 8, tp=2, global_batch=4, **plan).program)
        found = [row for row in rows if row.startswith("gradient norm all-reduce")]
        assert [row.split("[")[1].split()[0] for row in found] == groups


IN_16_BITS = {"precision_main_parameters": "bf16", "precision_moments": "bf16"}


@pytest.mark.parametrize(
    ("plan", "each"),
    [
        # Gradient read, master and two moments read and written in fp32.
        ({"dp_style": "megatron"}, 4 + 8 + 16),
        ({"dp_style": "megatron", "precision_gradients": "bf16"}, 4 + 8 + 16),
        ({"dp_style": "megatron", "optimizer": "sgd"}, 4 + 8),
        ({"dp_style": "ddp", "optimizer": "momentum", "precision": "fp32"}, 4 + 8 + 8),
        ({"dp_style": "ddp", "optimizer": "adagrad", "precision": "tf32"}, 4 + 8 + 8),
        ({"dp_style": "deepspeed", "zero": 2}, 4 + 8 + 16),
        ({"dp_style": "fsdp", "zero": 3}, 4 + 8 + 16),
        # A model that was read in 16 bits: the same numbers, in these.
        ({"dp_style": "fsdp", "zero": 3, **IN_16_BITS}, 2 + 4 + 8),
        ({"dp_style": "ddp", **IN_16_BITS}, 2 + 4 + 8),
        # Stage 1 of apex's FusedLAMB reads four numbers and writes three, norms read two, stage 2
        # reads weight and update and writes the weight.
        ({"dp_style": "ddp", "optimizer": "lamb", "precision": "fp32"}, 4 * (4 + 3 + 2 + 2 + 1)),
    ],
)
def test_bytes_of_a_fused_step(plan: dict[str, object], each: int) -> None:
    made = plan_of(**{"global_batch": 4, **plan})  # type: ignore[arg-type]
    found = make_strategy(made, [(layer("a", 40),)], Groups(Grid.of(made, 4)))
    assert optimizer_bytes(made, found) == each


@pytest.mark.parametrize(
    ("plan", "gradients", "weights"),
    [
        ({"dp_style": "megatron"}, None, 6),
        ({"dp_style": "megatron", "precision_gradients": "bf16"}, 6, 6),
        ({"dp_style": "megatron", "precision": "fp32"}, None, None),
        ({"dp_style": "deepspeed", "zero": 1}, 6, 6),
        ({"dp_style": "fsdp", "zero": 3}, None, None),
        ({"dp_style": "ddp"}, None, 6),
    ],
)
def test_master_weights_and_gradients_are_copied(
    plan: dict[str, object], gradients: int | None, weights: int | None
) -> None:
    program = stepped((layer("a", 40),), 4, **plan).program
    table = program.table_of(0)
    found = {program.names[name]: row for row, name in enumerate(table.name)}
    share = 10 if plan.get("zero") else 40
    for what, each in (("convert gradients", gradients), ("convert weights", weights)):
        assert (what in found) is (each is not None)
        if each is not None:
            assert table.duration[found[what]] == each * share  # one ps a byte
    if gradients:
        assert found["convert gradients"] < found["gradient norm"]
    if weights:
        assert found["convert weights"] == found["adam"] + 1


def test_torch_without_fused_kernels_runs_one_over_all_for_each_operation() -> None:
    net = (layer("a", 40),)
    rows = told(stepped(net, 1, dp_style="ddp", fused=False).program)
    assert rows[-8:] == [*(name for name, _ in FOREACH_KERNELS["adam"]), "convert weights"]
    # _multi_tensor_adam of torch/optim/adam.py: lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_.
    assert sum(numbers for _, numbers in FOREACH_KERNELS["adam"]) == 18
    # megatron/core/optimizer/__init__.py: torch.optim's AdamW without Transformer Engine and Apex.
    own = told(stepped(net, 1, dp_style="megatron", fused=False).program)
    assert "adam" in own
    stand_in = told(stepped(net, 1, dp_style="megatron", fused_optimizer=False).program)
    assert stand_in[-8:-1] == [name for name, _ in FOREACH_KERNELS["adam"]]


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_older_torch_goes_through_parameters_one_by_one(optimizer: str) -> None:
    net = (layer("a", 40, 24),)
    keys = {"dp_style": "ddp", "fused": False, "optimizer": optimizer, "precision": "fp32"}
    together = stepped(net, 1, clip=True, **keys).program
    loop = stepped(net, 1, clip=True, parameter_loops=True, **keys).program
    names = [name for name, _ in FOREACH_KERNELS[optimizer]]
    assert end(told(together))[-len(names) - 1 :] == ["clip gradients", *names]
    rows = end(told(loop))
    read = rows.index("wait for gradient norm < read gradient norm")
    assert rows[: read - 1] == ["gradient norm", "gradient norm", "norm of norms"]
    assert rows[read + 1 :] == ["clip gradients", "clip gradients", *names, *names]
    # Parameters of which ranks have a part are flat buffers.
    flat = told(stepped(net, 2, zero=1, parameter_loops=True, **keys).program)
    assert flat.count(names[0]) == 1


@pytest.mark.parametrize(
    ("plan", "updated"),
    [
        ({"dp_style": "megatron"}, 140),
        ({"dp_style": "megatron", "zero": 1}, 10 + 50),  # 40 by 4 ranks, experts by 2
        ({"dp_style": "deepspeed", "zero": 2}, 60),
        ({"dp_style": "fsdp", "zero": 3}, 60),
        ({"dp_style": "fsdp", "zero": 3, "zero_group": 2}, 20 + 50),
        ({"dp_style": "ddp", "zero": 1}, 40 + 100),  # whole parameters
    ],
)
def test_a_rank_updates_its_share(plan: dict[str, object], updated: int) -> None:
    made = plan_of(**{"global_batch": 4, "dp": 4, "ep": 2, **plan})  # type: ignore[arg-type]
    layers = (layer("a", 40, Parameter("expert", 100, expert=True)),)
    found = make_strategy(made, [layers], Groups(Grid.of(made, 4), made.zero_group))
    assert found.updated_parameters == updated


def test_rows_belong_to_the_optimizer() -> None:
    table = stepped((layer("a", 40),), 2, dp_style="megatron").program.table_of(0)
    assert (table.phase[-4:] == Phase.OPTIMIZER).all()


@pytest.mark.parametrize("zero", [0, 1])
def test_stages_without_experts_join_in_their_norm(zero: int) -> None:
    expert = Parameter("expert", 100, expert=True)
    net = (layer("a", 40), layer("b", 40, expert))
    program = stepped(net, 4, pp=2, ep=2, zero=zero, global_batch=4).program
    for rank in (0, 3):
        rows = [row.split(" <")[0] for row in told(program, rank)]
        found = [row for row in rows if row.startswith("gradient norm all-reduce")]
        groups = ["model", "emodel"] if zero == 0 else ["instance"]
        assert found == [f"gradient norm all-reduce [{group} 4]" for group in groups]


@pytest.mark.parametrize(
    "plan",
    [
        {"dp_style": style, "zero": zero, "overlap_dp": overlap, **more}
        for style, stages in (
            ("ddp", (0, 1)),
            ("megatron", (0, 1)),
            ("deepspeed", (0, 1, 2, 3)),
            ("fsdp", (2, 3)),
        )
        for zero in stages
        for overlap in (True, False)
        for more in (
            {},
            {"recompute": "full"},
            {"pp": 2},
            {"pp": 2, "schedule": "zb-h1"},
            {"pp": 2, "schedule": "dualpipe"},
            {"pp": 2, "vpp": 2, "schedule": "interleaved"},
        )
        if zero < 3 or "pp" not in more
    ],
)
def test_every_step_comes_to_its_end(plan: dict[str, object]) -> None:
    expert = Parameter("expert", 100, expert=True)
    net = (
        layer("embedding", WORDS),
        *(layer(name, 40, expert, NORM) for name in "abcd"),
        layer("head", WORDS),
    )
    done = stepped(net, 8, tp=2, ep=2, etp=1, global_batch=32, **plan)
    run = engine.simulate(done.program, network=Free())
    assert run.step_time > 0


@pytest.mark.parametrize(
    ("plan", "each"),
    [
        # Read in bf16, and once more for a largest value of its own; written in one layout or two.
        ({"fp8_scaling": "delayed"}, 2 + 2),
        ({"fp8_scaling": "current"}, 2 + 2 + 2),
        ({"fp8_scaling": "current", "fp8_transposed": False}, 2 + 2 + 1),
        ({"fp8_scaling": "blocks", "fp8_transposed": False}, 2 + 2),
        ({"fp8_weight_casts": True}, None),
        ({"dp_style": "ddp"}, None),
    ],
    ids=str,
)
def test_weights_are_cast_once_a_step(plan: dict[str, object], each: int | None) -> None:
    keys: dict[str, object] = {"dp_style": "megatron", "precision": "fp8", **plan}
    program = stepped((layer("a", 40),), 4, **keys).program
    table = program.table_of(0)
    found = {program.names[name]: row for row, name in enumerate(table.name)}
    assert ("cast weights" in found) is (each is not None)
    if each is not None:
        assert table.duration[found["cast weights"]] == each * 40  # one ps a byte


@pytest.mark.parametrize(("transposed", "bytes"), [(True, 1 + 1), (False, None)])
def test_weights_gathered_in_fp8_are_only_transposed(transposed: bool, bytes: int | None) -> None:
    keys = {"dp_style": "megatron", "zero": 1, "precision": "fp8", "fp8_params": True}
    program = stepped((layer("a", 40),), 4, **keys, fp8_transposed=transposed).program
    table = program.table_of(0)
    found = {program.names[name]: row for row, name in enumerate(table.name)}
    assert "cast weights" not in found
    assert ("transpose weights" in found) is transposed
    if bytes is not None:
        assert table.duration[found["transpose weights"]] == bytes * 40  # one ps a byte
