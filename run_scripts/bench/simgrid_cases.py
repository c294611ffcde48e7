#!/usr/bin/env python3
"""Make tests/simgrid_cases.json: ends of flows that share links, as SimGrid 3.32 finds them.

    python3 run_scripts/bench/simgrid_cases.py tests/simgrid_cases.json

Needs the Python bindings of SimGrid (Debian: python3-simgrid) and nothing of mpisim. Links have no
latency, so that the fluid model CM02 is plain max-min fairness: no bound by TCP's window, no weight
by round-trip time, no traffic of acknowledgements.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from typing import Any

SETTINGS = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "surf/precision:1e-12",
)
GB = 1e9


def flow(start: float, route: list[int], volume: float, cap: float | None = None) -> dict[str, Any]:
    """A flow: seconds, links, bytes, bytes per second."""
    return {"start": start, "route": route, "volume": int(volume), "cap": cap}


def by_hand() -> list[dict[str, Any]]:
    """Cases that one can work out."""
    return [
        {
            "name": "two flows, one link",
            "bandwidth": [50 * GB],
            "flows": [flow(0, [0], 1e8), flow(0, [0], 3e8)],
        },
        {
            "name": "a flow joins another",
            "bandwidth": [50 * GB],
            "flows": [flow(0, [0], 2e8), flow(1e-3, [0], 1e8)],
        },
        {
            "name": "four NICs under a spine of 4:1",
            "bandwidth": [50 * GB] * 4 + [50 * GB],
            "flows": [flow(1e-4 * i, [i, 4], 1e8) for i in range(4)],
        },
        {
            "name": "one slow link",
            "bandwidth": [50 * GB, 10 * GB, 50 * GB],
            "flows": [flow(0, [0, 1], 1e8), flow(0, [0, 2], 1e8), flow(0, [2], 2e8)],
        },
        {
            "name": "a chain: one flow over all links, one over each",
            "bandwidth": [40 * GB] * 5,
            "flows": [flow(0, [*range(5)], 1e8), *(flow(0, [i], 1e8 * (i + 1)) for i in range(5))],
        },
        {
            "name": "capped flows leave the rest to others",
            "bandwidth": [50 * GB],
            "flows": [flow(0, [0], 1e8, 5 * GB), flow(0, [0], 1e8, 12 * GB), flow(0, [0], 3e8)],
        },
    ]


def at_random(seed: int) -> dict[str, Any]:
    """Links of different bandwidths, routes over one to four of them, flows in two waves."""
    rng = random.Random(seed)
    n = rng.randint(3, 10)
    flows = []
    for _ in range(rng.randint(4, 24)):
        route = rng.sample(range(n), rng.randint(1, min(4, n)))
        start = rng.choice([0, 0, 1e-3]) + rng.random() * 2e-3
        cap = rng.uniform(2, 30) * GB if rng.random() < 0.3 else None
        flows.append(flow(round(start, 7), route, rng.uniform(1e6, 2e8), cap))
    bandwidth = [round(rng.uniform(10, 60), 2) * GB for _ in range(n)]
    return {"name": f"random {seed}", "bandwidth": bandwidth, "flows": flows}


def simulated(case: dict[str, Any]) -> list[float]:
    """Return the end of every flow, in seconds. SimGrid runs once in a process."""
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

    options = [f"--cfg={setting}" for setting in SETTINGS]
    engine = Engine(["cases", *options, "--log=root.thres:warning"])
    zone = NetZone.create_full_zone("zone")
    links = [
        zone.create_link(f"link {i}", bandwidth).set_latency(0).seal()
        for i, bandwidth in enumerate(case["bandwidth"])
    ]
    ends = [0.0] * len(case["flows"])

    def send(number: int, source: Any, target: Any) -> None:
        one = case["flows"][number]
        this_actor.sleep_until(one["start"])
        Comm.sendto_async(source, target, one["volume"]).wait()
        ends[number] = Engine.clock

    for i, one in enumerate(case["flows"]):
        # A pair of hosts for every flow: its route is its own.
        source, target = (zone.create_host(f"{side} {i}", 1e9).seal() for side in ("from", "to"))
        route = [LinkInRoute(links[k]) for k in one["route"]]
        if one["cap"] is not None:  # a link of its own: SimGrid's Comm.set_rate comes too late here
            own = zone.create_link(f"cap {i}", one["cap"]).set_latency(0).seal()
            route.append(LinkInRoute(own))
        zone.add_route(source.netpoint, target.netpoint, None, None, route, False)
        Actor.create(f"sender {i}", source, send, i, source, target)
    zone.seal()
    engine.run()
    return ends


def main() -> None:
    """Write all cases with their ends."""
    import simgrid

    cases = [*by_hand(), *map(at_random, range(14))]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for case, ends in zip(cases, pool.map(simulated, cases, chunksize=1)):
            case["ends"] = ends
    made = {
        "made by": "run_scripts/bench/simgrid_cases.py",
        "simgrid": simgrid.simgrid_version,
        "settings": list(SETTINGS),
        "units": "bandwidth and cap bytes/s, volume bytes, start and ends s",
        "cases": cases,
    }
    with open(sys.argv[1], "w") as file:
        json.dump(made, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
