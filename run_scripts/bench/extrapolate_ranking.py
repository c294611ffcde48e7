"""Data, tensor and pipeline parallelism on 4 A100 from traces of one GPU, at one total batch.

    python run_scripts/bench/extrapolate_ranking.py
    python run_scripts/bench/extrapolate_ranking.py densenet-169 gpt2

TrioSim's experiment (ISCA 2025, figure 12): 128 samples in all, two micro-batches of 64 in the
pipeline (GPipe). It reports that data parallelism is fastest everywhere and tensor parallelism good
on transformers alone, no times. Pipelines of CNNs ran in ``torch.distributed.pipeline.sync.Pipe``,
whose stages are threads of one process, those of transformers in processes. `Pipe` computes the
forward pass of all micro-batches but the last again (its default, ``checkpoint="except_last"``);
TrioSim does not say whether it was changed, so the last column has pipelines with ``"never"``.
Traces here are generated steps at 128 samples, with Adam and convolutions in tf32 as in TrioSim's
tracer and trace (github:sarchlab/triosim, tracer/), written as Kineto files
(extrapolate_closed_loop.py); those of transformers have sequences of 128 tokens.

Where a pipeline with ``"never"`` is faster than data parallelism, a second line says how much
shorter launches of the CPU turn that order, in standard deviations of what is known of them
(``host_gap`` in data/gpu_families.toml).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from extrapolate_closed_loop import A100, Model, stated, traced

from mpisim.base.text import percentage
from mpisim.extrapolate import Target, extrapolate
from mpisim.kernels import find_gpu

CNNS = ("vgg-11", "vgg-13", "vgg-16", "vgg-19", "resnet-18", "resnet-34", "resnet-50", "resnet-101",
        "resnet-152", "densenet-121", "densenet-161", "densenet-169", "densenet-201")  # fmt: skip
TRANSFORMERS = ("gpt2", "bert-base", "t5-small", "llama3.2-1b")
BATCH = 128
NEVER = "never"
LEAST, STEP = 0.4, 0.05
"""Of the CPU's launch times: down to where, and in which steps, shorter ones are tried."""

PLANS = {
    "data": {"dp": 4},
    "tensor": {"tp": 4},
    "pipeline": {"pp": 4, "pipeline.schedule": "gpipe", "micro_batch": BATCH // 2},
}


def times(name: str, launches: float = 1.0) -> tuple[float, dict[str, float]]:
    """Model, launch times of the CPU over the usual → its step on one GPU, and by plan, in ms."""
    words = name in TRANSFORMERS
    keys = f'preset = "{name}"' + ("\nseq_len = 128" if words else "")
    model = Model(keys, BATCH, "bf16" if words else "fp32")
    with tempfile.TemporaryDirectory() as folder:
        changed = f"[scale]\nlaunch_time = {launches}"
        step = traced(model, Path(folder) / "trace", changed=changed)
    found = {}
    for plan, chosen in PLANS.items():
        if plan != "pipeline" or words:
            found[plan] = extrapolate(step, Target(A100[0], chosen, BATCH))
            continue
        again = Target(A100[0], {**chosen, "recompute": "full"}, BATCH, threads=True)
        found[plan] = extrapolate(step, again)
        found[NEVER] = extrapolate(step, Target(A100[0], chosen, BATCH, threads=True))
    return step.measured / 1e9, {plan: stated(each)[0] * 1e3 for plan, each in found.items()}


def line(found: dict[str, float]) -> str:
    """Steps by plan, ms → a line for people."""
    return f"{' '.join(f'{time:7.1f} ms' for time in found.values()):43}"


def main(names: list[str]) -> None:
    """Print a row for each model."""
    error = find_gpu(A100[1]).host_gap.error
    columns = " ".join(f"{name:>10}" for name in (*PLANS, NEVER))
    print(f"{'model':14} {'one GPU':>10} {columns}  order")
    for name in names or (*CNNS, *TRANSFORMERS):
        one, found = times(name)
        order = " < ".join(sorted(PLANS, key=lambda plan: found[plan]))
        print(f"{name:14} {one:7.1f} ms {line(found)}  {order}", flush=True)
        launches = 1.0
        while found.get(NEVER, found["data"]) < found["data"] and launches > LEAST:
            launches = round(launches - STEP, 2)
            found = times(name, launches)[1]
        if launches < 1:
            print(
                f"{'':14} {'':10} {line(found)}  with launches {percentage(1 - launches)} shorter, "
                f"{(1 - launches) / error:.2f} of their error bar (± {percentage(error)})"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
