#!/usr/bin/env python3
"""Measure a GPU with PyTorch: kernels, overlap slowdown, launches, training steps with traces.

    python run_scripts/collect_gpu.py -o OUT                everything, an hour at most
    python run_scripts/collect_gpu.py -o OUT --minutes 10 --only gemm attention
    python run_scripts/collect_gpu.py --dry-run             list what would be measured

It needs PyTorch for CUDA and nothing of mpisim: copy run_scripts/collect_gpu.py and
run_scripts/gpu_collector/ to the machine. Then, where mpisim is:

    mpisim calibrate kernels OUT/kernels/*.csv -o mine.toml

See docs/collecting.md.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_collector import sweep

OTHERS = ("overlap", "launches", "training")

NAMES = {
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H200": "h200",
    "NVIDIA H800": "h800-sxm",
    "NVIDIA B200": "b200",
    "NVIDIA A40": "a40",
    "NVIDIA A10": "a10",
    "Tesla T4": "t4",
    "Tesla P4": "p4",
}
"""Presets of mpisim by the names that CUDA gives; others keep CUDA's."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, or list; return the exit status."""
    every = [*sweep.SWEEPS, *OTHERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="a new folder")
    parser.add_argument("--minutes", type=float, default=60, help="at most (default: 60)")
    parser.add_argument(
        "--only", metavar="SWEEP", nargs="+", choices=every, default=every, help=", ".join(every)
    )
    parser.add_argument("--gpu", metavar="NAME", help="preset of mpisim (default: by CUDA's name)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list the sweeps; with -o and PyTorch, also run small ones on the CPU",
    )
    args = parser.parse_args(arguments)
    if args.dry_run:
        _list(args.only)
        if args.output is None:
            return 0
    elif args.output is None:
        parser.error("-o FOLDER is needed, or --dry-run")
    if importlib.util.find_spec("torch") is None:
        parser.error("PyTorch is not installed here; without it there is only --dry-run")
    import torch

    if not args.dry_run and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --dry-run tries the collector on the CPU")
    if args.output.exists() and any(args.output.iterdir()):
        parser.error(f"{args.output} is not empty: choose a new folder")
    _collect(args, "cpu" if args.dry_run else "cuda")
    return 0


def _list(only: Iterable[str]) -> None:
    """Print how many kernels of each operation there are."""
    for name in only:
        if name not in sweep.SWEEPS:
            print(f"{name:<12} as gpu_collector/{name}.py says")
            continue
        counts: dict[str, int] = {}
        for case in sweep.SWEEPS[name](False):
            counts[case.operation] = counts.get(case.operation, 0) + 1
        each = ", ".join(f"{operation} {count:,}" for operation, count in counts.items())
        print(f"{name:<12} {sum(counts.values()):6,} kernels: {each}")


def _collect(args: argparse.Namespace, device: str) -> None:
    """Run the sweeps in turn; none may take much more than its part of the time left."""
    import torch

    out: Path = args.output
    (out / "kernels").mkdir(parents=True, exist_ok=True)
    facts = _hardware(device)
    gpu = args.gpu or NAMES.get(facts["gpu"], facts["gpu"])
    (out / "hardware.json").write_text(json.dumps({"preset": gpu, **facts}, indent=1) + "\n")
    end = time.monotonic() + 60 * args.minutes
    # First what is short and needs the whole of its time.
    names = sorted(args.only, key=lambda name: name in sweep.SWEEPS)
    if device != "cuda":
        names = [name for name in names if name != "overlap"]  # needs Triton, hence a GPU
    for index, name in enumerate(names):
        now = time.monotonic()
        limit = min(end, now + 1.5 * (end - now) / (len(names) - index))
        count = 0
        path = out / "kernels" / f"{name}.csv" if name in sweep.SWEEPS else out / f"{name}.csv"
        try:
            columns, rows = _rows(name, device, out)
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                for row in rows:
                    writer.writerow({"gpu": gpu} | row)
                    file.flush()
                    count += 1
                    if time.monotonic() > limit:
                        break
        except (RuntimeError, ImportError) as error:
            print(f"{name}: stopped: {_first_line(error)}", file=sys.stderr)
        print(f"{name}: {count} rows, {max(0.0, end - time.monotonic()):.0f} s left", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()


def _rows(name: str, device: str, out: Path) -> tuple[Iterable[str], Iterator[dict[str, Any]]]:
    """Return a sweep's columns and the rows that it measures as they are asked for."""
    if name in sweep.SWEEPS:
        return sweep.COLUMNS, _kernels(name, device)
    if name == "overlap":
        from gpu_collector import overlap

        return overlap.COLUMNS, overlap.overlap()
    if name == "launches":
        from gpu_collector import launches

        return launches.COLUMNS, launches.launches(device)
    from gpu_collector import training

    return training.COLUMNS, training.training(device, out / "traces")


def _kernels(name: str, device: str) -> Iterator[dict[str, Any]]:
    """Measure the kernels of a sweep; those that do not run here are said so and left out."""
    import torch
    from gpu_collector.operators import Clock, prepare

    clock = Clock(device)
    for case in sweep.SWEEPS[name](device != "cuda"):
        try:
            times = clock(prepare(case, device))
        except (RuntimeError, NotImplementedError) as error:
            shape = ", ".join(f"{key} {value}" for key, value in case.fields.items())
            print(f"{case.operation} ({shape}): left out: {_first_line(error)}", file=sys.stderr)
            if device == "cuda":
                torch.cuda.empty_cache()
            continue
        row = {"family": case.family, "operation": case.operation}
        # Truth values as 0 and 1, as in other tables.
        row |= {key: int(v) if isinstance(v, bool) else v for key, v in case.fields.items()}
        row |= {key: round(getattr(times, key), 3) for key in ("median", "p10", "p90")}
        for key in ("median", "p10", "p90"):
            row[f"{key}_us"] = row.pop(key)
        yield row | {"repeats": times.repeats}


def _hardware(device: str) -> dict[str, Any]:
    """Return what identifies the machine and its software."""
    import torch

    facts: dict[str, Any] = {
        "gpu": "CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device != "cuda":
        return facts
    found = torch.cuda.get_device_properties(0)
    facts |= {
        "gpu": found.name,
        "sms": found.multi_processor_count,
        "memory": found.total_memory,
        "l2": getattr(found, "L2_cache_size", None),
        "cudnn": torch.backends.cudnn.version(),
    }
    keys = ("power.limit", "clocks.max.sm", "clocks.max.mem", "clocks.sm", "driver_version")
    query = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader", "-i", "0"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        facts |= dict(zip(keys, (each.strip() for each in told.split(","))))
    except (OSError, subprocess.SubprocessError) as error:
        facts["nvidia-smi"] = _first_line(error)
    return facts


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


if __name__ == "__main__":
    sys.exit(main())
