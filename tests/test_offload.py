"""Offload to the host: what is copied when, and what the CPU does."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from offloaded import FSDP, GPT_13B, gpt_13b
from plans import ALONE, GPT_STEP, plan_of
from sharing import layer, stepped, told

from mpisim import engine, simulate
from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import Experiment, read
from mpisim.job.checkpoint import checkpoint_of
from mpisim.memory.host import host_memory
from mpisim.memory.states import model_states, parameter_counts
from mpisim.prediction.execution import execute
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared import prepare
from mpisim.prediction.quantities import values_now, why_not
from mpisim.topo import find_cluster
from mpisim.workloads import Workload, lay_out
from mpisim.workloads.data_parallel.fsdp import ADD_ON_CPU
from mpisim.workloads.host import host_of
from mpisim.workloads.offloaded_optimizer import CPU_OPTIMIZER, cpu_bytes

# --- rows -----------------------------------------------------------------------------------------


def rows_of(workload: Workload, *words: str) -> list[str]:
    return [row for row in told(workload.program) if any(word in row for word in words)]


OFFLOADED = ("host", "CPU", "adam", "convert weights", "clip")


def test_deepspeed_copies_in_the_backward_and_updates_on_the_cpu() -> None:
    net = (layer("a", 40), layer("b", 40))
    keys = {"dp_style": "deepspeed", "zero": 2, "offload_optimizer": 1.0}
    assert rows_of(stepped(net, 2, **keys), *OFFLOADED) == [
        "gradients to host < gradient all-reduce",
        "wait for gradients < gradient all-reduce, gradients to host",
        "optimizer on CPU",
        "wait for optimizer on CPU < optimizer on CPU",
        "weights from host",
        "parameter all-gather [dp 160] < weights from host",
    ]


def test_gradients_of_micro_batches_are_added_up_on_the_gpu() -> None:
    keys = {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 1.0, "global_batch": 4}
    found = rows_of(stepped((layer("a", 10**6),), 2, **keys), "gradients")
    each = ["gradients from host < gradient reduce-scatter", "add gradients", "gradients to host"]
    waits = "wait for gradients < gradient reduce-scatter, "
    added = "gradients from host, add gradients, gradients to host"
    assert found == [
        *each,
        waits + added,
        *each,
        "gradients to host",
        f"{waits}{added}, gradients to host",
        "convert gradients",
    ]


def test_stage_3_copies_gradients_there_and_back() -> None:
    keys = {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 1.0, "global_batch": 2}
    found = rows_of(stepped((layer("a", 10**6),), 2, **keys), "host")
    assert [row.partition(" <")[0] for row in found[:3]] == [
        "gradients to host",
        "gradients from host",
        "gradients to host",
    ]


def test_parameters_come_before_they_are_gathered() -> None:
    keys = {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 1.0}
    net = (layer("a", 10**6),)
    found = rows_of(stepped(net, 2, offload_parameters=True, **keys), "parameter", "weights")
    come = ["parameters from host", "wait for parameters < parameters from host"]
    gathered = "parameter all-gather [dp 2000000] < parameters from host"
    assert found[:3] == [*come, gathered]
    assert not any("weights" in row for row in found)
    plain = rows_of(stepped(net, 2, **keys), "parameter", "weights")
    assert plain == ["parameter all-gather [dp 2000000]", found[3], "weights from host"]


def test_parameters_come_to_one_gpu() -> None:
    keys = {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 1.0, "global_batch": 1}
    program = stepped((layer("a", 10**6),), 1, offload_parameters=True, **keys).program
    table = program.table_of(0)
    names = [program.names[name] for name in table.name]
    first = names.index("a forward")
    awaited = table.wait_row[table.wait_index[first] : table.wait_index[first + 1]].tolist()
    assert "parameters from host" in [names[row] for row in awaited]


def test_fsdp_works_on_the_host() -> None:
    found = rows_of(stepped((layer("a", 40),), 2, **FSDP), *OFFLOADED, "reduce", "all-gather [")
    assert found == [
        "parameters from host",
        "parameter all-gather [dp 80] < parameters from host",
        "parameters from host",
        "parameter all-gather [dp 80] < parameters from host",
        "gradient reduce-scatter [dp 80] < copy gradients in",
        "gradients to host < gradient reduce-scatter",
        "wait for gradients < gradient reduce-scatter, gradients to host",
        "optimizer on CPU < gradient reduce-scatter",
        "wait for optimizer on CPU < optimizer on CPU",
    ]


def test_the_cpu_adds_gradients_of_micro_batches() -> None:
    found = rows_of(stepped((layer("a", 40),), 2, global_batch=4, **FSDP), "added", "add ")
    assert found == [
        "add gradients on CPU",
        "wait for gradients added on CPU < add gradients on CPU",
    ]


def test_all_of_fsdp_is_on_the_host() -> None:
    plan = plan_of(global_batch=64, **FSDP)
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": 4, "dp": 4}
    assert sum(vars(model_states(counts, plan, sizes)).values()) == 0
    found = host_memory(counts, plan, sizes, accumulates=True)
    assert (found.parameters, found.gradients, found.optimizer) == (6400, 6400, 12800)


def test_a_loop_of_operations_on_the_cpu_as_zero_offload_measured_it() -> None:
    # Table 4 of the paper: PyTorch's Adam on the CPU.
    host = host_of(gpt_13b(1.0), 1)
    plan = plan_of(global_batch=64, fused=False, **FSDP)
    for billions, seconds in ((1, 1.39), (2, 2.75), (4, 5.71), (8, 11.93), (10, 14.76)):
        found = host.duration(cpu_bytes(2, 4, scales=False) * billions * 10**9, plan) / 1e12
        assert found == pytest.approx(seconds, rel=0.1)
    fused = plan_of(global_batch=64, fused=True, **FSDP)
    assert host.duration(10**9, fused) == host.duration(10**9)


def test_one_gpu_offloads_too() -> None:
    keys = {"dp_style": "deepspeed", "zero": 2, "offload_optimizer": 1.0, "global_batch": 1}
    assert "gradients to host" in rows_of(stepped((layer("a", 40),), 1, **keys), "host")


def test_megatron_copies_after_the_backward_and_updates_its_part_meanwhile() -> None:
    keys = {"dp_style": "megatron", "zero": 1, "offload_optimizer": 0.5}
    assert rows_of(stepped((layer("a", 80),), 2, **keys), *OFFLOADED) == [
        "clip gradients",
        "gradients to host",
        "adam",
        "optimizer on CPU",
        "wait for optimizer on CPU < optimizer on CPU",
        "weights from host",
        "convert weights",
    ]


def test_parts_on_the_cpu_overlap_with_copies_of_others() -> None:
    keys = {"dp_style": "megatron", "zero": 1, "offload_optimizer": 1.0, "offload_overlap": True}
    net = tuple(layer(name, 80) for name in "abcdef")
    found = rows_of(stepped(net, 2, **keys), "host", "CPU")
    step = ["optimizer on CPU", "wait for optimizer on CPU < optimizer on CPU", "weights from host"]
    assert found == ["gradients to host"] * 3 + step * 3


def test_what_is_not_offloaded_changes_nothing() -> None:
    net = (layer("a", 40),)
    plain = stepped(net, 2, dp_style="deepspeed", zero=2)
    assert not rows_of(plain, "host", "CPU")
    assert plain.program.tables[0].duration.sum() > 0


# --- time -----------------------------------------------------------------------------------------


def test_bytes_that_the_cpu_moves() -> None:
    assert cpu_bytes(2, 4, scales=False) == 4 * (1 + 2 * 3)
    assert cpu_bytes(2, 2, scales=False) == 28 + 4 + 2
    assert cpu_bytes(2, 2, scales=True) == 28 + 4 + 2 + 8
    assert cpu_bytes(0, 4, scales=False) == 4 * 3


def test_cpu_adam_as_zero_offload_measured_it() -> None:
    # Table 4 of the paper, on a DGX-2: 0.22 to 2.57 s for 1 to 10 billion parameters.
    host = host_of(gpt_13b(1.0), 1)
    for billions, seconds in ((1, 0.22), (2, 0.51), (4, 1.03), (8, 2.41), (10, 2.57)):
        found = host.duration(cpu_bytes(2, 4, scales=False) * billions * 10**9) / 1e12
        assert found == pytest.approx(seconds, rel=0.2)


def rows(experiment: Experiment, name: str) -> list[int]:
    program = prepare(experiment).program
    table = program.table_of(0)
    return [
        int(duration)
        for row, duration in zip(table.name, table.duration, strict=True)
        if program.names[row] == name
    ]


@pytest.mark.parametrize(
    "plan",
    [
        {"dp_style": "megatron", "zero": 1, "offload_optimizer": 0.5},
        {"dp_style": "megatron", "zero": 1, "offload_optimizer": 1.0, "offload_overlap": True},
        {"dp_style": "megatron", "zero": 1, "offload_activations": 3, "tp": 2},
        {"dp_style": "deepspeed", "zero": 1, "offload_optimizer": 1.0},
        {"dp_style": "deepspeed", "zero": 2, "offload_optimizer": 1.0},
        {"dp_style": "fsdp", "zero": 3, "recompute": "full", "offload_activations": 3},
        {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 0.5},
        {"dp_style": "deepspeed", "zero": 3, "offload_optimizer": 1.0, "offload_parameters": True},
        {"dp_style": "fsdp", "zero": 2, "offload_optimizer": 1.0, "offload_parameters": True},
        {"dp_style": "fsdp", "zero": 3, "offload_optimizer": 1.0, "offload_parameters": True},
    ],
)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_transformer_takes_longer_in_less_memory(plan: dict[str, Any], overlap: bool) -> None:
    keys = {"global_batch": 16, "micro_batch": 1, "overlap_dp": overlap, **plan}
    text = GPT_STEP.format(model="", plan="[plan]\nglobal_batch = 16")
    experiment = read(text, "mine.toml")
    prepared = prepare(replace(experiment, plan=plan_of(**keys)))
    kept = {key: value for key, value in keys.items() if not key.startswith("offload")}
    plain = prepare(replace(experiment, plan=plan_of(**kept)))
    assert prepared.memory.peak < plain.memory.peak
    assert prepared.memory.host_peak > 0 == plain.memory.host_peak
    times = [
        engine.simulate(each.program, network=each.network).step_time for each in (plain, prepared)
    ]
    assert times[0] < times[1]


@pytest.mark.parametrize(
    "plan",
    [
        {"dp_style": "megatron", "zero": 1},
        {"dp_style": "deepspeed", "zero": 2},
        {"dp_style": "deepspeed", "zero": 3, "offload_parameters": True},
        {"dp_style": "fsdp", "zero": 3, "offload_parameters": True},
    ],
)
def test_checkpoints_have_what_is_offloaded(plan: dict[str, Any]) -> None:
    experiment = read(GPT_STEP.format(model="", plan="[plan]\nglobal_batch = 16"), "mine.toml")
    kept, moved = (
        checkpoint_of(lay_out(replace(experiment, plan=plan_of(global_batch=16, **keys)), 4))
        for keys in (
            {key: value for key, value in plan.items() if not key.startswith("offload")},
            {"offload_optimizer": 1.0, **plan},
        )
    )
    assert kept == moved
    assert moved.load >= moved.gpu > 0


def test_ranks_of_a_node_share_memory_and_links() -> None:
    one = gpt_13b(1.0, cluster="dgx-a100")
    eight = gpt_13b(1.0, gpus=8, cluster="dgx-a100")
    assert rows(eight, CPU_OPTIMIZER) == pytest.approx(rows(one, CPU_OPTIMIZER), rel=1e-6)
    host = host_of(eight, 8)
    assert (host.ranks, host.sharers, host.known) == (8, 2, True)
    # An eighth of the weights by half of a link.
    (alone,), (shared,) = rows(one, "weights from host"), rows(eight, "weights from host")
    assert shared / alone == pytest.approx(2 / 8, rel=0.01)


def test_a_grace_has_a_link_of_its_own_to_each_gpu() -> None:
    """The switches of GB300's trays lead to their NICs, NVLink-C2C to the CPU."""
    node = find_cluster("gb300-nvl72").node
    assert node is not None
    assert node.switches(72) > 0
    assert host_of(gpt_13b(1.0, gpus=8, cluster="gb300-nvl72"), 8).sharers == 1


