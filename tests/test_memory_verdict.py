"""Whether a plan fits, said in text and numbers, and what would make it fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import plan_of

from mpisim.base.errors import InputError
from mpisim.experiment import ClusterChoice, Cnn, Experiment, Model, Plan, Transformer
from mpisim.kernels import find_gpu
from mpisim.memory import Evaluate, StageMemory, Verdict, assess, capacity, evaluator
from mpisim.memory.model import PARTS
from mpisim.memory.remedies import advice, remedies
from mpisim.workloads import lay_out

GIB = 2**30

LLAMA = Transformer(
    "llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=14336,
    seq_len=8192,
    vocab=128256,
    position="rotary",
    norm="rms",
    activation="swiglu",
    bias=False,
    dropout=False,
    tied_embeddings=False,
)


def stage(number: int, total: int, error: int = 0) -> StageMemory:
    """A stage whose activations take all."""
    parts = dict.fromkeys(PARTS, 0) | {"activations": total}
    return StageMemory(number, **parts, error=error, moment="forward of micro-batch 0")


def experiment(model: Model = LLAMA, **plan: object) -> Experiment:
    """A model on nodes of H100."""
    chosen = plan_of(**{"global_batch": 8, **plan})  # type: ignore[arg-type]
    return Experiment(model=model, plan=chosen, cluster=ClusterChoice("dgx-h100"))


H100 = find_gpu("h100-sxm")

evaluate = evaluator(experiment(), 8, H100)
"""Llama-3-8B on 8 H100, or so many times that."""


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [("h100-sxm", 79.1), ("a100-sxm-40gb", 39.5), ("h200", 139.8), ("a40", 44.4), ("t4", 14.6)],
)
def test_capacity_is_what_a_program_can_have(gpu: str, gib: float) -> None:
    assert capacity(find_gpu(gpu)) / GIB == pytest.approx(gib, rel=0.012)  # as PyTorch prints it


def test_the_fullest_stage_decides() -> None:
    found = Verdict((stage(0, 70 * GIB), stage(1, 90 * GIB)), 80 * GIB, "a GPU")
    assert found.worst.stage == 1
    assert (found.peak, found.headroom, found.fits) == (90 * GIB, -10 * GIB, False)
    assert found.sentence() == (
        "does not fit into a GPU: stage 1 of 2 needs 90.0 GiB ± 0.0 of 80.0 GiB, 10.0 GiB missing"
    )


def test_too_close_to_call() -> None:
    found = Verdict((stage(0, 79 * GIB, GIB),), 80 * GIB, "a GPU")
    assert found.fits
    assert not found.certain
    assert found.sentence() == (
        "fits into a GPU: every GPU needs 79.0 GiB ± 1.0 of 80.0 GiB, 1.0 GiB free; "
        "too close to call"
    )
    assert Verdict((stage(0, 77 * GIB, GIB),), 80 * GIB, "a GPU").certain


def test_one_stage_that_is_far_over_is_enough() -> None:
    """A stage near the limit is no doubt about a plan of which another stage is far over."""
    stages = (stage(0, 132 * GIB, 4 * GIB), stage(1, 79 * GIB, 2 * GIB))
    found = Verdict(stages, 79 * GIB, "a GPU")
    assert (found.fits, found.certain) == (False, True)
    assert "too close" not in found.sentence()
    # One that fits is certain only if every stage is.
    assert not Verdict((stage(0, 30 * GIB), stage(1, 79 * GIB, GIB)), 80 * GIB, "a GPU").certain
    # The stage with the larger error bar may be the doubt, though another is fuller.
    assert not Verdict((stage(0, 78 * GIB), stage(1, 77 * GIB, 2 * GIB)), 80 * GIB, "G").certain


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 200),
)
def test_certain_is_what_two_standard_deviations_leave(
    stages: list[tuple[int, int]], room: int
) -> None:
    found = Verdict(tuple(stage(i, *each) for i, each in enumerate(stages)), room, "a GPU")
    outcomes = {
        all(total + sign * 2 * error <= room for total, error in stages) for sign in (-1, 1)
    }
    assert found.fits == all(total <= room for total, _ in stages)
    if found.certain:
        assert outcomes == {found.fits}
    edge = any(total + sign * 2 * error == room for total, error in stages for sign in (-1, 1))
    if len(outcomes) == 1 and not edge:
        assert found.certain


def test_the_table_adds_up() -> None:
    found = evaluate(plan_of(global_batch=32, tp=2, pp=2), 1)
    lines = found.text().splitlines()
    assert lines[0].startswith("The plan fits into NVIDIA H100 SXM5 80 GB (700 W): stage 0 of 2")
    assert max(map(len, lines)) <= 100
    first = lines.index("Memory of one GPU, in GiB") + 2
    rows = {line.split()[0]: line.split()[1:] for line in lines[first:-1]}
    whole = [float(value) for value in rows.pop("total")]
    rows.pop("±")
    rows.pop("of")
    sums = [sum(float(row[i]) for row in rows.values()) for i in range(2)]
    assert sums == pytest.approx(whole, abs=1e-9)
    assert whole == pytest.approx([each.total / GIB for each in found.stages], abs=0.005)


def test_many_stages_are_cut() -> None:
    found = Verdict(tuple(stage(i, (20 - i) * GIB) for i in range(16)), 80 * GIB, "a GPU")
    assert "... 8 more stages that need less" in found.text()


def test_as_numbers() -> None:
    found = evaluate(plan_of(global_batch=32, tp=2, pp=2), 1)
    said = json.loads(json.dumps(found.as_dict()))
    assert said["fits"] is found.fits
    for each in said["stages"]:
        assert sum(each[name] for name in PARTS) == each["total"]
    assert max(each["total"] for each in said["stages"]) == said["peak"]


def test_what_would_make_it_fit() -> None:
    """8B parameters at 18 bytes and their activations need more than 80 GB."""
    plan = plan_of(global_batch=256, micro_batch=1)
    verdict = evaluate(plan, 1)
    assert not verdict.fits
    found = remedies(plan, evaluate)
    changes = [remedy.change for remedy in found]
    assert all(remedy.verdict.fits for remedy in found)
    assert "tp = 2" in changes or "tp = 4" in changes
    # Each is the verdict on the changed plan itself.
    for remedy in found:
        assert evaluate(remedy.plan, remedy.nodes).peak == remedy.verdict.peak
    # More nodes alone do not help where nothing is sharded.
    assert not any("nodes" in change for change in changes)
    lines = advice(plan, verdict, evaluate)
    assert lines[0] == "Any of these makes it fit:"
    assert len(lines) == 1 + len(found)


def test_more_nodes_help_where_states_are_sharded() -> None:
    plan = plan_of(global_batch=512, micro_batch=1, zero=1, recompute="full")
    base, more = evaluate(plan, 1), evaluate(plan, 4)
    assert more.stages[0].optimizer == pytest.approx(base.stages[0].optimizer / 4, rel=1e-6)
    limit = (base.peak + more.peak) // 2

    def limited(changed: Plan, times: int) -> Verdict:
        return Verdict(evaluate(changed, times).stages, limit, "GPU")

    changes = [remedy.change for remedy in remedies(plan, limited)]
    assert changes[-1] in ("2 times the nodes", "4 times the nodes")


def test_advice_where_nothing_helps_and_where_none_is_needed() -> None:
    plan = plan_of(global_batch=32)
    full = Verdict((stage(0, 90 * GIB),), 80 * GIB, "a GPU")
    (line,) = advice(plan, full, lambda changed, times: full)
    head = "No change of the plan makes it fit, nor do 3 together"
    assert line == f"{head}; as it is, it takes GPUs of 90 GiB."

    def refuse(changed: Plan, times: int) -> Verdict:
        raise InputError("no")

    assert remedies(plan, refuse) == []
    assert advice(plan, Verdict((stage(0, GIB),), 80 * GIB, "a GPU"), refuse) == []


def test_given_dp_shrinks_as_the_model_spreads() -> None:
    seen: list[tuple[Plan, int]] = []

    def record(changed: Plan, times: int) -> Verdict:
        seen.append((changed, times))
        return Verdict((stage(0, 90 * GIB),), 80 * GIB, "a GPU")

    remedies(plan_of(global_batch=64, micro_batch=4, dp=8), record)
    alone = [p for p, times in seen if times == 1 and p.pp == p.cp == 1]
    assert {(p.tp, p.dp) for p in alone if p.tp > 1} == {(2, 4), (4, 2), (8, 1)}
    assert all(p.dp is not None and p.tp * p.pp * p.cp * p.dp == 8 * times for p, times in seen)
    plans = [p for p, _ in seen]
    assert {p.micro_batch for p in plans} == {4, 2, 1}
    assert {p.zero for p in plans} == {0, 1, 3}
    assert any(p.dp == 16 for p in plans)


def limited(peak: Callable[[Plan, int], int], room: int) -> Evaluate:
    """Verdicts that know a plan's sizes alone."""

    def verdict(changed: Plan, times: int) -> Verdict:
        return Verdict((stage(0, peak(changed, times) * GIB),), room * GIB, "a GPU")

    return verdict


