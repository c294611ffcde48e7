"""A mixed job, extrapolated from a trace of each of its GPUs, beside the generated program.

    python run_scripts/bench/extrapolate_mixed.py            # all models
    python run_scripts/bench/extrapolate_mixed.py gpt2

The generated one-GPU steps on H100 and on A100 are written as traces and read again. The job has
two nodes, the first of H100, the second of A100. Beside the step with both traces stands that with
the trace of the H100 alone, whose times the kernel models carry over.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from extrapolate_closed_loop import A100, H100, MODELS, Model, generated, traced, volumes

from mpisim import engine
from mpisim.base.text import percentage
from mpisim.extrapolate import Target, TracedStep, extrapolate
from mpisim.prediction.prepared import prepare

OTHERS = {"1": A100[1]}
RANKS = 16
EIGHTHS = (5, 3)
"""Micro-batches of a replica on H100 and of one on A100, where they are uneven."""

PLANS: tuple[Mapping[str, Any], ...] = (
    {"dp": RANKS},
    {"dp": RANKS, "zero": 3},
    {"pp": 2, "dp": 8},
    {"dp": RANKS, "replica_batch": True},
)


class Compared(NamedTuple):
    """Steps in seconds, and whether all ranks communicate the same bytes as generated."""

    equal: bool
    of_both: float
    of_one: float
    generated: float

    @property
    def error(self) -> float:
        """Of the step with both traces, relative."""
        return self.of_both / self.generated - 1


def compare(model: Model, h100: TracedStep, a100: TracedStep, keys: Mapping[str, Any]) -> Compared:
    """Extrapolate to a plan on both nodes, and generate it."""
    dp, pp = int(keys["dp"]), int(keys.get("pp", 1))
    uneven = "replica_batch" in keys
    micro_batch = model.batch if pp == 1 and not uneven else max(1, model.batch // 4)
    batch = dp * micro_batch * (4 if pp > 1 or uneven else 1)
    plan = {**keys, "micro_batch": micro_batch}
    if uneven:
        plan["replica_batch"] = [n * micro_batch for n in EIGHTHS for _ in range(RANKS // 2)]
    both, one = (
        extrapolate(h100, Target(H100[0], plan, batch, other_gpus=OTHERS, traces=traces))
        for traces in ({A100[1]: a100}, {})
    )
    if pp > 1:
        plan["pipeline.stages"] = list(both.workload.layout.experiment.plan.pipeline.stages)
    experiment = generated(model, plan, batch, RANKS, H100[0]).experiment
    cluster = replace(experiment.cluster, other_gpus=OTHERS)
    ours = prepare(replace(experiment, cluster=cluster))
    times = (
        engine.simulate(program, network=ours.network).step_time / 1e12
        for program in (both.program, one.program, ours.program)
    )
    same = all(volumes(both.program, n) == volumes(ours.program, n) for n in range(RANKS))
    return Compared(same, *times)


def main(names: list[str]) -> None:
    """Print a table for each model."""
    for name in names or list(MODELS):
        model = MODELS[name]
        with tempfile.TemporaryDirectory() as folder:
            steps = [traced(model, Path(folder) / each[1], each) for each in (H100, A100)]
        print(f"{name}: {', '.join(f'{each.measured / 1e9:.3f} ms' for each in steps)}")
        for keys in PLANS:
            found = compare(model, *steps, keys)
            what = ",".join(f"{key}={value}" for key, value in keys.items())
            print(
                f"  {what:28} {found.of_both * 1e3:10.3f} ms, of one trace "
                f"{found.of_one * 1e3:10.3f} ms, generated {found.generated * 1e3:10.3f} ms "
                f"{percentage(found.error, 2, signed=True):>8}  "
                f"{'bytes equal' if found.equal else 'BYTES DIFFER'}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