@pytest.mark.parametrize(
    ("cluster", "gpus", "sharers"),
    [
        ("dgx-a100", 8, 2),
        ("dgx-h100", 8, 1),
        ("p5", 8, 1),
        ("frontier", 8, 1),
        ("dgx-2", 16, 2),
        ("summit", 6, 1),
    ],
)
def test_who_shares_a_link_to_the_host(cluster: str, gpus: int, sharers: int) -> None:
    """As ``nvidia-smi topo -m`` and user guides show it; sources in the clusters' files."""
    node = find_cluster(cluster).node
    assert node is not None
    assert node.host_sharers(gpus) == sharers


def test_what_the_cpu_does_has_the_error_bar_of_its_memory() -> None:
    keys = {"global_batch": 16, "micro_batch": 1, **FSDP}
    experiment = read(GPT_STEP.format(model="", plan="[plan]\nglobal_batch = 16"), "mine.toml")
    prepared = prepare(replace(experiment, plan=plan_of(**keys)))
    run = execute(prepared, MPI.COMM_SELF, critical_path=True)[0]
    path, shares = run.critical_path, PathShares(prepared, run)
    assert path is not None
    found, table = set(), prepared.program.tables[0]
    for piece, row in enumerate(path.row.tolist()):
        if set(shares(piece)) == set(prepared.host.numbers(prepared.experiment.plan)):
            found.add(prepared.program.names[table.name[row]])
    assert found == {CPU_OPTIMIZER, ADD_ON_CPU}


