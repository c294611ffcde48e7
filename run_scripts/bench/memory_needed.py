"""Grid of runs → memory that each is said to need, over what it takes.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/memory_needed.py [--only TEXT] [--json FILE] [--most GB]

Each run is a process of its own, or two under mpirun: an experiment is laid out and simulated as
`mpisim run` does, and the largest estimate that was made before a simulation is compared with the
most that its processes then had resident. Printed are both, their quotient, and what the estimate
counts. Runs that are said to need more than --most (6 GB) are left out, as are those that are found
to take more: they end at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

MODELS = {
    "gpt3-175b": 'model = { preset = "gpt3-175b" }\nplan = { tp = 8, pp = 16, micro_batch = 1 }',
    "llama-3-8b": 'model = { preset = "llama-3-8b" }\nplan = { tp = 2, zero = 1, micro_batch = 1 }',
    "llama-3-70b": (
        'model = { preset = "llama-3-70b" }\n'
        'plan = { tp = 8, pp = 4, vpp = 5, schedule = "interleaved", micro_batch = 1 }'
    ),
    "qwen3-30b-a3b": (
        'model = { preset = "qwen3-30b-a3b" }\nplan = { ep = 8, zero = 1, micro_batch = 1 }'
    ),
    "fsdp": (
        'model = { preset = "llama-3-8b" }\nplan = { dp_style = "fsdp", zero = 3, micro_batch = 1 }'
    ),
}
"""Experiments, of which batch and cluster are filled in."""

BATCHES = {"gpt3-175b": 32, "llama-3-8b": 8, "llama-3-70b": 16, "qwen3-30b-a3b": 4, "fsdp": 2}
"""Micro-batches of a replica."""

SPLIT = {"gpt3-175b": 128, "llama-3-8b": 2, "llama-3-70b": 32, "qwen3-30b-a3b": 1, "fsdp": 1}
"""Ranks of a replica."""

WAYS: dict[str, tuple[str, ...]] = {
    "as run": (),
    "each": (),
    "each, undisturbed": ("network.contention=false", "overlap.model=off"),
    "each, shared": ("overlap.model=off",),
    "undisturbed": ("network.contention=false", "overlap.model=off"),
    "shared": ("overlap.model=off",),
    "jitter": ("variation.kernels=0.02",),
    "jitter, undisturbed": (
        "variation.kernels=0.02",
        "network.contention=false",
        "overlap.model=off",
    ),
    "jitter, shared": ("variation.kernels=0.02", "overlap.model=off"),
    "gpus": ("variation.gpus=0.02",),
    "gpus, undisturbed": (
        "variation.gpus=0.02",
        "network.contention=false",
        "overlap.model=off",
    ),
    "gpus, shared": ("variation.gpus=0.02", "overlap.model=off"),
}
"""Changes; folded where ranks are alike, but with "each", and where speeds or kernels vary."""

GPUS = {
    "as run": (512, 8192),
    "each": (256, 2048),
    "each, undisturbed": (512, 8192),
    "each, shared": (512, 4096),
    "undisturbed": (512, 8192),
    "shared": (512, 8192),
    "jitter": (64, 256, 768),
    "jitter, undisturbed": (256, 1024),
    "jitter, shared": (256, 768),
    "gpus": (256, 1024, 4096),
    "gpus, undisturbed": (1024, 4096),
    "gpus, shared": (1024, 4096),
}


def main() -> None:
    """Go through the grid, a process after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="runs whose line begins with it")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--most", type=float, default=6, help="GB that a run may take")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child, most=args.most)
        return
    print(f"{'run':52}{'said':>10}{'taken':>10}{'said/taken':>12}  counts of the largest process")
    found = []
    for model in MODELS:
        for way, sizes in GPUS.items():
            for gpus in sizes:
                name = f"{model}, {gpus} GPUs, {way}"
                if gpus % SPLIT[model] or not name.startswith(args.only):
                    continue
                each = measured(name, model, way, gpus, args.processes, args.most)
                if each is None:
                    continue
                found.append(each)
                counts = " ".join(f"{key}={value:,}" for key, value in each["counts"].items())
                print(
                    f"{name:52}{each['said'] / 1e6:>7,.0f} MB{each['taken'] / 1e6:>7,.0f} MB"
                    f"{each['said'] / each['taken']:>12.2f}  {counts}",
                    flush=True,
                )
    if found:
        ratios = sorted(each["said"] / each["taken"] for each in found)
        print(f"said/taken: {ratios[0]:.2f} to {ratios[-1]:.2f} of {len(ratios)} runs")
    if args.json:
        args.json.write_text(json.dumps(found))


def measured(
    name: str, model: str, way: str, gpus: int, processes: int, most: float
) -> dict[str, Any] | None:
    """Run one of the grid; None where it is left out."""
    command = [sys.executable, __file__, "--most", str(most), "--child", model, way, str(gpus)]
    if processes > 1:
        command = ["mpirun", "-n", str(processes), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    parts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(parts) != processes:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{name:52}left out: {last[:200]}", flush=True)
        return None
    taken = sum(part["taken"] for part in parts)
    largest = max(parts, key=lambda part: part["taken"])
    return {"run": name, "processes": processes, **largest, "taken": taken}


def child(model: str, way: str, gpus: str, most: float) -> None:
    """Simulate one run and print what was said and taken, of this process."""
    from mpi4py import MPI

    from mpisim.engine import dataflow, memory_needed
    from mpisim.experiment import read
    from mpisim.prediction.execution import execute
    from mpisim.prediction.prepared import prepare

    limit = int(most * 1.5e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    said: list[int] = []
    counts: list[dict[str, int]] = []
    on_this_machine, count = dataflow.on_this_machine, dataflow.count

    def watched(*given: Any) -> Any:
        memory = on_this_machine(*given)
        said.append(memory.needed)
        return memory._replace(capacity=int(most * 1e9))

    def counted(*given: Any) -> Any:
        found = count(*given)
        counts.append({**found._asdict(), "resident": memory_needed._resident()})
        return found

    vars(dataflow).update(on_this_machine=watched, count=counted)
    replicas = int(gpus) // SPLIT[model]
    batch = f"plan = {{ global_batch = {BATCHES[model] * replicas},"
    text = MODELS[model].replace("plan = {", batch)
    text += f'\ncluster = {{ preset = "dgx-h100", nodes = {-(-int(gpus) // 8)} }}\n'
    text += "run = { allow_oom = true }\n"
    case = prepare(read(text, "grid", WAYS[way]))
    fold = False if way.startswith("each") else None
    execute(case, MPI.COMM_WORLD, critical_path=True, fold=fold)
    largest = said.index(max(said))
    line = json.dumps(
        {"said": said[largest], "taken": memory_needed._peak(), "counts": counts[largest]}
    )
    os.write(1, (line + "\n").encode())


if __name__ == "__main__":
    main()
