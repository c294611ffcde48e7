"""HPCC, TIMELY and adaptive routing: fixed points and closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from packet_flows import BYTES, PLAIN, RATE, US, flow, latency, leaves, star

from mpisim.base.errors import InputError
from mpisim.topo import Topology
from mpisim.topo.packets import PacketRun, packet_settings, simulate_packets
from mpisim.topo.topology import LinkKind


def rates_between(found: PacketRun, begin: float, end: float) -> np.ndarray:
    """Bytes per ps of each flow between two shares of the time, from the ends of its messages."""
    times = found.duration * np.array([begin, end])
    inside = (found.message_end > times[0]) & (found.message_end <= times[1])
    bytes = np.bincount(
        found.plan.message_flow[inside],
        found.plan.message_bytes[inside],
        minlength=len(found.flows),
    )
    return np.asarray(bytes / (times[1] - times[0]))


def incast(senders: int, repeats: int, **more: int) -> tuple[Topology, list]:
    topology = star(senders + 1)
    flows = [
        flow(topology, a, senders, 1 << 16, str(a), repeats=repeats, **more) for a in range(senders)
    ]
    return topology, flows


# --- HPCC ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.8, 0.95])
@pytest.mark.parametrize("stages", [0, 5])
def test_hpcc_keeps_a_port_at_its_target(target: float, stages: int) -> None:
    """In the fixed point the port's load is eta, without a queue: it sends eta of its rate."""
    topology, flows = incast(4, 600)
    changes = {"hpcc_target": str(target), "hpcc_stages": str(stages)}
    given = packet_settings(changes=changes, congestion="hpcc")
    found = simulate_packets(topology, flows, given)
    rates = rates_between(found, 0.3, 0.9)
    # Increments lift the load above eta: by at most their sum over the flows, each 1/1000 of a
    # line's rate, for each stage.
    more = 4 * 0.001 * (stages + 1)
    assert target * 0.98 <= rates.sum() / (RATE / 1e12) <= target + more
    fairness = rates.sum() ** 2 / (4 * (rates**2).sum())
    assert fairness > 0.95
    port = topology.route(0, 4)[-1]
    queues = [simulate_packets(topology, flows, each).queue_mean.max() for each in (given, PLAIN)]
    assert queues[0] < 0.05 * queues[1]
    # Never more than all first windows together: packets of a window are on links, too.
    assert found.queue_max[port - 1 : port + 1].max() <= found.plan.window.sum() + 4 * PLAIN.mtu
    assert found.notifications.sum() == 0


def test_hpcc_alone_sends_at_its_target_too() -> None:
    topology, flows = incast(1, 600)
    found = simulate_packets(topology, flows, packet_settings(congestion="hpcc"))
    assert rates_between(found, 0.2, 0.9).sum() == pytest.approx(0.95 * RATE / 1e12, rel=0.03)


def test_hpcc_frees_what_a_flow_leaves() -> None:
    """A flow that shares a port with one that ends takes the whole port soon after."""
    topology = star(3)
    flows = [
        flow(topology, 0, 2, 1 << 16, "0", repeats=300),
        flow(topology, 1, 2, 1 << 16, "1", repeats=100),
    ]
    found = simulate_packets(topology, flows, packet_settings(congestion="hpcc"))
    expected = 400 * (1 << 16) / (0.95 * RATE) * 1e12
    assert found.duration == pytest.approx(expected, rel=0.08)


def test_hpcc_cuts_its_rate_to_the_slowest_link() -> None:
    """Alone at a port of half its rate: the rate is cut to eta of it, and no queue stays."""
    topology = star(2)
    route = topology.route(0, 1)
    port = [link for link in route.tolist() if topology.names[topology.source[link]] == "switch"]
    slow = topology.bandwidth.copy()
    slow[port] = slow[route].min() / 2
    slowed = replace(topology, bandwidth=slow)
    flows = [flow(slowed, 0, 1, BYTES)]
    found = simulate_packets(slowed, flows, packet_settings(congestion="hpcc", pfc=False))
    expected = BYTES / (0.95 * slow[port[0]]) * 1e12 + latency(slowed, 0, 1)
    assert found.duration == pytest.approx(expected, rel=0.05)
    assert found.queue_max[port[0]] <= found.plan.window[0] + PLAIN.mtu