def test_more_stages_come_before_tensor_parallelism_across_nodes() -> None:
    plan = plan_of(global_batch=64, tp=8)
    fits = limited(lambda p, times: 160 // (p.tp * p.pp // 8), 80)
    changes = [remedy.change for remedy in remedies(plan, fits, node=8)]
    assert changes.index("pp = 2") < changes.index("tp = 16")
    # Where a node has room for it, tensor parallelism comes first.
    changes = [remedy.change for remedy in remedies(plan, fits, node=16)]
    assert changes.index("tp = 16") < changes.index("pp = 2")


def test_changes_are_combined_where_none_is_enough() -> None:
    """Recomputation halves it, stages (4 at most) quarter it: both together are needed."""

    def peak(changed: Plan, times: int) -> int:
        if changed.pp > 4 or changed.tp > 1 or changed.cp > 1 or changed.ep > 1:
            raise InputError("no")
        return 640 // changed.pp // (2 if changed.recompute.granularity == "full" else 1)

    found = remedies(plan_of(global_batch=64), limited(peak, 80))
    assert (found[0].change, found[0].together) == ('pp = 4, recompute = "full"', 2)
    lines = advice(
        plan_of(global_batch=64), limited(peak, 80)(plan_of(global_batch=64), 1), limited(peak, 80)
    )
    assert lines[0] == "No single change makes it fit; any of these does:"
    # The smallest that fit: two stages would do with more room.
    assert remedies(plan_of(global_batch=64), limited(peak, 170))[0].change == "pp = 4"
    wide = remedies(plan_of(global_batch=64), limited(lambda p, t: 2 * peak(p, t), 330))
    assert wide[0].change == "pp = 4"


def test_changes_are_combined_where_one_is_enough_but_dear() -> None:
    """16 tensor-parallel ranks fit, across nodes; so do 8 that recompute, inside of one."""

    def peak(changed: Plan, times: int) -> int:
        if changed.pp > 1 or changed.cp > 1 or changed.ep > 1 or changed.zero == 3 or times > 1:
            raise InputError("no")
        return 1280 // changed.tp // (2 if changed.recompute.granularity == "full" else 1)

    plan, fits = plan_of(global_batch=64), limited(peak, 80)
    changes = [remedy.change for remedy in remedies(plan, fits, node=8)]
    assert changes == ['tp = 8, recompute = "full"', "tp = 16"]
    assert advice(plan, fits(plan, 1), fits, node=8)[0] == "Any of these makes it fit:"
    # Where nodes have room for 16, one change is enough.
    assert all(remedy.together == 1 for remedy in remedies(plan, fits, node=16))


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({"dp_style": "deepspeed", "zero": 2}, "offload.optimizer = 1"),
        ({"dp_style": "megatron", "zero": 0}, "zero = 1, offload.optimizer = 1"),
        ({"dp_style": "fsdp", "zero": 3}, "offload.optimizer = 1, offload.parameters = true"),
    ],
)
def test_what_the_host_has_room_for(keys: dict[str, object], change: str) -> None:
    """What fits on the host, and else on four times the nodes alone; nothing where it is there."""

    def peak(changed: Plan, times: int) -> int:
        if changed.tp > 1 or changed.pp > 1 or changed.cp > 1 or changed.ep > 1:
            raise InputError("no")
        return (160 if changed.offload.optimizer else 320) // times

    plan = plan_of(global_batch=64, **keys)  # type: ignore[arg-type]
    changes = [remedy.change for remedy in remedies(plan, limited(peak, 160))]
    assert changes == [change, "2 times the nodes"]
    # What fits without is told alone.
    (batch,) = remedies(replace(plan, micro_batch=2), limited(by_batch, 80))
    assert batch.change == "micro_batch = 1"

    def with_half(changed: Plan, times: int) -> int:
        return peak(changed, 1) // (2 if changed.recompute.granularity == "full" else 1)

    (first, *_) = remedies(plan, limited(with_half, 80))
    assert (first.change, first.together) == (f'{change}, recompute = "full"', 2)


