#!/usr/bin/env python3
"""How fast flows that share links are solved: 1,024 and 4,096 NICs under one spine of 4:1.

    .venv/bin/python run_scripts/bench/sharing.py [--events N] [--json FILE]

Every NIC (50 GB/s; or all different, within 20 %) belongs to a ring of eight over the spine and
sends to its neighbour, under the same switch. Each of these communications begins again after it
has ended: at once in the *full* case, where the spine is always full; after about four times as
long as it takes alone in the *sparse* case, where it sometimes is. An event is a beginning or an
end. The event loop around the solver is Python's: only calls of the solver are timed, in
CPU time, less what timing a call that does nothing takes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpisim.engine._core.sharing import Sharing
from mpisim.topo.network import rate_of

NIC = 50e9
UNIT = 1 << 20
RING = 8
WEIGHT = 2 * (RING - 1) * UNIT // RING  # what a NIC sends in an all-reduce, per payload
VOLUME = 64 << 20


def spine(nics: int, spread: float, rng: random.Random) -> tuple[Sharing, np.ndarray]:
    """The solver, and the rate each route has when alone."""
    bandwidth = [NIC * (1 + spread * (rng.random() - 0.5)) for _ in range(nics)]
    capacity = np.array([rate_of(b) for b in [*bandwidth, nics * NIC / 4]], np.int64)
    routes = []
    for first in range(0, nics, RING):
        ring = [(nic, WEIGHT) for nic in range(first, first + RING)]
        routes.append([*ring, (nics, RING * WEIGHT)])
    routes += [[(nic, UNIT), ((nic + 1) % nics, UNIT)] for nic in range(nics)]
    legs = np.array([leg for route in routes for leg in route], np.int64)
    index = np.cumsum([0, *map(len, routes)]).astype(np.int64)
    alone = np.array([min(int(capacity[k]) * UNIT // w for k, w in route) for route in routes])
    return Sharing(capacity, index, legs[:, 0].copy(), legs[:, 1].copy()), alone


def played(nics: int, spread: float, pause: float, events: int) -> dict[str, Any]:
    """Play `events` events; return nanoseconds an event, and flows a solve."""
    rng = random.Random(nics)
    solver, alone = spine(nics, spread, rng)
    caps = (0.9 * alone).astype(int).tolist()
    longest = [(VOLUME << 40) // cap for cap in caps]
    arrivals = [(int(rng.random() * (1 + pause) * longest[i]), i) for i in range(len(caps))]
    heapq.heapify(arrivals)
    done, inside, calls = 0, 0, 0
    clock = time.thread_time_ns

    def timed(call: Callable[..., int | None], *arguments: int) -> int | None:
        nonlocal inside, calls
        before = clock()
        found = call(*arguments)
        inside += clock() - before
        calls += 1
        return found

    warm = 2 * len(caps)  # until the state no longer shows how it began
    while done < warm + events:
        if done < warm:
            inside = calls = solves = solved = counted = 0
        start = done
        at = min(timed(solver.next_end) or 0, arrivals[0][0] if arrivals else 1 << 62)
        while (flow := timed(solver.pop_ended, at)) >= 0:  # type: ignore[operator]
            again = at + int(pause * longest[flow] * (0.5 + rng.random()))
            heapq.heappush(arrivals, (again, flow))
            done += 1
        while arrivals and arrivals[0][0] == at:
            flow = heapq.heappop(arrivals)[1]
            timed(solver.begin, flow, flow, at, int(VOLUME * (0.5 + rng.random())), caps[flow])
            done += 1
        before = solver.n_solves, solver.n_solved
        timed(solver.solve, at)
        solves += solver.n_solves - before[0]
        solved += solver.n_solved - before[1]
        counted += done - start
    overhead = min(_empty() for _ in range(5))
    return {
        "nics": nics,
        "spread": spread,
        "load": "sparse" if pause else "full",
        "events": counted,
        "ns an event": round((inside - calls * overhead) / counted),
        "flows a solve": round(solved / solves, 1),
        "ns a flow solved": round((inside - calls * overhead) / solved),
    }


def _empty() -> float:
    """Nanoseconds that timing a call which does nothing takes."""
    clock, total, n = time.thread_time_ns, 0, 20_000
    call = abs
    for _ in range(n):
        before = clock()
        call(1)
        total += clock() - before
    return total / n


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    for nics in (1024, 4096):
        for spread in (0.0, 0.2):
            for pause in (4.0, 0.0):
                found.append(played(nics, spread, pause, arguments.events))
                print(", ".join(f"{key} {value}" for key, value in found[-1].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
