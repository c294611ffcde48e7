"""MPI libraries and numbers of processes → whether all give the same digests.

    python run_scripts/digests.py                         # three MPIs on 1, 2 and 4 processes
    python run_scripts/digests.py --mpi openmpi5 --processes 1 8

Runs a list of commands under every library on every number of processes, prints a table of the
digests, and ends with 1 if two of a line differ. A library that cannot be had is said and left out
(with 1 where the environment variable CI is set). See with_mpi.sh for what each of them is.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

MPIS = ("openmpi5", "openmpi4", "mpich")
SKIPPED = 77
"""What with_mpi.sh ends with if a library cannot be had."""

GPT = ["run", "echo-gpt3-175b-96-h800"]
CASES = {
    "default": ["run"],
    "every rank": ["run", "--no-fold"],
    "coupled": ["run", "--set", "overlap.model=coupled"],
    "coupled, every rank": ["run", "--no-fold", "--set", "overlap.model=coupled"],
    "jitter": ["run", "--set", "variation.kernels=0.02"],
    "seeds": ["run", "--set", "variation.kernels=0.02", "--seeds", "5"],
    "one slow GPU": ["run", "--set", "variation.speeds.3=0.9"],
    "pipeline": GPT,
    "links shared, every rank": [*GPT, "--no-fold"],
    "undisturbed": [*GPT, "--no-fold", "--set", "network.contention=false"],
    "experts": [
        "run",
        "--set",
        "model.preset=qwen3-30b-a3b",
        "--set",
        "plan.ep=8",
        "--allow-oom",
        "--no-fold",
    ],
    "recommendation": ["run", "lin-dlrm-default-4-a100", "--no-fold"],
    "saved program": ["program", "run", "step.h5", "--cluster", "dgx-h100", "--no-fold"],
    "collectives": [
        "comm",
        "all_reduce",
        "--cluster",
        "dgx-h100",
        "--nodes",
        "4",
        "--size",
        "1M:1G:8",
    ],
}
"""By name: the arguments of mpisim. Those without a digest are compared by all their figures."""


def main() -> int:
    """Run everything, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", nargs="+", choices=MPIS, default=MPIS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--work", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        return work(Path(args.work))
    found: dict[str, dict[str, str]] = {name: {} for name in CASES}
    missing = set()
    with tempfile.TemporaryDirectory() as folder:
        # One process leaves cores idle: those of all libraries run beside one another.
        for processes in sorted(args.processes):
            some = [mpi for mpi in args.mpi if mpi not in missing]
            with ThreadPoolExecutor(2 if processes == 1 else 1) as pool:
                work_of = partial(launched, processes=processes, folder=Path(folder))
                for mpi, each in zip(some, pool.map(work_of, some), strict=True):
                    if each is None:
                        missing.add(mpi)
                    for name, digest in (each or {}).items():
                        found[name][f"{mpi} -n {processes}"] = digest
    differing = [name for name, digests in found.items() if len(set(digests.values())) != 1]
    for name, digests in found.items():
        print(f"{name:26s} {'DIFFERS' if name in differing else next(iter(digests.values()))}")
        for where, digest in digests.items() if name in differing else ():
            print(f"    {where:22s} {digest}")
    ways = len(next(iter(found.values())))
    print(f"{len(CASES)} commands, each {ways} ways: {len(differing)} differ")
    return 1 if differing or (missing and os.environ.get("CI")) else 0


def launched(mpi: str, processes: int, folder: Path) -> dict[str, str] | None:
    """Return the digests under one library; None if it cannot be had."""
    script = Path(__file__).resolve()
    place = folder / f"{mpi}-{processes}"
    place.mkdir()
    command = ["bash", str(script.with_name("with_mpi.sh")), mpi, "mpirun", "-n", str(processes)]
    done = subprocess.run([*command, "python", str(script), "--work", str(place)], cwd=place)
    if done.returncode == SKIPPED:
        return None
    if done.returncode:
        raise SystemExit(f"digests: {mpi} on {processes} processes ended with {done.returncode}")
    found: dict[str, str] = json.loads((place / "found.json").read_text())
    return found


def work(folder: Path) -> int:
    """Run all commands on the processes of this launch; the first writes what came out."""
    from mpi4py import MPI

    from mpisim import cli

    found = {}
    first = MPI.COMM_WORLD.rank == 0
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent):
        cli.main(["run", "--save-program", str(folder / "step.h5"), "--overwrite"])
        for name, arguments in CASES.items():
            code = cli.main([*arguments, "--json", str(folder / "case.json"), "--overwrite"])
            if code:
                print(f"digests: {name} ended with {code}", file=sys.stderr)
                return code
            if first:
                figures = json.loads((folder / "case.json").read_text())
                found[name] = digest_of(figures)
    if first:
        (folder / "found.json").write_text(json.dumps(found))
    return 0


def digest_of(figures: dict[str, object]) -> str:
    """Return the digest of a run and its sampled steps, or that of all figures."""
    attributes = figures.get("attributes")
    sampled = attributes.get("sampled_steps") if isinstance(attributes, dict) else None
    kept = [figures.get("digest"), figures.get("step_time_ps"), sampled]
    text = json.dumps(kept if figures.get("digest") else figures, sort_keys=True)
    return f"{figures.get('digest') or '-'} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(main())
