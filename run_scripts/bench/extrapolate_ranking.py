"""Data, tensor and pipeline parallelism on 4 A100 from traces of one GPU, at one total batch.

    python run_scripts/bench/extrapolate_ranking.py

TrioSim's experiment (ISCA 2025, figure 12): 128 samples in all, two micro-batches of 64 in the
pipeline (GPipe). It reports that data parallelism is fastest everywhere and tensor parallelism good
on transformers alone, no times. Traces here are generated steps at 128 samples, written as Kineto
files (extrapolate_closed_loop.py); those of transformers have sequences of 128 tokens.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from extrapolate_closed_loop import Model, stated, traced

from mpisim.extrapolate import Target, extrapolate

CNNS = ("vgg-11", "vgg-13", "vgg-16", "vgg-19", "resnet-18", "resnet-34", "resnet-50", "resnet-101",
        "resnet-152", "densenet-121", "densenet-161", "densenet-169", "densenet-201")  # fmt: skip
TRANSFORMERS = ("gpt2", "bert-base", "t5-small", "llama3.2-1b")
BATCH = 128

PLANS = {
    "data": {"dp": 4},
    "tensor": {"tp": 4},
    "pipeline": {"pp": 4, "pipeline.schedule": "gpipe", "micro_batch": BATCH // 2},
}


def main() -> None:
    """Print a row for each model."""
    print(f"{'model':14} {'one GPU':>10} " + " ".join(f"{name:>10}" for name in PLANS) + "  order")
    for name in (*CNNS, *TRANSFORMERS):
        words = name in TRANSFORMERS
        keys = f'preset = "{name}"' + ("\nseq_len = 128" if words else "")
        with tempfile.TemporaryDirectory() as folder:
            step = traced(Model(keys, BATCH, "bf16" if words else "fp32"), Path(folder) / "trace")
        times = {
            plan: stated(extrapolate(step, Target("dgx-a100", chosen, BATCH)))[0] * 1e3
            for plan, chosen in PLANS.items()
        }
        order = " < ".join(sorted(times, key=lambda plan: times[plan]))
        shown = " ".join(f"{time:7.1f} ms" for time in times.values())
        print(f"{name:14} {step.measured / 1e9:7.1f} ms {shown}  {order}")


if __name__ == "__main__":
    main()
