"""The memory model against published figures, ``data/validation/memory.toml``, and closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plans import changed, plan_of
from published_formulas import Gpt

from mpisim.base.presets import packaged
from mpisim.experiment import Plan, Transformer
from mpisim.memory import StageMemory, memory
from mpisim.memory.activations import weight_gradient_inputs
from mpisim.schedules import pipeline
from mpisim.validate.memory import FILE, Figure, MemoryRow, figures, judged, memory_rows
from mpisim.workloads.grid import Grid, Groups
from mpisim.workloads.layout import split_layers
from mpisim.workloads.operators import Layer, Operator
from mpisim.workloads.transformer import transformer_network

WITHIN = {"states": 0.065, "dynamic": 0.10, "tensors": 0.08, "reserved": 0.17, "total": 0.06}
"""Of measured figures; of formulas 3 %."""


@pytest.fixture(scope="module")
def rows() -> list[MemoryRow]:
    """Predicted in the tests: every process that collects them would take a second."""
    return memory_rows()


def figures_of(rows: list[MemoryRow]) -> list[Figure]:
    return [each for row in rows for each in row.figures]


def within(figure: Figure) -> float:
    return 0.03 if figure.formula else WITHIN[figure.quantity]


def test_rows_are_complete(rows: list[MemoryRow]) -> None:
    assert [row.name for row in rows] == list(packaged(FILE))
    assert all(row.published.source and row.published.group for row in rows)
    assert len(figures_of(rows)) >= 55
    assert sum(not row.published.ran for row in rows) >= 8
    assert {each.formula for each in figures_of(rows)} == {True, False}


@pytest.mark.parametrize("name", packaged(FILE))
def test_published_figures(name: str, rows: list[MemoryRow]) -> None:
    found = [each for each in figures_of(rows) if each.row == name]
    far = [
        each for each in found if each.predicted != pytest.approx(each.published, rel=within(each))
    ]
    assert far == []


@pytest.mark.parametrize(
    ("group", "mean"),
    [("Megatron-LM, tests", 0.05), ("Megatron-LM, logs", 0.065), ("torchtitan", 0.07)],
)
def test_mean_errors_of_measured_peaks(group: str, mean: float, rows: list[MemoryRow]) -> None:
    peaks = ("tensors", "reserved", "total")
    found = [each for each in figures_of(rows) if each.group == group and each.quantity in peaks]
    assert len(found) >= 4
    assert figures(found)["mean"] < mean


def test_no_run_that_went_is_refused(rows: list[MemoryRow]) -> None:
    went = [row for row in rows if row.published.ran and not row.published.formula]
    assert len(went) >= 40
    assert not [row.name for row in went if judged(row.verdict) == "refused"]


def test_runs_that_failed_are_refused(rows: list[MemoryRow]) -> None:
    """But one of a framework's settings that are not all known."""
    failed = {row.name: judged(row.verdict) for row in rows if not row.published.ran}
    assert [name for name, verdict in failed.items() if verdict == "fits"] == ["alpaca-7b-5-v100"]
    assert sum(verdict == "refused" for verdict in failed.values()) >= 6


# --- closed forms ---------------------------------------------------------------------------------


def block_of(model: Transformer, plan: Plan, gpus: int) -> Layer:
    block: Layer = transformer_network(model, plan, Grid.of(plan, gpus)).of_role("block")[0]
    return block


def head_of(model: Transformer, plan: Plan, gpus: int) -> dict[str, Operator]:
    (head,) = transformer_network(model, plan, Grid.of(plan, gpus)).of_role("head")
    return {each.name: each for each in head.operators}


@pytest.mark.parametrize(
    ("tp", "sp", "recompute"),
    [
        (1, False, "none"),
        (8, False, "none"),
        (8, True, "none"),
        (8, False, "selective"),
        (8, True, "selective"),
        (1, False, "full"),
        (8, True, "full"),
    ],
)
def test_a_layer_keeps_what_korthikanti_says(tp: int, sp: bool, recompute: str) -> None:
    """Table 2 of arXiv:2205.05198, byte for byte."""
    gpt = Transformer("gpt", layers=2, hidden=1024, heads=16, seq_len=512, vocab=51200)
    chosen = plan_of(
        global_batch=2,
        micro_batch=2,
        tp=tp,
        sp=sp,
        dp=1,
        kernels="eager",
        precision="fp16",
        recompute=recompute,  # type: ignore[arg-type]
    )
    block = block_of(gpt, chosen, tp)
    kept = {
        "none": block.saved,
        "selective": block.saved_selective,
        "full": block.checkpoint,
    }[recompute]
    formula = Gpt(512, 2, 1024, 16, 2, 51200, t=tp, sequence_parallel=sp, recompute=recompute)  # type: ignore[arg-type]
    assert kept == formula.layer()


