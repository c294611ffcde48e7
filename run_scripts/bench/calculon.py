#!/usr/bin/env python3
"""Calculon's search beside `mpisim.search`: how large, how long, and both optima judged by both.

    source run_scripts/env.sh
    [mpirun -n 2] .venv/bin/python run_scripts/bench/calculon.py [MODEL] [--nodes N] [--batch N]
    .venv/bin/python run_scripts/bench/calculon.py MODEL --nodes 512 --batch 4096 --closed-form

A model on nodes of 8 A100 80 GB. Calculon is its closed form (calculon_formulas.py has
source, commits and what is left out) with its own `systems/a100_80g.json`; mpisim has its own
dgx-a100. Both vary tp, pp, interleaving, micro-batch, recomputation, sharding of the optimizer,
sequence parallelism, overlap of tensor and of data parallelism. Only Calculon varies offloading,
gathering again (with sequence parallelism mpisim always does), tp across nodes, assignment to
networks, and sending shards between stages.

Printed are: executions that Calculon counts; seconds of CPU that its closed form takes for those
whose groups fit into their networks (one process); seconds of mpisim's search; then three plans,
each with its step by both: Calculon's best, its best that mpisim can run, and mpisim's best.
``--closed-form`` leaves out mpisim's search and the third.
"""

from __future__ import annotations

import argparse
import heapq
import time
from math import inf
from typing import Any, NamedTuple

from calculon_formulas import count, divisors, estimate, executions
from calculon_inputs import (
    A100,
    GPT3_175B,
    MEGATRON_1T,
    TURING_530B,
    Application,
    Execution,
)
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.experiment.load import experiment_of
from mpisim.prediction.extrapolation import step_time
from mpisim.search import answer, explore, read_search
from mpisim.search.answer import answer_lines
from mpisim.search.records import Status

MODELS = {"gpt3-175b": GPT3_175B, "gpt3-530b": TURING_530B, "gpt3-1t": MEGATRON_1T}
"""Presets of mpisim → Calculon's gpt3-175B, turing-530B, megatron-1T."""

KEPT = 200
"""Best executions that mpisim has, in which one is looked for that fits by mpisim."""


class Case(NamedTuple):
    """What is searched: model, cluster and most sequences a step."""

    model: str
    nodes: int
    batch: int

    @property
    def app(self) -> Application:
        """The model in Calculon's words."""
        return MODELS[self.model]

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return 8 * self.nodes


RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}
NAMES = {ours: theirs for theirs, ours in RECOMPUTE.items()}


def tables_of(case: Case) -> dict[str, Any]:
    """Return the tables of an experiment without a plan."""
    return {
        "model": {"preset": case.model, "seq_len": case.app.seq_size},
        "plan": {"global_batch": case.batch},
        "cluster": {"preset": "dgx-a100", "nodes": case.nodes},
    }


