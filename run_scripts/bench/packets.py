#!/usr/bin/env python3
"""How fast packets are simulated: events and packets over links a second, by what is sent.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/packets.py [--size BYTES]

On a DGX H100's nodes below one leaf a rail; seconds are of the CPU, without making the input.
"""

from __future__ import annotations

import argparse
import time

from mpisim.base.kinds import Operation
from mpisim.base.text import aligned
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.topo import find_cluster
from mpisim.topo.flows import flow_list
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.packets import flows_of_list, packet_settings
from mpisim.topo.packets._core.simulator import Simulator
from mpisim.topo.packets.plan import packet_input

CASES = ((Operation.ALL_TO_ALL, 4), (Operation.ALL_REDUCE, 4), (Operation.ALL_TO_ALL, 16))


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1 << 24, help="bytes (default: 16 MiB)")
    size = parser.parse_args().size
    settings = packet_settings()
    rows = [("operation", "GPUs", "packets over links", "events", "s", "events/s")]
    for operation, nodes in CASES:
        network = network_of(find_cluster("dgx-h100"), nodes, NetworkChoice())
        assert isinstance(network, NcclNetwork)
        found = flow_list(network, operation, size, list(range(8 * nodes)))
        core = Simulator(packet_input(found.topology, flows_of_list(found), settings), settings)
        began = time.process_time()
        core.run(1 << 62)
        took = time.process_time() - began
        over = int(core.link_packets.sum())
        name = operation.name.lower()
        counts = (f"{over:,}", f"{core.happened:,}", f"{took:.2f}", f"{core.happened / took:,.0f}")
        rows.append((name, str(8 * nodes), *counts))
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
