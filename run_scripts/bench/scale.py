#!/usr/bin/env python3
"""How long a whole run takes on more and more GPUs.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/scale.py [--unfolded GPUS] [--json FILE]

GPT-3 175B with tp 8, pp 16 and 64 micro-batches a replica (1F1B), on 128 to 131,072 GPUs, and
Llama-3-405B on 16,384: whole commands, from start to report, ranks that do the same simulated once.
Up to ``--unfolded`` GPUs every rank is also simulated by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = (128, 1_024, 8_192, 16_384, 131_072)

GPT = """
[model]
preset = "gpt3-175b"
seq_len = 2048
[plan]
tp = 8
pp = 16
micro_batch = 1
global_batch = {batch}
[cluster]
preset = "dgx-h100"
nodes = {nodes}
[run]
allow_oom = true
"""


def measured(*arguments: str) -> dict[str, Any]:
    """Run a command; return its wall time, the most memory it had, and what it says."""
    command = [sys.executable, "-m", "mpisim", "run", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        if status:
            raise SystemExit(f"{' '.join(command)}: failed")
        output.seek(0)
        lines = dict(line.split(None, 1) for line in output if len(line.split()) > 1)
    return {
        "seconds": seconds,
        "memory": usage.ru_maxrss * 1024,
        "digest": lines["digest"].strip(),
        "ranks": lines["ranks"].strip(),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unfolded", type=int, metavar="GPUS", default=0)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    runs: list[tuple[str, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for gpus in SIZES:
            file = Path(folder) / f"gpt-{gpus}.toml"
            file.write_text(GPT.format(batch=gpus // 128 * 64, nodes=gpus // 8))
            runs.append((f"GPT-3 175B on {gpus:,}", [str(file)]))
            if gpus <= args.unfolded:
                runs.append((f"GPT-3 175B on {gpus:,}, unfolded", [str(file), "--no-fold"]))
        runs.append(("Llama-3-405B on 16,384", ["llama3-405b-16384-h100", "--allow-oom"]))
        figures = {}
        for title, arguments in runs:
            found = figures[title] = measured(*arguments)
            print(
                f"{found['seconds']:8.2f} s {found['memory'] / 1e6:8.0f} MB  {found['digest']}  "
                f"{title}: {found['ranks']}",
                flush=True,
            )
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