def vary(case: Case) -> dict[str, Any]:
    """Return what both search, in mpisim's keys."""
    gpus, batch = case.gpus, case.batch
    either = [True, False]
    tps = [each for each in divisors(A100.networks[0].size) if gpus % each == 0]
    stages = [each for each in divisors(case.app.blocks) if gpus % each == 0]
    replicas = {gpus // (tp * pp) for tp in tps for pp in stages if gpus % (tp * pp) == 0}
    shares = [batch // dp for dp in replicas if batch % dp == 0]
    return {
        "tp": tps,
        "pp": stages,
        "vpp": "auto",
        "micro_batch": sorted({each for share in shares for each in divisors(share)}),
        "recompute": "auto",
        "zero": [0, 1],
        "sp": either,
        "overlap.tp": either,
        "overlap.tp_scatter": ["pipeline", "ring"],
        "overlap.dp": either,
    }


def in_calculon(app: Application, e: Execution) -> tuple[float, bool] | None:
    """Return seconds of a step and whether it fits, by Calculon; None if it cannot run."""
    found = estimate(app, e)
    if found is None:
        return None
    return found.time, found.memory <= A100.capacity and found.host <= A100.host_capacity


def ranked(case: Case) -> tuple[Execution | None, list[Execution], int]:
    """Return the best of what fits by Calculon, the best that mpisim has, and how many fit."""
    fit, least, best = 0, inf, None
    ours: list[tuple[float, int, Execution]] = []  # a heap with the worst first
    for number, e in enumerate(executions(case.app, case.gpus, case.batch, every_network=False)):
        judged = in_calculon(case.app, e)
        if judged is None or not judged[1]:
            continue
        fit += 1
        time_of_one = judged[0] / e.batch
        if time_of_one < least:
            least, best = time_of_one, e
        if len(ours) < KEPT or -time_of_one > ours[0][0]:
            if plan_of(e) is None:
                continue
            heapq.heappush(ours, (-time_of_one, -number, e))
            if len(ours) > KEPT:
                heapq.heappop(ours)
    return best, [e for _, _, e in sorted(ours, reverse=True)], fit


def plan_of(e: Execution) -> dict[str, Any] | None:
    """Return the plan of an execution; None if mpisim has no such plan."""
    if any(e.offload) or e.tp > A100.networks[0].size:
        return None
    sp = e.tp > 1 and e.comm == "rs_ag"
    if e.redo != (sp and e.recompute != "full"):  # Megatron-LM's sequence parallelism: always
        return None
    if e.tp_overlap != "none" and not sp:
        return None
    plan = {
        "global_batch": e.batch,
        "tp": e.tp,
        "pp": e.pp,
        "dp": e.dp,
        "vpp": e.interleaving,
        "pipeline": {"schedule": "interleaved" if e.interleaving > 1 else "1f1b"},
        "micro_batch": e.micro_batch,
        "recompute": RECOMPUTE[e.recompute],
        "zero": int(e.sharded),
        "sp": sp,
        "overlap": {"tp": e.tp_overlap != "none", "dp": e.dp_overlap},
    }
    if e.tp_overlap == "ring":
        plan["overlap"]["tp_scatter"] = "ring"
    return plan


def execution_of(settings: dict[str, Any], case: Case) -> Execution:
    """Return the execution of a plan; of what the plan leaves open, the fastest by Calculon."""
    gpus, batch = case.gpus, case.batch
    plan = {key.removeprefix("plan."): value for key, value in settings.items()}
    tp, pp = plan["tp"], plan["pp"]
    overlap = "none"
    if plan["overlap.tp"]:
        overlap = "ring" if plan["overlap.tp_scatter"] == "ring" else "pipe"
    wanted = Execution(
        tp, pp, gpus // (tp * pp), batch, plan["micro_batch"], plan["vpp"],
        NAMES[plan["recompute"]], "ar", (0, 0, 0), bool(plan["zero"]) and tp * pp < gpus,
        overlap, plan["sp"] and plan["recompute"] != "full", plan["overlap.dp"] and tp * pp < gpus,
    )  # fmt: skip
    comms = ("rs_ag",) if plan["sp"] else ("ar", "p2p_rs_ag")
    nets = [(t, p, d) for t in range(2) for p in range(2) for d in range(2)]
    found = []
    for comm in comms:
        for net in nets:
            e = wanted._replace(comm=comm, nets=net)
            judged = in_calculon(case.app, e)
            if judged is not None:
                found.append((judged[0], e))
    return min(found, key=lambda each: each[0])[1]


def simulated(plan: dict[str, Any] | None, case: Case) -> tuple[float, bool] | None:
    """Return seconds of a step and whether it fits, by mpisim; None if it cannot run."""
    if plan is None:
        return None
    tables = tables_of(case)
    try:
        experiment = experiment_of(
            tables | {"plan": plan, "run": {"allow_oom": True}}, "calculon.toml"
        )
        found = step_time(experiment, MPI.COMM_SELF)
    except InputError:
        return None
    return found.picoseconds / 1e12, found.memory.fits


def _said(judged: tuple[float, bool] | None) -> str:
    if judged is None:
        return "cannot run"
    return f"{judged[0]:.2f} s" + ("" if judged[1] else ", too large")


def _line(name: str, case: Case, e: Execution) -> None:
    ours = simulated(plan_of(e), case)
    print(f"{name}: {_said(in_calculon(case.app, e))} by Calculon, {_said(ours)} by mpisim")
    keys = (f"{key} {value}" for key, value in zip(e._fields, e, strict=True))
    print(f"    {', '.join(keys)}", flush=True)


def main() -> None:
    """Search twice and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", choices=MODELS, default="gpt3-175b")
    parser.add_argument("--nodes", type=int, default=20, help="of 8 GPUs (default: 20)")
    parser.add_argument("--batch", type=int, default=40, help="sequences a step (default: 40)")
    parser.add_argument("--closed-form", action="store_true", help="Calculon's search alone")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    case = Case(args.model, args.nodes, args.batch)
    winner = None if args.closed_form else searched(case, comm)
    if comm.rank > 0:
        return
    total = count(case.app, case.gpus, case.batch)
    plain = count(case.app, case.gpus, case.batch, tp_overlap=False, fused=2)
    cpu = -time.process_time()
    best, theirs, fit = ranked(case)
    cpu += time.process_time()
    print(f"Calculon: {total:,} executions ({plain:,} with --no-tp-overlap -f all), ", end="")
    print(f"{fit:,} good, {cpu:.0f} s of CPU", flush=True)
    if best is None:
        return
    _line("Calculon's best", case, best)
    for e in theirs:
        ours = simulated(plan_of(e), case)
        if ours is not None and ours[1]:
            _line("Calculon's best that mpisim runs", case, e)
            break
    if winner is not None:
        _line("mpisim's best", case, execution_of(winner, case))


def searched(case: Case, comm: MPI.Intracomm) -> dict[str, Any] | None:
    """Search with mpisim, print, and return what its best plan sets. **Collective.**"""
    tables = tables_of(case)
    tables["search"] = {"top": 1, "vary": {"plan": vary(case)}}
    space = read_search(tables, "calculon.toml")
    began = time.perf_counter()
    cpu = -time.process_time()
    records = explore(space, comm)
    found = answer(space, records, comm)
    wall = time.perf_counter() - began
    cpu = comm.allreduce(cpu + time.process_time())
    if comm.rank > 0:
        return None
    valid = len(records) - records.count(Status.INVALID)
    print(f"mpisim: {len(records):,} combinations, {valid:,} valid, {wall:.0f} s, ", end="")
    print(f"{cpu:.0f} s of CPU on {comm.size} processes")
    print("\n".join(answer_lines(space, found)), flush=True)
    return found.best[0].settings if found.best else None


if __name__ == "__main__":
    main()