@pytest.mark.parametrize("name", ["host_memory_bandwidth", "pcie_bandwidth"])
def test_the_step_answers_to_the_host_as_the_path_says(name: str) -> None:
    """One GPU, whose CPU and copies nothing hides: the first order is the simulation's answer."""
    text = GPT_13B.format(batch=1, micro=1, share=1, gpus=1, cluster="dgx-2")
    text = text.replace("layers = 40", "layers = 2")
    found = simulate(read(text, "a.toml"))
    assert found is not None
    assert found.sensitivities is not None
    of = dict(zip(found.sensitivities.keys, found.sensitivities.elasticity.tolist(), strict=True))
    assert of[f"scale.{name}"] < -0.05
    faster = simulate(read(text, "a.toml", [f"scale.{name}=1.25"]))
    assert faster is not None
    change = faster.step_time / found.step_time - 1
    assert change == pytest.approx(of[f"scale.{name}"] * (1 - 1 / 1.25), rel=0.05)


def test_what_is_not_offloaded_answers_to_no_host() -> None:
    prepared = prepare(gpt_13b(0.0))
    assert "host_memory_bandwidth" not in values_now(prepared)
    assert "no optimizer is offloaded" in why_not("host_memory_bandwidth", prepared)


def test_a_cluster_that_does_not_say_is_guessed() -> None:
    host = host_of(gpt_13b(1.0, cluster="h100-roce"), 8)
    assert (host.known, host.memory) == (False, None)
    assert host.bandwidth.error >= 0.15
    assert "guess" in host.lines(gpt_13b(1.0).plan)[0]
    assert not host.lines(gpt_13b(0.0).plan)


