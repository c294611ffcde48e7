#!/usr/bin/env python3
"""How long whole runs take on more and more GPUs, and what bounds them.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/scale.py [--only WORDS] [--json FILE] [--plot FILE]

GPT-3 175B with tp 8, pp 16 (8 on 64 GPUs) and 64 micro-batches a replica (1F1B), and Llama-3-405B
on 16,384 GPUs (tp 8, pp 16, dp 128): whole commands, from start to report and result file.

Ranks are simulated *folded* (those that provably do the same once) or *each*, on one process or
two. *alone*: communications take as long as without others; *links*: they share links; *default*:
what overlaps is slower, too, as in experiments that say nothing else. *slow*: one GPU at 90 % of
its speed; *jitter*: 2 % on every kernel.

Columns: wall time and peak memory of the largest process; rows of all ranks; the simulate phase in
seconds and in ns a row; exchanges between processes; digest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import h5py
from commands import gpt, taken

LLAMA = "llama3-405b-16384-h100"
UNFOLDED = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
FOLDED = (1_024, 8_192, 16_384, 131_072)
MODES = {
    "alone": ["network.contention=false", "overlap.model=off"],
    "links": ["overlap.model=off"],
    "default": [],
}
VARIATIONS = {
    "": [],
    "slow": ["variation.speeds.0=0.9"],
    "jitter": ["variation.kernels=0.02"],
}


class Case(NamedTuple):
    """One run: on so many GPUs, how, and by how many processes."""

    model: str
    gpus: int
    folded: bool
    mode: str
    variation: str
    processes: int

    @property
    def title(self) -> str:
        """For people, and for ``--only``."""
        ranks = "folded" if self.folded else "each"
        return f"{self.model} {self.gpus} {ranks} {self.mode} {self.variation} on {self.processes}"


@dataclass
class Figures:
    """What a run took."""

    seconds: float
    memory: int
    rows: int
    simulate: float
    rounds: int
    digest: str
    step: float

    @property
    def a_row(self) -> float:
        """Of the simulate phase, in ns."""
        return 1e9 * self.simulate / max(self.rows, 1)


def cases(largest: int) -> Iterator[Case]:
    """Yield all cases, small ones first."""
    for gpus in UNFOLDED:
        if gpus <= largest:
            for processes in (1, 2):
                yield Case("gpt", gpus, False, "alone", "", processes)
            yield Case("gpt", gpus, False, "alone", "jitter", 1)
            yield Case("gpt", gpus, False, "links", "", 1)
    if largest >= 16_384:
        yield Case("llama", 16_384, False, "alone", "", 1)
        yield Case("llama", 16_384, False, "alone", "", 2)
    for gpus in FOLDED:
        for mode in MODES:
            yield Case("gpt", gpus, True, mode, "", 1)
    yield Case("gpt", 131_072, True, "alone", "slow", 1)
    yield Case("gpt", 131_072, True, "links", "slow", 1)
    yield Case("llama", 16_384, True, "alone", "", 1)
    yield Case("llama", 16_384, True, "default", "", 1)


def experiment(case: Case, folder: Path) -> str:
    """Return the experiment of a case: a file, written here, or a name."""
    if case.model == "llama":
        return LLAMA
    file = folder / f"gpt-{case.gpus}.toml"
    file.write_text(gpt(case.gpus, pp=8 if case.gpus < 128 else 16))
    return str(file)


def measured(case: Case, folder: Path) -> Figures:
    """Run a case."""
    found = folder / "result.h5"
    command = [] if case.processes == 1 else ["mpirun", "-n", str(case.processes)]
    command += [sys.executable, "-m", "mpisim", "run", experiment(case, folder), "--allow-oom"]
    command += ["-o", str(found), "--overwrite"] + ([] if case.folded else ["--no-fold"])
    for change in (*MODES[case.mode], *VARIATIONS[case.variation]):
        command += ["--set", change]
    whole = taken(command)
    with h5py.File(found) as file:
        return Figures(
            seconds=whole.seconds,
            memory=whole.memory,
            rows=int(file["ranks/rows"][:].sum()),
            simulate=float(file["wall/simulate"][()]),
            rounds=int(file.attrs["rounds"]),
            digest=str(file.attrs["digest"]),
            step=float(file.attrs["step_time"]),
        )


def plot(found: dict[Case, Figures], path: str) -> None:
    """Draw wall time over GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    lines: dict[tuple[str, bool, str, str, int], list[tuple[int, float]]] = {}
    for case, each in found.items():
        if case.model == "gpt":
            lines.setdefault(case[:1] + case[2:], []).append((case.gpus, each.seconds))
    for (_, folded, mode, variation, processes), points in lines.items():
        ranks = "folded" if folded else "every rank"
        how = f"{mode}, {variation}" if variation else mode
        label = f"{ranks}, {how}, {processes} process{'es' if processes > 1 else ''}"
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="whole command, s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_title("GPT-3 175B, tp 8, pp 16, 64 micro-batches")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)
    figure.savefig(path, bbox_inches="tight", dpi=150)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORDS", default="", help='as "8192 each alone"')
    parser.add_argument("--largest", type=int, metavar="GPUS", default=16_384, help="unfolded")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE", help="PNG or SVG (needs matplotlib)")
    args = parser.parse_args()
    print("  wall s      MB        rows  simulate s  ns/row  rounds  digest    case")
    found: dict[Case, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args.largest):
            if not set(args.only.split()) <= set(case.title.split()):
                continue
            each = found[case] = measured(case, Path(folder))
            print(
                f"{each.seconds:8.2f} {each.memory / 1e6:7.0f} {each.rows:11,} "
                f"{each.simulate:11.3f} {each.a_row:7.2f} {each.rounds:7}  {each.digest[:8]}  "
                f"{case.title}",
                flush=True,
            )
    if args.json:
        table = [{**case._asdict(), **asdict(each)} for case, each in found.items()]
        Path(args.json).write_text(json.dumps(table, indent=2) + "\n")
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
