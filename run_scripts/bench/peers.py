#!/usr/bin/env python3
"""Cases that other simulators were timed on: whole processes, from start to answer.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/peers.py [--json FILE]

One all-reduce of 16 MiB on 8,192 GPUs; 100 layers with an all-reduce each beside the backward pass
on 1,024 GPUs, as ASTRA-sim's text workloads have them; one overlapped data-parallel step of GPT-2
on 64 GPUs, TrioSim's case. Ranks that do the same are simulated once unless it says otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from commands import taken

LAYERS = 100
MS = 10**9

GPT2 = """
[model]
preset = "gpt2"
[plan]
global_batch = 512
micro_batch = 8

[framework]
dp_style = "ddp"
[cluster]
preset = "dgx-h100"
nodes = 8
"""


def layers(gpus: int, fold: bool) -> None:
    """Simulate layers of 1 ms forward and 2 ms backward, 100 MB of gradients each."""
    from mpisim import simulate
    from mpisim.prediction.network import network_of
    from mpisim.program import Operation, ProgramBuilder
    from mpisim.topo import find_cluster

    builder = ProgramBuilder()
    rows = builder.table("data parallel")
    for layer in range(LAYERS):
        rows.kernel(f"forward {layer}", 0, MS)
    reduced = []
    for layer in reversed(range(LAYERS)):
        done = rows.kernel(f"backward {layer}", 0, 2 * MS)
        reduced.append(rows.collective(Operation.ALL_REDUCE, 0, 1, 100_000_000, waits=(done,)))
    rows.kernel("optimizer", 0, MS, waits=reduced)
    builder.add_table(rows.build())
    everybody = builder.communicator(range(gpus))
    for _ in range(gpus):
        builder.add_rank(0, [everybody])
    cluster = find_cluster("dgx-h100")
    network = network_of(cluster, gpus // cluster.gpus_per_node)
    results = simulate(builder.build(), network=network, fold=fold)
    assert results is not None
    print(f"step time {results.step_time:.6f} s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--layers", type=int, metavar="GPUS", help=argparse.SUPPRESS)
    parser.add_argument("--no-fold", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.layers:
        layers(args.layers, not args.no_fold)
        return
    this = str(Path(__file__).resolve())
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpt2.toml"
        file.write_text(GPT2)
        for title, command in (
            (
                "all-reduce of 16 MiB, 8,192 GPUs",
                [
                    "-m",
                    "mpisim",
                    "comm",
                    "all_reduce",
                    "--size",
                    "16M",
                    "--cluster",
                    "dgx-h100",
                    "--nodes",
                    "1024",
                ],
            ),
            ("100 layers, 1,024 GPUs", [this, "--layers", "1024"]),
            (
                "100 layers, 1,024 GPUs, every rank simulated",
                [this, "--layers", "1024", "--no-fold"],
            ),
            ("GPT-2, data parallel on 64 GPUs", ["-m", "mpisim", "run", str(file)]),
            (
                "GPT-2, data parallel on 64 GPUs, every rank simulated",
                ["-m", "mpisim", "run", str(file), "--no-fold"],
            ),
        ):
            found = min(taken([sys.executable, *command]) for _ in range(3))
            figures[title] = {"seconds": found.seconds, "memory": found.memory}
            print(f"{title:<55} {found.seconds:6.2f} s {found.memory / 1e6:6.0f} MB")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
