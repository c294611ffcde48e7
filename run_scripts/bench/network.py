#!/usr/bin/env python3
"""How fast communications that share NICs are simulated, every rank by itself.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/network.py [--ranks N] [--micro-batches N] [--spine]
    mpirun -n 2 .venv/bin/python run_scripts/bench/network.py

Nodes of eight, tp 8 within a node, pp 8, the rest data parallel. Every GPU has a NIC of 50 GB/s, of
which a communication has nine tenths at most, after a latency of 10 us. Gradients are reduced in
four parts during the last backward pass, beside the activations of the pipeline. GPUs differ in
speed by 2 %. With ``--spine`` all that leaves a NIC also crosses one spine, oversubscribed 4:1, and
NICs differ by 20 %, so that almost every flow has a rate of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from mpisim.base.quantity import Quantity
from mpisim.engine import Run, simulate
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.topo import Price, rate_of

TP, PP = 8, 8
LAYERS = 4
US = 1_000_000  # ps
NIC, SHARE, LATENCY = 50e9, 0.9, 10 * US
SPREAD, OVERSUBSCRIPTION = 0.2, 4
ACTIVATIONS, GRADIENTS = 25 << 20, 100 << 20  # bytes


class Nics:
    """A NIC for each rank: link 2 r out of it, 2 r + 1 into it. Nodes have faster links inside.

    The last link is a spine, if there is one.
    """

    numbers: dict[str, Quantity] = {}  # noqa: RUF012

    def __init__(self, n_ranks: int, spine: bool) -> None:
        self.capacity = np.full(2 * n_ranks, rate_of(NIC), np.int64)
        self._spine = 2 * n_ranks if spine else None
        if spine:
            rng = random.Random(2)
            nics = [rate_of(NIC * (1 + SPREAD * (rng.random() - 0.5))) for _ in range(2 * n_ranks)]
            self.capacity = np.array([*nics, rate_of(n_ranks * NIC / OVERSUBSCRIPTION)], np.int64)

    def group_classes(
        self, index: np.ndarray, members: np.ndarray, operations: np.ndarray | None = None
    ) -> tuple[np.ndarray, list[Hashable]]:
        """Sort by size, and by whether one node has all."""
        first, last = members[index[:-1]], members[index[1:] - 1]
        size = np.diff(index)
        keys, label = np.unique(size * 2 + (first // TP != last // TP), return_inverse=True)
        return label.reshape(-1), [(key // 2, bool(key % 2)) for key in keys.tolist()]

    def price(self, operation: Operation, bytes: int, group: Any) -> Price:
        """A ring or a message; within a node nobody shares."""
        size, across = group
        if not across:
            return Price(5 * US, bytes, rate_of(200e9))
        weight = 1.0 if operation is Operation.SEND_RECV else 2 * (size - 1) / size
        rate = rate_of(SHARE * NIC / weight)
        return Price(LATENCY, bytes, rate, "pair" if weight == 1.0 else "ring")

    def shares(self, operation: Operation, bytes: int, group: Any) -> dict[str, float]:
        """No number has an error."""
        return {}

    def loads(
        self, index: np.ndarray, members: np.ndarray, pattern: Hashable
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Load the NICs, a message of the sender outwards and of the receiver inwards."""
        size = np.diff(index)
        if pattern == "pair":
            links = members.astype(np.int64) * 2 + np.tile([0, 1], len(size))
            first, weight = index, np.full(len(size), 1 << 20)
        else:
            links = (members[:, None].astype(np.int64) * 2 + [0, 1]).reshape(-1)
            first, weight = 2 * index, -((-2 * (size - 1) << 20) // size)
        owner, weights = np.repeat([np.arange(len(size)), weight], np.diff(first), axis=1)
        if self._spine is not None:
            links = np.append(links, np.full(len(size), self._spine))
            owner = np.append(owner, np.arange(len(size)))
            crossing = np.diff(first) // 2  # as often as bytes leave a NIC
            weights = np.append(weights, weight * crossing)
            first = first + np.arange(len(first))
        order = np.lexsort((links, owner))
        return first, links[order], weights[order]

    def link_name(self, link: int) -> str:
        """Say whose NIC."""
        if link == self._spine:
            return "spine"
        return f"NIC {link // 2} {'in' if link % 2 else 'out'}"


def program(n_ranks: int, micro_batches: int) -> Program:
    """1F1B over stages of `LAYERS` layers, forward 200 us and backward 400 us each."""
    rng = random.Random(1)
    builder = ProgramBuilder()
    for stage in range(PP):
        builder.add_table(_stage(builder, stage, micro_batches))
    n_dp = n_ranks // (TP * PP)
    for rank in range(n_ranks):
        node, tp = divmod(rank, TP)
        dp, stage = divmod(node, PP)

        def at(stage: int, dp: int = dp, tp: int = tp) -> int:
            return (dp * PP + stage) * TP + tp

        here = at(stage)
        bound = [
            builder.communicator(range(node * TP, node * TP + TP), "tp"),
            builder.communicator([at(stage, i) for i in range(n_dp)], "dp"),
        ]
        if stage:
            bound += [builder.communicator((at(stage - 1), here), "forward")]
            bound += [builder.communicator((here, at(stage - 1)), "backward")]
        if stage < PP - 1:
            bound += [builder.communicator((here, at(stage + 1)), "forward")]
            bound += [builder.communicator((at(stage + 1), here), "backward")]
        builder.add_rank(stage, bound, speed=1 + 0.02 * (rng.random() - 0.5))
    return builder.build()


def _stage(builder: ProgramBuilder, stage: int, micro_batches: int) -> Any:
    rows = builder.table(f"stage {stage}")
    first, last = stage == 0, stage == PP - 1
    before = 2  # slots of the stage before, and of the one after
    after = 2 if first else 4
    call = {"host": 2 * US, "launch": 3 * US, "launch_cost": 3 * US}

    def layers(name: str, duration: int, parts: bool) -> int:
        row = -1
        for layer in range(LAYERS):
            for _ in range(2):
                row = rows.kernel(name, 0, duration // 2, **call)
                row = rows.collective(Operation.ALL_REDUCE, 0, 0, ACTIVATIONS, **call)
            if parts and layer < LAYERS:
                rows.collective(Operation.ALL_REDUCE, 1, 5, GRADIENTS, waits=[row], **call)
        return row

    def forward() -> None:
        if not first:
            got = rows.point_to_point(Kind.RECV, before, 1, ACTIVATIONS // TP, **call)
            rows.kernel("unpack", 0, 10 * US, waits=[got], **call)
        done = layers("forward", 200 * US, False)
        if not last:
            rows.point_to_point(Kind.SEND, after, 2, ACTIVATIONS // TP, waits=[done], **call)

    def backward(parts: bool) -> None:
        if not last:
            got = rows.point_to_point(Kind.RECV, after + 1, 3, ACTIVATIONS // TP, **call)
            rows.kernel("unpack", 0, 10 * US, waits=[got], **call)
        done = layers("backward", 400 * US, parts)
        if not first:
            rows.point_to_point(Kind.SEND, before + 1, 4, ACTIVATIONS // TP, waits=[done], **call)

    ahead = min(PP - 1 - stage, micro_batches)
    for _ in range(ahead):
        forward()
    for i in range(micro_batches):
        if ahead + i < micro_batches:
            forward()
        backward(i == micro_batches - 1)
    return rows.build()


class Timed:
    """A communicator that adds up the seconds spent in its collectives."""

    def __init__(self, comm: Any) -> None:
        self._comm, self.seconds = comm, 0.0
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._comm, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--spine", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    from mpi4py import MPI

    whole = program(args.ranks, args.micro_batches)
    network = Nics(args.ranks, args.spine)
    rows = sum(len(whole.table_of(rank)) for rank in range(args.ranks))
    found: dict[str, dict[str, float | str]] = {}
    for title, contention in (("dataflow", False), ("contention", True)):
        comm = Timed(MPI.COMM_WORLD)
        run: Run = simulate(whole, comm, network=network, fold=False, contention=contention)  # type: ignore[arg-type]
        found[title] = {
            "mode": run.mode,
            "plan": run.wall["plan"],
            "simulate": run.wall["simulate"],
            "ns/row": run.wall["simulate"] * 1e9 / rows,
            "MPI": comm.seconds / sum(run.wall.values()),
            "rounds": run.rounds,
            "step ms": run.step_time * 1e-9,
            "domains": run.domains,
            "links": run.links,
            "digest": run.digest[:8],
        }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if comm.rank:
        return
    print(f"{args.ranks:,} ranks, {rows:,} rows, {comm.size} processes, {memory:.0f} MB")
    for key in found["dataflow"]:
        cells = (one[key] for one in found.values())
        shown = (f"{cell:.3f}" if isinstance(cell, float) else f"{cell}" for cell in cells)
        print(f"{key:10}" + "".join(f"{cell:>14}" for cell in shown))
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
