#!/usr/bin/env python3
"""How many plans a minute can be predicted, and which is best.

    source run_scripts/env.sh
    [mpirun -n 2] .venv/bin/python run_scripts/bench/plans.py [--plans N] [--nodes N]
        [--every-micro-batch] [--changes CHANGE ...] [--small [--again]] [--parts]

GPT-3 175B on 512 GPUs: all combinations of tensor and pipeline parallelism, micro-batch, batch,
recomputation, sharding of the optimizer and schedule that come out even, or N of them, drawn
evenly. Each is predicted as a script would do it (`mpisim.prediction.extrapolation.step_time`):
with links shared and what overlaps slowed, as in experiments that say nothing else; no report. Of
long steps one or two shorter ones are simulated; with --every-micro-batch all of every step is.

Plans are dealt to the processes before they start: all of one tensor and pipeline parallel size to
one process, since they have most in common (groups of GPUs, the links these load, kernels), those
that take longest first, to the process that has least to do. Plans that do not fit into memory are
predicted too, but are not among the best.

With --nodes there are more GPUs, 8 a node, and sequences in proportion: 1,024 are 8,192 GPUs. Ranks
that do the same are one there, too; what takes longer is to find them, and the links they load.

With --small the plans are of a model of 24 layers on 16 GPUs, of many batch sizes: 10,000 take
minutes (`--small --plans 10000`), and the memory that is held is printed after every 1,000: all of
it, and what is in use once pages that were freed are given back to the system. With --again all
are predicted a second time, which adds nothing to what is kept of plans by what they consist of.

With --parts the CPU time of each part of a prediction is printed, too, and its share of all of it.
The functions that stand for the parts are timed as a whole, which takes no time; none of them
calls another.

Printed are: plans a second; wall time and CPU time; memory of the largest process; the best plans,
by tokens a second; and of how many plans not all micro-batches were simulated.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import resource
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from mpi4py import MPI

from mpisim.base.machine_memory import resident
from mpisim.cli import UNTIL_COLLECTED, keep_freed_memory
from mpisim.experiment import read
from mpisim.prediction.extrapolation import StepCache, shortened_run, steady_run, step_time
from mpisim.prediction.network import NetworkCache

EXPERIMENT = """
[model]
preset = "{model}"
seq_len = {seq_len}
[plan]
tp = {tp}
pp = {pp}
vpp = {vpp}
micro_batch = {micro_batch}
global_batch = {batch}
recompute = "{recompute}"
zero = {zero}