def by_batch(changed: Plan, times: int) -> int:
    """GiB of a plan that needs as much as its micro-batch asks for."""
    return 80 * changed.micro_batch


def test_deepspeed_leaves_parameters_on_the_host_where_the_optimizer_is_not_enough() -> None:
    def peak(changed: Plan, times: int) -> int:
        return 40 if changed.offload.parameters else 160

    plan = plan_of(global_batch=64, dp_style="deepspeed", zero=3)
    (found,) = remedies(plan, limited(peak, 80))
    assert found.change == "offload.optimizer = 1, offload.parameters = true"
    assert remedies(replace(plan, offload=found.plan.offload), limited(lambda p, t: 160, 80)) == []


def test_an_experiment_that_is_laid_out() -> None:
    laid = lay_out(experiment(tp=8, global_batch=4), 8)
    found = assess(laid, H100)
    assert found.fits
    assert found.gpu == H100.title
    assert found.capacity == capacity(H100)


def test_resnet_50_on_one_gpu() -> None:
    """256 images in fp32 are known to fill most of 24 GB, and DDP copies gradients to buckets."""
    resnet = experiment(
        Cnn("resnet", 50),
        precision="fp32",
        micro_batch=256,
        global_batch=2048,
        optimizer="momentum",
    )
    (found,) = assess(lay_out(resnet, 8), H100).stages
    assert found.buckets == found.gradients == 4 * 25_557_032
    assert 20 * GIB < found.total < 24 * GIB
