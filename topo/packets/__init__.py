"""Packet-level simulation: queues, congestion control, PFC or losses, ECMP paths.

Read ``settings`` (what there is to set), ``parameters`` (their values, with sources in
``data/packets.toml``), ``flows`` (bytes to send, from a table or a communication), ``paths`` (links
of a flow → its paths), ``plan`` (flows → queue pairs with their paths, messages and their waits),
``_core/`` (events), ``run`` (the result), ``store`` (its files).
"""

from .flows import PacketFlow, flows_of_list, read_flows
from .parameters import packet_settings
from .run import PacketRun, simulate_packets
from .settings import PacketSettings

__all__ = [
    "PacketFlow",
    "PacketRun",
    "PacketSettings",
    "flows_of_list",
    "packet_settings",
    "read_flows",
    "simulate_packets",
]
