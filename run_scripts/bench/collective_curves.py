#!/usr/bin/env python3
"""Where curves of communications run backwards: times, or bus bandwidths, that fall with the size.

    .venv/bin/python run_scripts/bench/collective_curves.py [--clusters NAME ...] [--json FILE]

Of every cluster that comes along, every operation, and groups of all GPUs on 1, 2, 4, 16 and 64
nodes (one curve each), sizes from 1 KiB to 16 GiB are predicted, 12 a doubling. A curve is printed
if its time falls by more than 1 % below that of some smaller message, or its bus bandwidth by more
than 5 %, with the size where most of that is lost from one size to the next, and the choice of
NCCL's before and after. Those where the choice stays the same are the model's own; the others are
the tuner's.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import nccl_model
from mpisim.program import Operation
from mpisim.topo import cluster_names, find_cluster
from mpisim.topo.nccl import Choice, Nccl, Shape
from mpisim.topo.nccl.model import COLLECTIVES
from mpisim.topo.nccl.point_to_point import SEND_OPERATIONS

NODES = (1, 2, 4, 16, 64)
SIZES = np.round(2.0 ** (10 + np.arange(12 * 24 + 1) / 12)).astype(np.int64)
TIME, BANDWIDTH = 0.01, 0.05
"""Falls that are printed."""

Floats = NDArray[np.float64]


class Fall(NamedTuple):
    """A curve that runs backwards.

    `amount` is relative to the best value of smaller messages; `bytes` is the first size after the
    largest step down, `before` and `after` NCCL's choices beside it.
    """

    cluster: str
    operation: str
    nodes: int
    kind: str
    amount: float
    bytes: int
    before: str
    after: str

    @property
    def own(self) -> bool:
        """Whether NCCL's choice stays the same where the curve falls most."""
        return self.before == self.after


def falls(nccl: Nccl, operation: Operation, shape: Shape) -> Iterator[tuple[str, float, int]]:
    """Yield what falls of one curve, by how much, and the index after the largest step."""
    seconds = nccl.seconds_of(operation, SIZES, shape)
    for kind, values, most in (("time", seconds, TIME), ("bandwidth", SIZES / seconds, BANDWIDTH)):
        amount = float(np.max(1 - values / np.maximum.accumulate(values)))
        if amount > most:
            yield kind, amount, int(np.argmin(values[1:] / values[:-1])) + 1


def named(choice: Choice) -> str:
    """Return a choice in words; sends have NCCL's number of connections to a peer."""
    channels = f" {choice.channels} ch" if choice.algorithm == "send" else ""
    return f"{choice.algorithm} {choice.protocol}{channels}"


def scan(cluster: str) -> tuple[int, list[Fall]]:
    """Return how many curves a cluster has, and those that run backwards."""
    found = find_cluster(cluster)
    try:
        nccl, _ = nccl_model(found, NetworkChoice())
    except InputError:
        return 0, []
    count, fallen = 0, []
    for nodes in NODES:
        if nodes > 1 and not nccl.system.nics:
            continue
        shape = Shape.regular(nodes, found.gpus_per_node, nccl.system)
        if shape.ranks == 1:
            continue
        for operation in sorted(COLLECTIVES | SEND_OPERATIONS):
            count += 1
            for kind, amount, at in falls(nccl, operation, shape):
                beside = [nccl.choose(operation, int(SIZES[i]), shape) for i in (at - 1, at)]
                before, after = (named(each) for each in beside)
                name = operation.name.lower()
                fallen.append(
                    Fall(cluster, name, nodes, kind, amount, int(SIZES[at]), before, after)
                )
    return count, fallen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", nargs="+", metavar="NAME", default=cluster_names())
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    curves, fallen = 0, []
    for cluster in args.clusters:
        count, found = scan(cluster)
        curves += count
        fallen += found
    for each in fallen:
        why = "same choice: " if each.own else "NCCL's choice: "
        change = each.before if each.own else f"{each.before} -> {each.after}"
        print(
            f"{each.cluster:18} {each.operation:14} {each.nodes:3} nodes  {each.kind:9} "
            f"-{100 * each.amount:4.1f} %  at {each.bytes:11}  {why}{change}"
        )
    for kind in ("time", "bandwidth"):
        of_kind = Counter(
            "same choice" if each.own else "NCCL's choice" for each in fallen if each.kind == kind
        )
        parts = ", ".join(f"{count} {why}" for why, count in sorted(of_kind.items()))
        print(f"{kind}: {of_kind.total()} of {curves} curves fall ({parts or 'none'})")
    if args.json is not None:
        args.json.write_text(json.dumps([each._asdict() for each in fallen], indent=1) + "\n")


if __name__ == "__main__":
    main()
