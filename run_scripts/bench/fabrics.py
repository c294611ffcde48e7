#!/usr/bin/env python3
"""What communications reach on fabrics of any capacity, beside what no algorithm can beat.

    .venv/bin/python run_scripts/bench/fabrics.py [--gpus 16,64,256,1024] [--size 4G] [--json FILE]

Prices all-reduce, all-gather, all-to-all and send/receive (from the first GPU to the last) of all
GPUs on each fabric, with its own links (those between switches, or between GPUs that have no cards)
at 5 capacities, and prints a table in Markdown: bytes of the full buffer per second, and that over
the bound. The bound is the least over partitions into equal parts (1, 2, 4, ... GPUs each) of what
must leave them over what the links out of a part carry (largest flow), and what NCCL reaches where
no link limits it. A share above 1 would be an error; below 1 the algorithm moves more bytes over
some link than a better one would, or latencies count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpisim.base.quantity import Quantity
from mpisim.program import Operation
from mpisim.topo import Cluster, Topology, class_of, find_cluster
from mpisim.topo.bounds import bytes_across_cut, max_flow, partition_bound
from mpisim.topo.fabrics import Fabric
from mpisim.topo.link_library import LinkLibrary
from mpisim.topo.nccl import Nccl
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.nccl_system import cluster_system, listed_system
from mpisim.topo.network import Price
from mpisim.topo.nodes import Node
from mpisim.topo.topology import LinkKind

OPERATIONS = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.ALL_TO_ALL, Operation.SEND_RECV)
CAPACITIES = (4.0, 1.0, 0.25, 0.0625, 0.01)
EFFICIENCY = Quantity(0.978, "1", 0.05, "as dgx-h100")


def square(n: int) -> tuple[int, int]:
    """Return two numbers, as equal as possible, of which n is the product."""
    low = next(i for i in range(int(n**0.5), 0, -1) if n % i == 0)
    return n // low, low


def fabrics(nodes: int) -> dict[str, dict[str, Any]]:
    """Return the fabrics for so many nodes of eight GPUs."""
    leaf = max(1, nodes // 8)
    link = Quantity(400, "GB/s", 0, "as the cards of a node")
    return {
        "switch": {"kind": "switch"},
        "rail fat tree": {"kind": "rail-fat-tree", "leaf": leaf},
        "fat tree 2:1": {"kind": "fat-tree", "leaf": 8 * leaf, "oversubscription": 2.0},
        "fat tree 8:1": {"kind": "fat-tree", "leaf": 8 * leaf, "oversubscription": 8.0},
        "torus": {"kind": "torus", "dims": square(nodes), "link_bandwidth": link},
        "dragonfly": {
            "kind": "dragonfly",
            "router_ports": 8,
            "routers": max(1, nodes // 4),
            "global_links": 4,
            "link_bandwidth": link,
        },
    }


def graph(nodes: int, folder: Path) -> Cluster:
    """Return nodes of two GPUs with a card each, in two halves that one thick link joins."""
    entries, links = [], []
    for node in range(nodes):
        entries.append(f"{{ name = 'nv{node}', kind = 'nvswitch' }},")
        for i in (0, 1):
            gpu, card = f"gpu{node}-{i}", f"nic{node}-{i}"
            entries.append(f"{{ name = '{gpu}', kind = 'gpu' }},")
            entries.append(f"{{ name = '{card}', kind = 'nic' }},")
            half = f"half{int(2 * node >= nodes)}"
            links += [(gpu, f"nv{node}", 300), (gpu, card, 55), (card, half, 48.9)]
    entries += ["{ name = 'half0', kind = 'switch' },", "{ name = 'half1', kind = 'switch' },"]
    links.append(("half0", "half1", 48.9 * nodes))
    text = ["nodes = [", *entries, "]"]
    text += [f"[[links]]\nends = ['{a}', '{b}']\nbandwidth = '{gb} GB/s'" for a, b, gb in links]
    path = folder / f"graph{nodes}.toml"
    path.write_text("\n".join(text), encoding="utf-8")
    return Cluster("an own graph", "h100-sxm", 2, graph=str(path))


def wafer(n: int) -> Cluster:
    """Return a wafer of n GPUs without cards."""
    link, all_links = Quantity(60, "GB/s", 0, "a design"), Quantity(240, "GB/s", 0, "four links")
    return Cluster(
        "a wafer",
        "h100-sxm",
        1,
        Node("direct", link_bandwidth=all_links),
        Fabric("wafer", dims=square(n), link_bandwidth=link),
    )


def clusters(n: int, folder: Path) -> dict[str, Cluster]:
    """Return machines with n GPUs, by their fabrics."""
    base = find_cluster("dgx-h100")
    found = {
        name: dataclasses.replace(base, fabric=Fabric(nic_efficiency=EFFICIENCY, **keys))
        for name, keys in fabrics(n // 8).items()
    }
    return found | {"wafer": wafer(n), "own graph": graph(n // 2, folder)}


def network(cluster: Cluster, topology: Topology) -> NcclNetwork:
    """Return NCCL's or no library on a topology, without calibrations: those are of cards."""
    if cluster.has_direct_gpus(topology):
        return NcclNetwork(LinkLibrary(topology, cluster.gpus_per_node), topology)
    if cluster.graph:
        return NcclNetwork(Nccl(listed_system(cluster, topology)), topology, measured=False)
    return NcclNetwork(Nccl(cluster_system(cluster)), topology)


