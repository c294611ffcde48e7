"""Keys that change nothing are named, or refused: every key of every table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from plans import NAMES

from mpisim.base.errors import InputError
from mpisim.experiment import Experiment, Plan, keys_of, read, with_keys
from mpisim.experiment.plan_keys import short_key
from mpisim.experiment.tables import TABLES
from mpisim.prediction.effective_keys import EFFECTIVE_KEYS
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.statements import _worth_listing
from mpisim.prediction.unused_keys import _is_effective, equivalent, other_values, unused_keys
from mpisim.results import Results
from mpisim.simulate import simulate

EMPTY = Plan(1)
WORDS = '[model]\nfamily = "{}"\nlayers = 4\nhidden = 256\nheads = 4\nvocab = 1000\nseq_len = 128\n'
GPT, LLAMA = WORDS.format("gpt"), WORDS.format("llama") + "kv_heads = 2\n"
MOE = WORDS.format("moe") + "experts = 8\n"
HERE = '[cluster]\npreset = "dgx-h100"\n'


def plan(**words: object) -> str:
    """Return the tables ``[plan]`` and ``[framework]``, by words of `plans.plan_of`."""
    given = {NAMES[word]: value for word, value in ({"global_batch": 16} | words).items()}
    lines: dict[bool, str] = {False: "[plan]\n", True: "[framework]\n"}
    for key, value in given.items():
        lines[key.startswith("framework.")] += f"{key.removeprefix('framework.')} = {value}\n"
    return lines[False] + lines[True]


CASES = {
    "dense": GPT + plan(zero=1),
    "replicas": GPT + plan(),
    "fsdp": LLAMA + plan(zero=3),
    "deepspeed": LLAMA + plan(zero=2, dp_style='"deepspeed"', recompute='"full"'),
    "pipeline": GPT + plan(tp=2, pp=2, vpp=2, schedule='"interleaved"', zero=1),
    "eager": GPT + plan(tp=2, kernels='"eager"', fused="false", dp_style='"ddp"'),
    "fp8": GPT + plan(tp=2, cp=2, overlap_tp="true", precision='"fp8"'),
    "experts": MOE + plan(ep=4),
    "bert": WORDS.format("bert") + plan(dp_style='"ddp"'),
    "resnet": '[model]\nfamily = "resnet"\ndepth = 18\n' + plan(),
    "dlrm": (
        '[model]\nfamily = "dlrm"\ntable_entries = [9000, 2000, 3000, 4000, 5000, 6000, 7000, 80]\n'
        "embedding = 16\nbottom_mlp = [64, 16]\ntop_mlp = [64, 1]\n"
        + plan(global_batch=256, micro_batch=32, precision='"fp32"', optimizer='"sgd"')
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> PreparedExperiment:
    """Return a case of each kind."""
    return prepare(read(CASES[request.param] + HERE, "e.toml"))


def settings(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    """Yield every key of model and plan, with its other values."""
    names = [f"model.{each.name}" for each in fields(experiment.model)]
    names += [key if key.startswith("framework.") else f"plan.{key}" for key in keys_of(EMPTY)]
    for name in names:
        yield name, other_values(experiment, name)


def changed(case: PreparedExperiment, name: str, value: object) -> PreparedExperiment | None:
    """Return the case with another value of a key; None where that is refused."""
    table, _, key = name.partition(".")
    experiment = case.experiment
    try:
        if table == "model":
            return prepare(replace(experiment, model=replace(experiment.model, **{key: value})))
        plan = with_keys(experiment.plan, {name.removeprefix("plan."): value})
        return prepare(replace(experiment, plan=plan))
    except InputError:
        return None


def test_no_key_of_model_or_plan_is_ignored_in_silence(case: PreparedExperiment) -> None:
    """A key counts, is refused, or is looked at by the test of what has no effect."""
    for name, values in settings(case.experiment):
        alike_with = []
        for value in values:
            found = changed(case, name, value)
            if found is None or not equivalent(case, found):
                break  # it counts, or says what must be so
            alike_with.append(found)
        else:
            for found in alike_with:
                assert not _is_effective(name, found.experiment), (name, found.experiment)


def test_defaults_that_are_told_can_have_changed_the_answer(case: PreparedExperiment) -> None:
    """Of a GPT in bf16 no report speaks of fp8; of a DLRM none of positions."""
    for name, value in case.experiment.left_to_defaults().items():
        if name.startswith(("plan.", "framework.")) and _worth_listing(name, value, case):
            found = [changed(case, name, each) for each in other_values(case.experiment, name)]
            assert any(each is None or not equivalent(case, each) for each in found), name


UNUSED = [
    ("dense", "plan.moe_imbalance=2.0", "plan.moe_imbalance: no effect"),
    ("dense", "framework.moe_capacity=true", "framework.moe_capacity: no effect"),
    ("experts", "framework.leaf_modules=false", "framework.leaf_modules: no effect"),
    ("dense", "framework.p2p_split=true", "framework.p2p_split: no effect"),
    ("dense", "plan.precision.fp8_scaling=blocks", "plan.precision.fp8_scaling: no effect"),
    ("dense", "plan.tables.sharder=naive", "plan.tables: no effect"),
    ("dense", "plan.recompute.layers=2", "plan.recompute.layers: no effect"),
    ("dense", "plan.recompute.modules=['moe_act', 'mlp']", "'moe_act' has no effect"),
    ("dense", "model.topk=4", "model.topk: no effect"),
    ("dense", "model.window_every=2", "model.window_every: no effect"),
    ("dense", "model.window=4096", "model.window: no effect"),
    ("dense", "model.patch=8", "model.patch: no effect"),
    ("fsdp", "framework.bucket=1000000", "framework.bucket: no effect"),
    ("fsdp", "plan.overlap.moe=true", "plan.overlap.moe: no effect"),
    ("experts", "plan.overlap.moe=true", "plan.overlap.moe: no effect"),
    ("experts", "framework.bias_kernels=true", "framework.bias_kernels: no effect"),
    ("resnet", "framework.attention=cudnn", "framework.attention: no effect"),
    ("resnet", "framework.kernels=eager", "framework.kernels: no effect"),
    ("dlrm", "framework.image_layout=channels-first", "framework.image_layout: no effect"),
    ("dense", "overlap.passes=7", "overlap.passes: no effect, overlap.model is 'static'"),
    ("dense", "variation.seed=7", "variation.seed: no effect, nothing is drawn"),
    ("dense", "run.allow_oom=true", "run.allow_oom: no effect, the plan fits"),
    ("dense", "network.contention=false", "network.contention: no effect"),
]


def test_sharding_over_one_replica_is_named() -> None:
    text = CASES["dense"] + HERE + "gpus = 4\n"
    said = unused_keys(prepare(read(text, "e.toml", ["plan.tp=4"])))
    assert said == ["plan.zero: 1 has no effect, with 0 the step is the same"]
    assert not unused_keys(prepare(read(text, "e.toml", ["plan.tp=2"])))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        # One node whose GPUs have NVLink; no clipping, whose norm the CPU reads over PCIe.
        (["scale.pcie_bandwidth=2", "plan.clip=false"], True),
        (["scale.pcie_bandwidth=2", "plan.clip=true"], False),
        (["scale.pcie_bandwidth=0.1", "plan.clip=false", "cluster.nodes=2"], False),
        (["scale.link_bandwidth=2"], False),
        (["scale.switch_bandwidth=2", "cluster.nodes=2"], True),
    ],
)
def test_bandwidths_that_nothing_uses_are_named(changes: list[str], named: bool) -> None:
    text = CASES["dense"] + HERE
    results = simulate(read(text, "e.toml", changes))
    plain = simulate(read(text, "e.toml", changes[1:]))
    assert results is not None
    assert plain is not None
    said = results.attributes["assumptions"]
    assert any("scale." in each and "no effect" in each for each in said) == named
    assert (results.digest == plain.digest) == named


@pytest.mark.parametrize(("name", "change", "line"), UNUSED, ids=[f"{a}-{b}" for a, b, _ in UNUSED])
def test_what_has_no_effect_is_in_the_report(name: str, change: str, line: str) -> None:
    results = simulate(read(CASES[name] + HERE, "e.toml", [change]))
    assert results is not None
    said = results.attributes["assumptions"]
    assert len([each for each in said if line in each]) == 1
    assert len([each for each in said if "no effect" in each]) == 1


USED = [
    ("fsdp", "framework.wrap_layers=2"),
    ("experts", "plan.moe_imbalance=2.0"),
    ("eager", "framework.fused_loss=false"),
    ("dense", "plan.sp=false"),
    ("dense", "plan.clip=true"),
    ("dense", "model.head_size=64"),
    ("dense", "framework.bucket=1000000"),
    ("dense", "plan.pp=1"),
    ("pipeline", "plan.overlap.p2p=true"),
    ("dense", "plan.recompute.modules=['mlp']"),
    ("resnet", "framework.broadcast_buffers=false"),
    ("dense", "plan.dp=8"),
]


@pytest.mark.parametrize(("name", "change"), USED)
def test_what_counts_or_says_what_is_so_is_not(name: str, change: str) -> None:
    assert not unused_keys(prepare(read(CASES[name] + HERE, "e.toml", [change])))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dense", "model.vocab=1", "vocab is 1: there is nothing to predict; it must be 2 or more"),
        ("resnet", "model.classes=1", "'model.classes' is 1; it must be an integer from 2 to"),
    ],
)
def test_nonsense_is_refused(name: str, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(CASES[name] + HERE, "e.toml", [change])
    assert "\n" not in str(error.value)


def test_gpus_of_nodes_that_are_not_used_are_named() -> None:
    text = CASES["dense"] + HERE + 'nodes = 2\ngpus = 8\nother_gpus = {"1" = "a100-sxm"}\n'
    said = unused_keys(prepare(read(text, "e.toml")))
    assert said == ["cluster.other_gpus.'1': no effect, nodes 0 to 0 are used"]


LARGE = (CASES["dense"] + HERE).replace("= 256", "= 4096").replace("= 128", "= 2048")
"""The GPUs, not their CPUs, set the pace."""

OTHER_TABLES = {
    "kernels": {
        "model": "roofline",
        "calibration": "none.toml",
        "gpu": "a100-sxm",
        "measurements": '["none.csv"]',
    },
    "data": {
        "images": "jpeg",
        "loader": "dali-gpu",
        "workers": 3,
        "augmentation": "colour",
        "megapixels": 1.0,
        "cores": 7,
        "clock": 3.0,
    },
    "overlap": {
        "model": "coupled",
        "calibration": "none.toml",
        "pairs": "none.csv",
        "passes": 7,
    },
    "variation": {
        "kernels": 0.1,
        "gpus": 0.1,
        "slowest": "false",
        "seed": 3,
        "speeds": '{"0" = 0.5}',
    },
    "scale": {
        "hbm_bandwidth": 2.0,
        "matrix_rate": 2.0,
        "link_bandwidth": 2.0,
        "nic_bandwidth": 2.0,
        "pcie_bandwidth": 2.0,
        "switch_bandwidth": 2.0,
        "latency": 2.0,
        "communications": 2.0,
        "host_memory_bandwidth": 2.0,
        "data_loading": 2.0,
        "launch_time": 2.0,
        "memory": 0.9,
    },
    "calibration": {"file": "ours"},
    "prices": {
        "contract": "owned",
        "gpu_hour": 1.0,
        "gpu_hours": "{h100-sxm = 1.0}",
        "kwh": 0.5,
        "pue": 1.5,
        "node": 1e5,
        "years": 2.0,
    },
    "run": {"allow_oom": "true"},
    "cluster": {
        "preset": "dgx-a100",
        "nodes": 2,
        "gpus": 4,
        "other_gpus": '{"0" = "a100-sxm"}',
        "nic_bandwidth": "800 Gb/s",
        "link_bandwidth": "100 GB/s",
        "pcie_bandwidth": "20 GB/s",
        "nics": 4,
        "gpus_per_node": 4,
        "oversubscription": 4.0,
    },
    "network": {
        "model": "alpha-beta",
        "algorithm": "ring",
        "ring_order": "ranks",
        "contention": "false",
        "changes": '{"links.node0.nic3->*.bandwidth" = "50 %"}',
        "nccl": '{NCCL_PROTO = "ll"}',
        "calibration": "none.toml",
        "first_step": "true",
    },
}
"""Another valid value of every key, a file that is not there, or what this cluster refuses."""


def test_there_is_a_value_for_every_key() -> None:
    for table, cls in TABLES.items():
        if table not in ("plan", "framework"):
            assert {each.name for each in fields(cls)} == set(OTHER_TABLES[table])
    known = {short_key(key if "framework." in key else f"plan.{key}") for key in keys_of(EMPTY)}
    assert {each for each in EFFECTIVE_KEYS if not each.startswith("model.")} <= known


@pytest.fixture(scope="module")
def plain() -> Results:
    """Return the result of a dense model."""
    results = simulate(read(LARGE, "e.toml"))
    assert results is not None
    return results


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, keys in OTHER_TABLES.items() for key in keys]
)
def test_no_key_of_other_tables_is_ignored_in_silence(plain: Results, table: str, key: str) -> None:
    change = f"{table}.{key}={OTHER_TABLES[table][key]}"
    if key in ("calibration", "measurements", "pairs", "first_step"):
        with pytest.raises(InputError, match=rf"{key}|none\."):
            simulate(read(LARGE, "e.toml", [change]))
        return
    results = simulate(read(LARGE, "e.toml", [change]))
    assert results is not None
    named = any(
        f"{table}.{key}" in each and "no effect" in each
        for each in results.attributes["assumptions"]
    )
    if table == "prices":
        dollars, before = (
            {name: value for name, value in each.attributes.items() if name[:3] in ("usd", "pow")}
            for each in (results, plain)
        )
        assert named or dollars != before
        return
    assert named or results.digest != plain.digest or (table, key) == ("overlap", "model")


def test_one_stage_has_nothing_to_drain() -> None:
    """No division of the batch is refused there, and the key is said to be without effect."""
    alone = prepare(read(GPT + plan(global_batch=16) + HERE, "e.toml", ["plan.pipeline.run=5"]))
    assert "plan.pipeline.run: no effect, without it the step is the same" in unused_keys(alone)