def test_gradients_of_weights_need_what_zero_bubble_says() -> None:
    """32sbh of a GPT layer: table 1 of arXiv:2401.10241."""
    gpt = Transformer("gpt", layers=2, hidden=1024, heads=16, seq_len=512, vocab=51200)
    chosen = plan_of(global_batch=2, micro_batch=2, dp=1, kernels="eager", precision="fp16")
    sizes = Groups(Grid.of(chosen, 1)).sizes
    needed = sum(weight_gradient_inputs(each, sizes) for each in block_of(gpt, chosen, 1).operators)
    assert needed == 32 * 512 * 2 * 1024


@pytest.mark.parametrize(
    ("keys", "kept", "forward", "backward"),
    [
        # Transformer Engine's kernel puts the gradient in the place of the scores.
        ({}, 2, 2, 2),
        # llm.c's one kernel does so forward.
        ({"loss_gradient": "forward"}, 2, 2, 0),
        # PyTorch's of scores in fp32: their copy and the result; the gradients of both.
        ({"eager_loss": True}, 4, 2 + 8, 8),
        # Megatron-LM's works in place on a copy; its gradient is cast back.
        ({"fused_loss": False, "tp": 2}, 4, 2 + 4, 2),
        # PyTorch's over shards: (target's gradient + exponential) · gradient, none in place.
        ({"fused_loss": False, "tp": 2, "sp_style": "pytorch"}, 4, 2 + 12, 12),
    ],
)
def test_a_loss_holds_what_its_framework_holds(
    keys: dict[str, object], kept: int, forward: int, backward: int
) -> None:
    gpt = Transformer("gpt", layers=2, hidden=1024, heads=16, seq_len=512, vocab=51200)
    chosen = plan_of(global_batch=2, micro_batch=2, dp=1, **keys)  # type: ignore[arg-type]
    loss = head_of(gpt, chosen, chosen.tp)["loss"]
    scores = 2 * 512 * 51200 // chosen.tp
    assert loss.saved == kept * scores
    assert loss.alive == (forward * scores, backward * scores)


def test_clamped_activations_are_kept_once_where_they_run_again() -> None:
    """The clamped copy of gpt-oss is made inside what ``moe_act`` runs again."""
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "seq_len": 512, "vocab": 51200}
    moe = Transformer(
        "moe", **sizes, experts=8, activation="swiglu", ffn_hidden=2048, swiglu_limit=7.0
    )
    base = plan_of(global_batch=1, dp=1)
    again = changed(base, recompute_modules=("moe_act",))
    kept = [
        next(o.saved for o in block_of(moe, plan, 1).operators if o.name == "experts swiglu")
        for plan in (base, again)
    ]
    assert kept[0] == 2 * kept[1] > 0


# --- whole plans ----------------------------------------------------------------------------------

LLAMA = Transformer(
    "llama",
    layers=32,
    hidden=4096,
    heads=32,
    seq_len=8192,
    vocab=128256,
    kv_heads=8,
    ffn_hidden=14336,
    activation="swiglu",
    position="rotary",
    norm="rms",
    bias=False,
    dropout=False,
    tied_embeddings=False,
)


def stages(model: Transformer, chosen: Plan) -> list[StageMemory]:
    """The memory of a plan's stages."""
    assert chosen.dp is not None
    grid = Grid.of(chosen, chosen.tp * chosen.cp * chosen.pp * chosen.dp)
    network = transformer_network(model, chosen, grid)
    micro_batches = chosen.global_batch // (chosen.dp * chosen.micro_batch)
    pipe = pipeline(chosen.pipeline.schedule, chosen.pp, micro_batches, chosen.vpp)
    return memory(pipe, split_layers(network, chosen, pipe.parts), chosen, grid)


@pytest.mark.parametrize("key", ["seq_len", "micro_batch", "layers"])
def test_twice_as_much_keeps_twice_as_much(key: str) -> None:
    base = plan_of(global_batch=4, tp=2, sp=True, dp=1, zero=1)
    model, plan = LLAMA, base
    if key == "micro_batch":
        plan = replace(base, micro_batch=2)
    else:
        model = replace(LLAMA, **{key: 2 * getattr(LLAMA, key)})
    whole, more = stages(LLAMA, base)[0], stages(model, plan)[0]
    # All of it grows with tokens; with layers, all but what the head keeps.
    head = 2 * 8192 * 128256 // 2 if key == "layers" else 0
    assert more.activations - head == pytest.approx(2 * (whole.activations - head), rel=0.02)
    assert more.total > whole.total


def test_recomputation_saves_memory() -> None:
    base = plan_of(global_batch=2, tp=2, sp=True, dp=1, kernels="eager")
    found = [
        stages(LLAMA, changed(base, recompute=how))[0].total
        for how in ("none", "selective", "full")
    ]
    assert found == sorted(found, reverse=True)
