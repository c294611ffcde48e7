"""Any plan that is accepted runs: messages match, nothing deadlocks, no work is lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from plans import changed, plan_of
from toys import Free, Times

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.experiment import (
    FAMILIES,
    ClusterChoice,
    Cnn,
    Dlrm,
    Experiment,
    Model,
    Transformer,
    read,
)
from mpisim.prediction.prepared import prepare
from mpisim.program import check_matching
from mpisim.schedules import SCHEDULES
from mpisim.workloads import Workload, lay_out, training_step

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SIZES: dict[str, Any] = {"layers": 4, "hidden": 64, "heads": 8, "seq_len": 64, "vocab": 1000}


def transformer(family: str, **keys: Any) -> Transformer:
    common = FAMILIES[family][1]
    return Transformer(**{"family": family, **common, **SIZES, **keys})


MODELS: dict[str, Model] = {
    "gpt": transformer("gpt"),
    "llama": transformer("llama", kv_heads=4),
    "moe": transformer(
        "moe", experts=8, topk=2, moe_ffn_hidden=32, shared_experts=1, dense_layers=1
    ),
    "mla": transformer(
        "moe",
        experts=4,
        topk=1,
        moe_ffn_hidden=32,
        attention="mla",
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_size=8,
        qk_rope_head_size=8,
        v_head_size=8,
        mtp_layers=1,
    ),
    "bert": transformer("bert"),
    "t5": transformer("t5", decoder_layers=4, decoder_seq_len=32),
    "vit": transformer("vit", image=32, patch=4, seq_len=65, vocab=0),
    "resnet": Cnn("resnet", 18, image=32),
    "vgg": Cnn("vgg", 11, image=32),
    "densenet": Cnn("densenet", 121, image=32),
    "dlrm": Dlrm("dlrm", (1000, 2000, 3000, 4000), 16, (32, 16), (32, 1)),
}

few = st.sampled_from([1, 1, 1, 2, 4])
orders = st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"])
SHARING = [
    (None, 0, {}),
    ("megatron", 0, {"bucket": 1000}),
    ("megatron", 1, {}),
    ("ddp", 0, {}),
    ("megatron", 1, {"overlap_dp": False}),
    ("ddp", 1, {"overlap_dp": False}),
    ("deepspeed", 0, {}),
    ("deepspeed", 1, {"bucket": 1000}),
    ("deepspeed", 2, {}),
    ("deepspeed", 3, {}),
    ("deepspeed", 3, {"overlap_dp": False}),
    ("fsdp", 2, {}),
    ("fsdp", 3, {"prefetch": 0}),
    ("fsdp", 3, {"prefetch": 2, "wrap_layers": 2}),
    ("fsdp", 2, {"fsdp_pipeline": "pytorch"}),
    ("fsdp", 2, {"prefetch": 2, "flat_shards": True}),
    ("fsdp", 2, {"fully_shard": True}),
    ("fsdp", 3, {"fully_shard": True, "end_units": True, "loss_chunks": 2}),
    ("fsdp", 2, {"overlap_dp": False}),
    ("fsdp", 3, {"zero_group": 2}),
    ("fsdp", 3, {"reshard_after_forward": False}),
    ("fsdp", 3, {"end_units": True}),
    ("fsdp", 2, {"end_units": True}),
    ("fsdp", 3, {"end_units": True, "loss_chunks": 4}),
]
"""Ways to share gradients, states and parameters, with keys that go with them."""

ANY: dict[str, Any] = {
    "pp": few,
    "dp": st.sampled_from([1, 2, 4]),
    "order": orders,
    "schedule": st.sampled_from(sorted(SCHEDULES)),
    "micro_batch": st.sampled_from([1, 2]),
    "recompute": st.sampled_from(["none", "full"]),
    "precision": st.sampled_from(["fp32", "tf32", "fp16"]),
    "optimizer": st.sampled_from(["sgd", "momentum"]),
    "sharing": st.sampled_from(SHARING),
    "overlap_p2p": st.booleans(),
    "fused": st.booleans(),
    "cuda_graphs": st.booleans(),
}
DENSE = ANY | {
    "tp": few,
    "cp": few,
    "cp_style": st.sampled_from(["ring", "all-gather"]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "kernels": st.sampled_from(["flash", "flash", "eager"]),
    "sp": st.sampled_from([None, False]),
    "precision": st.sampled_from(["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]),
    "optimizer": st.sampled_from(["adam", "sgd", "momentum", "adagrad"]),
    "overlap_tp": st.sampled_from([False, False, True]),
    "p2p_split": st.booleans(),
    "unaligned": st.sampled_from(["tensor-cores", "cores"]),
    "overlap_dgrad": st.booleans(),
    "fused_wgrad": st.sampled_from([None, False]),
    "persistent_norms": st.booleans(),
    "residual_norms": st.booleans(),
    "packed_attention": st.booleans(),
    "loss_gradient": st.sampled_from(["backward", "forward"]),
    "launch_blocking": st.booleans(),
    "scores_softmax": st.sampled_from(["whole", "causal", "operations"]),
}
MIXED = DENSE | {
    "ep": few,
    "etp": few,
    "overlap_moe": st.booleans(),
    "overlap_ep": st.booleans(),
    "moe_dispatcher": st.sampled_from(["all-to-all", "flex", "hybrid-ep"]),
    "moe_router": st.sampled_from(["pytorch", "transformer-engine"]),
    "moe_router_fusion": st.booleans(),
    "moe_multihot_fusion": st.booleans(),
    "moe_balance": st.sampled_from(["free", "round-robin"]),
}
CLICKS: dict[str, Any] = {
    "dp": st.sampled_from([1, 2, 4]),
    "schedule": st.just("1f1b"),
    "micro_batch": st.sampled_from([4, 8]),
    "precision": st.sampled_from(["fp32", "tf32"]),
    "optimizer": st.sampled_from(["sgd", "adagrad"]),
    "cuda_graphs": st.booleans(),
    "overlap_dp": st.booleans(),
}


def plans(name: str) -> st.SearchStrategy[dict[str, Any]]:
    model = MODELS[name]
    if isinstance(model, Transformer):
        return st.fixed_dictionaries(MIXED if model.experts else DENSE)
    return st.fixed_dictionaries(ANY if isinstance(model, Cnn) else CLICKS)


def workload(name: str, keys: dict[str, Any], micro_batches: int) -> Workload:
    """Generate, or skip what is refused."""
    keys = dict(keys)
    style, zero, more = keys.pop("sharing", (None, 0, {}))
    keys |= {"dp_style": style, "zero": zero, **more}
    if SCHEDULES[keys["schedule"]].interleaved or SCHEDULES[keys["schedule"]].v_shaped:
        keys["vpp"] = 2
    gpus = math.prod(keys.get(axis, 1) for axis in ("tp", "pp", "cp", "dp"))
    keys["global_batch"] = keys["dp"] * keys["micro_batch"] * micro_batches
    try:
        experiment = Experiment(MODELS[name], plan_of(**keys), ClusterChoice("dgx-h100", 32))
        return training_step(lay_out(experiment, gpus), Times())
    except InputError as refused:
        event(f"refused: {str(refused)[:40]}")
        assume(False)
        raise


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_accepted_plan_runs(name: str, data: st.DataObject) -> None:
    micro_batches = 1 if name == "dlrm" else data.draw(st.sampled_from([2, 4, 8]))
    done = workload(name, data.draw(plans(name)), micro_batches)
    check_matching(done.program)
    run = engine.simulate(done.program, network=Free())
    assert run.step_time > 0
    # Vocabularies are padded, chunks of a causal mask cut at blocks: never less than the model's.
    assert done.executed_flops >= 0.97 * done.flops


def test_plans_of_each_kind_are_accepted() -> None:
    # What the property above would not notice: that everything is refused.
    for name, model in MODELS.items():
        plan = plan_of(global_batch=8, micro_batch=4, dp=2, optimizer="sgd", precision="fp32")
        if isinstance(model, Transformer):
            plan = changed(plan, tp=2 if name != "vit" else 1, pp=2 if name != "t5" else 1)
        training_step(lay_out(Experiment(model, plan, ClusterChoice("dgx-h100")), 8), Times())


def test_a_plan_of_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(InputError, match=r"schedule is 'gpip' \(did you mean 'gpipe'\?\); allowed"):
        plan_of(global_batch=8, schedule="gpip")  # type: ignore[arg-type]


EVERYTHING = """
[model]
family = "moe"
layers = 4
hidden = 64
heads = 8
seq_len = 64
vocab = 1000
experts = 8
moe_ffn_hidden = 32
shared_experts = 1
[plan]
tp = 2
pp = 2
cp = 2
ep = 2
dp = 2
zero = 1
vpp = 2
recompute = "selective"
global_batch = 8

[plan.pipeline]
schedule = "interleaved"
[cluster]
preset = "dgx-h100"
nodes = 2
"""


@pytest.mark.mpi
def test_one_digest_with_everything_at_once(comm: Intracomm) -> None:
    case = prepare(read(EVERYTHING, "everything"))
    shared = engine.simulate(case.program, comm, network=case.network)
    alone = engine.simulate(case.program, network=case.network)
    assert shared.digest == alone.digest


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"precision_frozen": "nf4"}, "frozen is 'nf4'; only transformers have adapters"),
        ({"precision_autocast": True}, "autocast is true; the key is for transformers"),
    ],
)
def test_keys_of_precision_that_only_transformers_have(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"plan\.precision\.{message}"):
        plan_of(precision="bf16", **keys).resolved(transformer=False)