[plan.pipeline]
schedule = "{schedule}"
[cluster]
preset = "dgx-h100"
nodes = {nodes}
[run]
allow_oom = true
"""

BEST = 5

HELD_EVERY = 1_000
"""Plans after which --small prints the memory that is held."""

FIXED = 2_000
"""What each plan takes besides its micro-batches, in the unit of `lasting`."""


PARTS = {
    "reading experiments": (__name__, "read"),
    "memory": ("mpisim.prediction.memory_fit", "assess"),
    "writing programs": ("mpisim.prediction.prepared", "training_step"),
    "setting runs up": ("mpisim.engine.dataflow", "set_up"),
    "prices of communications": ("mpisim.engine.dataflow", "_priced"),
    "instructions": ("mpisim.engine.dataflow", "distribute"),
    "flows": ("mpisim.engine.dataflow", "Relaxation"),
    "passes": ("mpisim.engine.dataflow", "_run_passes"),
    "factors of overlaps": ("mpisim.overlap", "overlap_model"),
    "what overlaps": ("mpisim.overlap.passes", "_work_out"),
    "slowed programs": ("mpisim.overlap.passes", "retimed"),
    "rounds that repeat": ("mpisim.prediction.extrapolation", "steady_period"),
}
"""Module and name of the function that --parts times for each part."""


class Sweep(NamedTuple):
    """What is trained on what, and the sizes that are combined."""

    model: str
    seq_len: int
    layers: int
    nodes: int
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]
    batches: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return 8 * self.nodes


LARGE = Sweep("gpt3-175b", 2048, 96, 64, (1, 2, 4, 8, 16, 32), (1, 2, 4), (1536, 1024))
SMALL = Sweep("gpt3-350m", 1024, 24, 2, (1, 2, 3, 4, 6), (1, 2, 4), tuple(range(48, 4848, 48)))


class Candidate(NamedTuple):
    """A plan; `vpp` follows from the schedule."""

    tp: int
    pp: int
    micro_batch: int
    batch: int
    recompute: str
    zero: int
    schedule: str
    sweep: Sweep

    @property
    def vpp(self) -> int:
        """Chunks a stage."""
        return 2 if self.schedule == "interleaved" else 1

    @property
    def micro_batches(self) -> float:
        """Of a replica; no integer where the plan does not come out even."""
        return self.batch * self.tp * self.pp / (self.sweep.gpus * self.micro_batch)

    @property
    def possible(self) -> bool:
        """Whether it comes out even."""
        layers = self.sweep.layers
        whole = layers % self.pp == self.sweep.gpus % (self.tp * self.pp) == 0
        whole = whole and self.micro_batches.is_integer()
        if self.schedule == "1f1b":
            return whole
        return whole and self.pp > 1 and layers % (2 * self.pp) == 0 == self.micro_batches % self.pp

    @property
    def neighbours(self) -> tuple[int, int]:
        """What it has in common with plans that it shares most with."""
        return self.tp, self.pp

    def text(self) -> str:
        """Return the experiment."""
        sizes = self._asdict() | self.sweep._asdict()
        return EXPERIMENT.format(vpp=self.vpp, **sizes)


class Result(NamedTuple):
    """What was predicted."""

    rate: float
    fits: bool
    short: bool
    candidate: Candidate


def candidates(sweep: Sweep) -> Iterator[Candidate]:
    """Yield all plans."""
    for each in product(
        (1, 2, 4, 8),
        sweep.stages,
        sweep.micro_batches,
        sweep.batches,
        ("none", "selective", "full"),
        (0, 1),
        ("1f1b", "interleaved"),
    ):
        candidate = Candidate(*each, sweep)
        if candidate.possible:
            yield candidate


def chosen(number: int, sweep: Sweep) -> list[Candidate]:
    """Return so many plans, evenly from all in order."""
    every = sorted(candidates(sweep))
    number = min(number, len(every))
    return [every[i * len(every) // number] for i in range(number)]


def lasting(candidate: Candidate) -> float:
    """Return what predicting a plan takes, roughly: rows of all stages, messages among them."""
    experiment = read(candidate.text(), "plans.toml")
    steady, rounds = steady_run(experiment), shortened_run(experiment)
    simulated = candidate.micro_batches
    if steady is not None:
        simulated = steady.simulated
    elif rounds is not None:
        simulated = rounds.first + rounds.second
    return FIXED + simulated * (candidate.sweep.layers + 4 * candidate.pp)


def dealt(plans: list[Candidate], comm: MPI.Intracomm) -> list[Candidate]:
    """Return those of this process."""
    groups: dict[tuple[int, int], list[Candidate]] = {}
    for each in plans:
        groups.setdefault(each.neighbours, []).append(each)
    size = {key: sum(map(lasting, some)) for key, some in groups.items()}
    load = [0.0] * comm.size
    own = []
    for key in sorted(groups, key=lambda key: -size[key]):
        least = load.index(min(load))
        load[least] += size[key]
        if least == comm.rank:
            own += groups[key]
    return own


def predicted(
    candidate: Candidate,
    changes: list[str],
    every: bool,
    networks: NetworkCache,
    steps: StepCache,
) -> Result:
    """Predict one plan on this process alone."""
    experiment = read(candidate.text(), "plans.toml", changes)
    found = step_time(experiment, MPI.COMM_SELF, every=every, networks=networks, steps=steps)
    rate = found.tokens * 1e12 / found.picoseconds
    return Result(rate, found.memory.fits, found.rounds is not None, candidate)


def timed_parts() -> dict[str, float]:
    """Have the functions of `PARTS` add up their CPU time; return the sums, in seconds, by part."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for part, (module, name) in PARTS.items():
        holder = importlib.import_module(module)
        setattr(holder, name, timed(getattr(holder, name), part, seconds))
    return seconds