def scaled(topology: Topology, factor: float) -> Topology:
    """Return a topology with the links between its switches changed."""
    fabric = topology.kind == LinkKind.FABRIC
    return dataclasses.replace(
        topology, bandwidth=np.where(fabric, topology.bandwidth * factor, topology.bandwidth)
    )


def flows(topology: Topology, n: int) -> dict[int, float]:
    """Return what the first 1, 2, 4, ... GPUs can send to all others, by their number."""
    sizes = [1 << i for i in range(n.bit_length()) if 1 << i <= n // 2]
    return {size: max_flow(topology, topology.gpu[:size], topology.gpu[size:n]) for size in sizes}


def bound(
    operation: Operation, size: int, n: int, reach: dict[int, float], in_network: bool, pair: float
) -> float:
    """Return the highest lower bound of a time, in seconds."""
    if operation is Operation.SEND_RECV:
        return bytes_across_cut(operation, size, 1, 2) / pair
    return max(
        partition_bound(operation, size, n, n // part, capacity, reduced_in_network=in_network)
        for part, capacity in reach.items()
    )


def rows(cluster: Cluster, n: int, size: int, factor: float) -> list[dict[str, Any]]:
    """Price all operations of n GPUs."""
    topology = scaled(cluster.topology(n // cluster.gpus_per_node), factor)
    net = network(cluster, topology)
    reach = flows(topology, n)
    pair = max_flow(topology, topology.gpu[:1], topology.gpu[n - 1 : n])
    found = []
    for operation in OPERATIONS:
        members = [0, n - 1] if operation is Operation.SEND_RECV else list(range(n))
        begun = time.perf_counter()
        group = class_of(net, members, operation)
        price = net.price(operation, size, group)
        assert isinstance(price.pattern, tuple)
        free = net.nccl_price(operation, size, group)
        least = bound(operation, size, n, reach, "nvls" in price.pattern[1], pair)
        reachable = max(least, seconds(free))
        found.append(
            {
                "operation": operation.name.lower(),
                "algorithm": price.pattern[1],
                "seconds": seconds(price),
                "bound": least,
                "nccl": seconds(free),
                "share": reachable / seconds(price),
                "limit": net.limit_of(operation, size, group),
                "wall": time.perf_counter() - begun,
            }
        )
    return found


def seconds(price: Price) -> float:
    """Return the duration of a price."""
    return price.duration * 1e-12


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--gpus", default="16,64,256,1024")
    parser.add_argument("--size", type=int, default=4 << 30, help="bytes of the full buffer")
    parser.add_argument("--json")
    args = parser.parse_args()
    table: list[dict[str, Any]] = []
    print("| fabric | GPUs | links | " + " | ".join(o.name.lower() for o in OPERATIONS) + " |")
    print("| --- " * (3 + len(OPERATIONS)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for n in map(int, args.gpus.split(",")):
            for name, cluster in clusters(n, Path(folder)).items():
                for factor in CAPACITIES if name != "switch" else (1.0,):
                    found = rows(cluster, n, args.size, factor)
                    table += [{"fabric": name, "gpus": n, "links": factor, **row} for row in found]
                    cells = [
                        f"{args.size / r['seconds'] / 1e9:.3g} ({r['share']:.2f})" for r in found
                    ]
                    print(f"| {name} | {n} | {factor:g} | " + " | ".join(cells) + " |", flush=True)
    print("\nShares of the bound, over all numbers of GPUs and capacities:\n")
    print("| fabric | " + " | ".join(o.name.lower() for o in OPERATIONS) + " |")
    print("| --- " * (1 + len(OPERATIONS)) + "|")
    for name in dict.fromkeys(row["fabric"] for row in table):
        ranges = []
        for operation in OPERATIONS:
            shares = [
                row["share"]
                for row in table
                if (row["fabric"], row["operation"]) == (name, operation.name.lower())
            ]
            ranges.append(f"{min(shares):.2f} to {max(shares):.2f}")
        print(f"| {name} | " + " | ".join(ranges) + " |")
    highest = max(row["share"] for row in table)
    slowest = max(row["wall"] for row in table)
    print(f"\nhighest share of a bound {highest:.4f}; slowest price {slowest:.1f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    sys.exit(highest > 1 + 1e-3)  # flows are exact to 1 part in 10,000


if __name__ == "__main__":
    main()
