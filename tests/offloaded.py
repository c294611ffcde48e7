"""Experiments with offload to the host for tests."""

from __future__ import annotations

from plans import ALONE, changed, plan_of
from sharing import layer

from mpisim.experiment import Experiment, read
from mpisim.memory.host import host_memory
from mpisim.memory.states import model_states, parameter_counts

__all__ = ["FSDP", "GPT_13B", "gpt_13b", "states"]

GPT_13B = """
[model]
family = "gpt"
layers = 40
hidden = 5120
heads = 40
seq_len = 1024
vocab = 50257
[plan]
global_batch = {batch}
micro_batch = {micro}
zero = 2
recompute = "full"
precision = "fp16"
[plan.offload]
optimizer = {share}
[framework]
name = "deepspeed"
[cluster]
preset = "{cluster}"
nodes = 1
gpus_per_node = {gpus}
[run]
allow_oom = true
"""

FSDP = {"dp_style": "fsdp", "zero": 3, "offload_optimizer": 1.0, "offload_parameters": True}


def gpt_13b(share: float, gpus: int = 1, micro: int = 1, cluster: str = "dgx-2") -> Experiment:
    """The 13 billion parameters that ZeRO-Offload's abstract speaks of."""
    text = GPT_13B.format(share=share, batch=gpus * micro, micro=micro, gpus=gpus, cluster=cluster)
    return read(text, "mine.toml")


def states(zero: int, n: int, **keys: object) -> tuple[float, float]:
    """Bytes a parameter of the model: on one GPU, and on the host of `n` GPUs."""
    plan = plan_of(global_batch=64, dp_style="deepspeed", zero=zero, offload_optimizer=1.0, **keys)
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": n, "dp": n}
    on_gpu = model_states(counts, changed(plan), sizes)
    on_host = host_memory(counts, plan, sizes, accumulates=False)
    states = on_host.gradients + on_host.optimizer
    return sum(vars(on_gpu).values()) / 6400, n * states / 6400