def timed(function: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """Return a function that also adds the CPU time of its calls to that of a part."""

    def measured(*args: Any, **options: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*args, **options)
        finally:
            seconds[part] += time.process_time() - begin

    return measured


def held() -> str:
    """Return the memory that is held, and what is in use without pages that were freed."""
    every = resident() / 2**20
    gc.collect()
    if hasattr(trim := ctypes.CDLL(None), "malloc_trim"):  # of glibc
        trim.malloc_trim(0)
    return f"{every:,.0f} MiB, {resident() / 2**20:,.0f} in use"


def main() -> None:
    """Predict the plans and print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, metavar="N", default=1_000)
    parser.add_argument("--nodes", type=int, metavar="N", default=LARGE.nodes)
    parser.add_argument(
        "--changes", nargs="*", metavar="CHANGE", default=[], help='as "overlap.model=off"'
    )
    parser.add_argument(
        "--every-micro-batch", action="store_true", help="simulate long steps in full"
    )
    parser.add_argument(
        "--small", action="store_true", help="a small model; print memory after every 1,000 plans"
    )
    parser.add_argument("--again", action="store_true", help="predict all a second time")
    parser.add_argument("--parts", action="store_true", help="print the CPU time of each part")
    args = parser.parse_args()
    parts = timed_parts() if args.parts else {}
    gc.set_threshold(UNTIL_COLLECTED)  # as the command does: objects are many, and few are garbage
    keep_freed_memory()  # likewise
    comm = MPI.COMM_WORLD
    batches = tuple(batch // LARGE.nodes * args.nodes for batch in LARGE.batches)
    large = LARGE._replace(nodes=args.nodes, batches=batches)
    plans = chosen(max(args.plans, 1), SMALL if args.small else large)
    comm.Barrier()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    networks, steps = NetworkCache(), StepCache()
    own = []
    for each in dealt(plans, comm) * (1 + args.again):
        own.append(predicted(each, args.changes, args.every_micro_batch, networks, steps))
        if args.small and len(own) % HELD_EVERY == 0:
            print(f"process {comm.rank}: {held()} after {len(own):,} plans", flush=True)
    cpu = comm.reduce(time.process_time() - begin_cpu)
    wall = time.perf_counter() - begin
    parts = {part: comm.reduce(seconds) for part, seconds in parts.items()}
    own = own[: len(own) // (1 + args.again)]
    memory = comm.reduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, MPI.MAX)
    gathered = comm.gather(own)
    if gathered is None or cpu is None or memory is None:
        return
    every = [each for part in gathered for each in part]
    number = len(plans) * (1 + args.again)
    print(f"{number:,} plans on {comm.size} processes: {number / wall:.2f} plans/s")
    print(f"wall {wall:.2f} s, CPU {cpu:.2f} s ({cpu / number:.3f} a plan), ", end="")
    print(f"{memory / 1024:,.0f} MiB in the largest process")
    print(f"{sum(each.short for each in every):,} plans from shorter steps, the others in full")
    for part, seconds in parts.items():
        print(f"  {1e3 * seconds / number:6.2f} ms a plan, {seconds / cpu:5.1%}  {part}")
    fitting = sorted((each for each in every if each.fits), reverse=True)
    print(f"{len(fitting):,} plans fit into memory; the best:")
    for rate, _, _, candidate in fitting[:BEST]:
        sizes = zip(candidate._fields[:-1], candidate, strict=False)
        keys = ", ".join(f"{key} {value}" for key, value in sizes)
        print(f"  {rate:12,.0f} tokens/s  {keys}")


if __name__ == "__main__":
    main()