def test_hpcc_needs_one_path() -> None:
    with pytest.raises(InputError, match="hpcc follows the links of one path; routing is 'spray'"):
        packet_settings(congestion="hpcc", routing="spray")


# --- TIMELY --------------------------------------------------------------------------------------


def test_timely_alone_keeps_the_line() -> None:
    topology, flows = incast(1, 300)
    runs = [
        simulate_packets(topology, flows, packet_settings(congestion=each))
        for each in ("timely", "none")
    ]
    assert runs[0].duration == runs[1].duration


@pytest.mark.parametrize("senders", [2, 4])
def test_timely_keeps_round_trips_below_its_threshold(senders: int) -> None:
    """The queue waits for less than T_high, and the port is used.

    To nearly all of its rate, not all: TIMELY has no fixed point (Zhu et al., CoNEXT 2016), its
    rates swing, and where they sum up to less than the port's the queue runs empty.
    """
    topology, flows = incast(senders, 2400)
    found = simulate_packets(topology, flows, packet_settings(congestion="timely", pfc=False))
    rates = rates_between(found, 0.4, 0.9)
    assert 0.75 * RATE / 1e12 < rates.sum() <= RATE / 1e12 * (1 + 1e-3)
    waits = found.queue_mean.max() / RATE * 1e12
    assert waits < 500 * US
    endless = simulate_packets(topology, flows, PLAIN)
    assert found.queue_mean.max() < endless.queue_mean.max()


def test_thresholds_of_timely_are_checked() -> None:
    with pytest.raises(InputError, match="it must be at most timely_high, which is"):
        packet_settings(changes={"timely_low": "1 ms"}, congestion="timely")


# --- adaptive routing ----------------------------------------------------------------------------


@pytest.mark.parametrize("spines", [2, 4])
def test_adaptive_paths_do_not_collide(spines: int) -> None:
    """As many flows as spines: each finds a spine of its own, packet by packet."""
    topology = leaves(8, 4, spines)
    sent = [flow(topology, i, 4 + i) for i in range(4)]
    adaptive, sprayed = (
        simulate_packets(topology, sent, replace(PLAIN, routing=each))
        for each in ("adaptive", "spray")
    )
    assert adaptive.duration == pytest.approx(adaptive.even, rel=0.03)
    assert adaptive.duration <= sprayed.duration
    fabric = (topology.kind == LinkKind.FABRIC) & (adaptive.link_bytes > 0)
    up = adaptive.link_bytes[fabric]
    assert up.min() == pytest.approx(up.max(), rel=0.03)
    assert adaptive.link_bytes.sum() == sprayed.link_bytes.sum()
    assert adaptive.queue_max[fabric].max() < sprayed.queue_max[fabric].max()


def test_adaptive_paths_go_round_a_slow_link() -> None:
    """A spine at a quarter of the rate gets what it can carry: time is bytes over all uplinks."""
    topology = leaves(8, 4, 4)
    fabric = np.flatnonzero((topology.kind == LinkKind.FABRIC) & (topology.share < 1))
    names = [topology.link_name(link) for link in fabric.tolist()]
    slow = topology.bandwidth.copy()
    mine = [link for link, name in zip(fabric, names, strict=True) if "spine0" in name]
    assert mine
    slow[mine] /= 4
    changed = replace(topology, bandwidth=slow)
    sent = [flow(changed, i, 4 + i, 4 * BYTES) for i in range(4)]
    found = simulate_packets(changed, sent, replace(PLAIN, routing="adaptive"))
    assert found.duration == pytest.approx(4 * 4 * BYTES / (3.25 * RATE) * 1e12, rel=0.06)
    sprayed = simulate_packets(changed, sent, replace(PLAIN, routing="spray"))
    assert sprayed.duration == pytest.approx(4 * 4 * BYTES / RATE * 1e12, rel=0.06)


def test_one_input_has_one_result() -> None:
    topology = leaves(8, 4, 4)
    flows = [flow(topology, a, b, channel=f"{a}{b}") for a in range(4) for b in range(4, 8)]
    for more in ({"congestion": "hpcc"}, {"congestion": "timely"}, {"routing": "adaptive"}):
        runs = [simulate_packets(topology, flows, packet_settings(seed=3, **more)) for _ in "ab"]
        assert (runs[0].message_end == runs[1].message_end).all()