def test_a_search_leaves_out_what_the_host_has_no_room_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run refuses it, too; both say whose memory it is."""
    cluster = resources.files("mpisim.data").joinpath("clusters/dgx-a100.toml").read_text()
    small = re.sub(r"(?m)^memory = \{ value = \d+", "memory = { value = 64", cluster)
    (tmp_path / "small.toml").write_text(small)
    text = GPT_13B.format(batch=8, micro=1, share=1, cluster=tmp_path / "small.toml", gpus=8)
    (tmp_path / "gpt.toml").write_text(text.partition("[run]")[0])
    file = str(tmp_path / "gpt.toml")
    assert main(["run", file]) == 2
    assert "offloaded, of 59.6 GiB, too little" in capsys.readouterr().err
    main(["search", file, "--vary", "plan.offload.optimizer=1"])
    said = capsys.readouterr().out
    assert "1  too large for memory" in said
    assert "or of its host, which the nearest lacks" in " ".join(said.split())


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dp_style": "fsdp", "zero": 3}, "set offload.parameters = true"),
        ({"dp_style": "ddp"}, "dp_style = 'ddp'.*'deepspeed', 'fsdp', 'megatron'"),
        ({"dp_style": "megatron"}, "zero is 0.*set zero = 1"),
        ({"dp_style": "deepspeed"}, "zero is 0"),
        ({"dp_style": "deepspeed", "zero": 2, "optimizer": "lamb"}, "allowed: adam, adagrad"),
        ({"dp_style": "deepspeed", "zero": 2, "offload_optimizer": 0.5}, "ratio.*allowed: 0, 1"),
        ({"dp_style": "deepspeed", "zero": 2, "offload_overlap": True}, "offload.overlap is true"),
        ({"dp_style": "megatron", "zero": 1, "fp8_params": True}, "precision.fp8_params"),
        ({"dp_style": "deepspeed", "zero": 2, "offload_parameters": True}, "'deepspeed' with"),
        ({"dp_style": "fsdp", "zero": 2, "pp": 2, "offload_parameters": True}, "pp = 2.*pp = 1"),
        ({"offload_optimizer": 0, "offload_parameters": True}, "set optimizer = 1"),
    ],
)
def test_what_no_framework_offloads(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_of(**{"global_batch": 8, "offload_optimizer": 1.0, **keys})


def test_errors_tell_the_two_optimizers_apart() -> None:
    """What a framework sets is `plan.optimizer`, not the one of the table that an error is of."""
    text = GPT_13B.format(batch=8, micro=1, share=0, cluster="dgx-a100", gpus=8)
    with pytest.raises(InputError, match=r"set optimizer = 1$"):
        read(text, "a.toml", ["plan.offload.parameters=true"])
    with pytest.raises(InputError, match=r"'optimiser'.*\(did you mean 'optimizer'.*overlap$"):
        read(text, "a.toml", ["plan.offload.optimiser=1"])
    fsdp = ["plan.offload.optimizer=1", "framework.name=fsdp", "plan.zero=3"]
    with pytest.raises(InputError, match=r"; framework.dp_style is what framework.name = 'fsdp'"):
        read(text, "a.toml", fsdp)
