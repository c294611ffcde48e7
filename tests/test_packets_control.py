"""HPCC, TIMELY, DCTCP and adaptive routing: fixed points and closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from packet_flows import BYTES, PLAIN, RATE, US, flow, latency, leaves, star

from mpisim.base.errors import InputError
from mpisim.topo import Topology
from mpisim.topo.packets import (
    PacketRun,
    PacketSettings,
    packet_settings,
    simulate_packets,
)
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
    # Senders space their packets, so that at most one of each other sender is before a packet.
    assert found.queue_mean.max() <= 3 * PLAIN.mtu
    port = topology.route(0, 4)[-1]
    # Never more than all first windows together: packets of a window are on links, too.
    assert found.queue_max[port - 1 : port + 1].max() <= found.plan.window.sum() + 4 * PLAIN.mtu
    assert found.notifications.sum() == 0


@pytest.mark.parametrize("target", [0.8, 0.95])
@pytest.mark.parametrize("stages", [0, 5])
def test_increments_of_hpcc_make_rates_equal(target: float, stages: int) -> None:
    """Loads multiply all rates alike; what is added to each takes their differences away.

    In a round trip the load of eta takes from every rate its share of what all increments add, so
    that a difference shrinks by increment / rate: the larger increments, the nearer rates are. With
    the largest here it shrinks to nothing long before rates are looked at, and they are no farther
    apart than increments between two decreases put them.
    """
    topology, flows = incast(4, 600)
    spreads = []
    for rate_ai in ("0.02 Gb/s", "0.08 Gb/s", "0.32 Gb/s"):
        changes = {"hpcc_target": str(target), "hpcc_stages": str(stages), "rate_ai": rate_ai}
        given = packet_settings(changes=changes, congestion="hpcc")
        rates = rates_between(simulate_packets(topology, flows, given), 0.3, 0.9)
        spreads.append(float(rates.std() / rates.mean()))
    assert spreads == sorted(spreads, reverse=True)
    increment = given.control.additive * RATE / given.reference_rate
    assert spreads[-1] <= (stages + 1) * increment / (target * RATE / 1e12 / 4)


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


@pytest.mark.parametrize("congestion", ["hpcc", "hpcc-pint"])
def test_hpcc_needs_one_path(congestion: Any) -> None:
    refused = f"{congestion} follows the links of one path; routing is 'spray'"
    with pytest.raises(InputError, match=refused):
        packet_settings(congestion=congestion, routing="spray")


# --- HPCC-PINT -----------------------------------------------------------------------------------

FINE = {"pint_base": "1.0005", "pint_unit": "1e-5"}
"""Codes that lose next to nothing of a load."""


@pytest.mark.parametrize("target", [0.8, 0.95])
@pytest.mark.parametrize("stages", [0, 5])
def test_fine_codes_of_pint_say_what_hpcc_does(target: float, stages: int) -> None:
    """A port's load, filtered, is in its fixed point what HPCC's senders compute of it."""
    changes = {"hpcc_target": str(target), "hpcc_stages": str(stages)}
    topology, alone = incast(1, 600)
    hpcc = packet_settings(changes=changes, congestion="hpcc")
    pint = packet_settings(changes={**changes, **FINE}, congestion="hpcc-pint")
    runs = [simulate_packets(topology, alone, given) for given in (hpcc, pint)]
    assert runs[1].duration == pytest.approx(runs[0].duration, rel=1e-4)
    topology, flows = incast(4, 600)
    rate, other = (
        rates_between(simulate_packets(topology, flows, given), 0.3, 0.9).sum()
        for given in (hpcc, pint)
    )
    assert other == pytest.approx(rate, rel=0.02)
    # Above eta by all increments at most, as with HPCC.
    assert target * 0.98 <= other / (RATE / 1e12) <= target + 4 * 0.001 * (stages + 1)


@pytest.mark.parametrize("senders", [1, 4])
@pytest.mark.parametrize(("base", "share"), [(1.05, 1), (1.2, 1), (1.05, 1 / 16)])
def test_codes_of_pint_cost_less_than_a_step(senders: int, base: float, share: float) -> None:
    """A code is at most a factor of `base` above the load: a port has eta / base of its rate."""
    topology, flows = incast(senders, 600)
    changes = {"pint_base": str(base), "pint_share": str(share)}
    given = packet_settings(changes=changes, congestion="hpcc-pint")
    found = simulate_packets(topology, flows, given)
    load = rates_between(found, 0.3, 0.9).sum() / (RATE / 1e12)
    assert 0.95 / base <= load <= 0.95 + senders * 0.001 * 6
    assert found.queue_mean.max() <= 3 * PLAIN.mtu


def test_codes_of_pint_are_drawn_by_the_seed() -> None:
    topology, flows = incast(4, 50)
    ends = [
        simulate_packets(topology, flows, packet_settings(congestion="hpcc-pint", seed=seed))
        for seed in (3, 3, 4)
    ]
    assert np.array_equal(ends[0].message_end, ends[1].message_end)
    assert not np.array_equal(ends[0].message_end, ends[2].message_end)


def test_pint_reports_the_fullest_of_several_ports() -> None:
    """Of a way over two switches the second one's port has half the rate."""
    topology = leaves(4, 2, 1)
    route = topology.route(0, 2)
    slow = topology.bandwidth.copy()
    slow[route[-1]] = slow[route].min() / 2
    slowed = replace(topology, bandwidth=slow)
    given = packet_settings(congestion="hpcc-pint", changes=FINE)
    found = simulate_packets(slowed, [flow(slowed, 0, 2, BYTES)], given)
    expected = BYTES / (0.95 * slow[route[-1]]) * 1e12 + latency(slowed, 0, 2)
    assert found.duration == pytest.approx(expected, rel=0.05)


# --- TIMELY --------------------------------------------------------------------------------------


@pytest.mark.parametrize("congestion", ["dcqcn", "hpcc", "hpcc-pint", "timely", "dctcp"])
def test_answers_with_bytes_slow_no_sender_that_is_alone_on_its_way(congestion: Any) -> None:
    """The way back has room: an answer takes what it takes on its links longer, no data waits."""
    topology = star(3)
    alone = [flow(topology, 0, 2)]
    short = packet_settings(congestion=congestion)
    found, answered = (
        simulate_packets(topology, alone, each) for each in (short, replace(short, ack_size=66))
    )
    assert answered.duration == pytest.approx(found.duration, rel=2e-3)
    back = answered.plan.path_link[answered.plan.ack_first[0]]
    assert 0.98 * BYTES // 4096 < answered.link_packets[back] <= BYTES // 4096


def test_timely_alone_keeps_the_line() -> None:
    topology, flows = incast(1, 300)
    runs = [
        simulate_packets(topology, flows, packet_settings(congestion=each))
        for each in ("timely", "none")
    ]
    assert runs[0].duration == runs[1].duration


@pytest.mark.parametrize("decrease", [0.4, 0.8])
def test_timely_above_its_threshold_shrinks_to_the_least_rate(decrease: float) -> None:
    """Every round trip is twice T_high: each cuts the rate by beta / 2, down to the least.

    The first acknowledgement begins a round trip, and the one behind it cuts first.
    """
    topology, flows = incast(1, 300)
    trip = simulate_packets(topology, flows, PLAIN).plan.pair_trip[0]
    half = f"{trip / 2 / US} us"
    changes = {"timely_low": half, "timely_high": half, "timely_beta": str(decrease)}
    given = packet_settings(congestion="timely", changes={**changes, "min_rate": "8 Gb/s"})
    found = simulate_packets(topology, flows, given)
    line, least = RATE / 1e12, given.control.least * RATE / given.reference_rate
    more, rate = line - least, line  # bytes beyond the least rate's, over a round trip
    while rate > least:
        more += rate - least
        rate *= 1 - decrease / 2
    expected = (300 * (1 << 16) - more * trip) / least
    assert found.duration == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("senders", [2, 4])
def test_timely_keeps_round_trips_below_its_threshold(senders: int) -> None:
    """The queue waits for less than T_high, and is shorter than without control.

    How much of the port is used has no bound: TIMELY has no fixed point (Zhu et al., CoNEXT 2016),
    its rates swing, and where they sum up to less than the port's the queue runs empty.
    """
    topology, flows = incast(senders, 2400)
    found = simulate_packets(topology, flows, packet_settings(congestion="timely", pfc=False))
    rates = rates_between(found, 0.4, 0.9)
    assert rates.sum() <= RATE / 1e12 * (1 + 1e-3)
    waits = found.queue_mean.max() / RATE * 1e12
    assert waits < 500 * US
    endless = simulate_packets(topology, flows, PLAIN)
    assert found.queue_mean.max() < endless.queue_mean.max()


# --- DCTCP ---------------------------------------------------------------------------------------


def dctcp(mark: int) -> PacketSettings:
    """Packets of 1,500 bytes; switches mark what finds more than so many of them."""
    threshold = str(mark * 1500)
    changes = {"mtu": "1500", "kmin": threshold, "kmax": threshold, "pmax": "1"}
    changes["reference_rate"] = f"{RATE * 8 / 1e9} Gb/s"
    return packet_settings(congestion="dctcp", pfc=False, changes=changes)


@pytest.mark.parametrize(("senders", "mark"), [(2, 40), (4, 40), (8, 60), (2, 65)])
def test_windows_of_dctcp_are_the_papers_sawtooth(senders: int, mark: int) -> None:
    """Alizadeh et al., SIGCOMM 2010, section 3.3, equations 8 to 10, for windows in step.

    The queue swings below K + N packets by sqrt(2 N (C RTT + K)) / 2, and a window is cut every
    sqrt(2 (C RTT + K) / N) / 2 round trips. The first windows, which double, are part of the mean.
    """
    topology, flows = incast(senders, 400)
    found = simulate_packets(topology, flows, dctcp(mark))
    rate = RATE / 1e12 / 1500  # packets per ps
    window = rate * found.plan.pair_trip[0] + mark  # C RTT + K
    swing = np.sqrt(2 * senders * window) / 2
    mean = mark + senders - swing / 2
    assert found.queue_mean.max() / 1500 == pytest.approx(mean, rel=0.05)
    cuts = found.duration / (np.sqrt(2 * window / senders) / 2 * window / rate)
    assert found.notifications.mean() == pytest.approx(cuts, rel=0.2)
    # K is more than C RTT / 7 (equation 13): the queue never runs empty.
    assert found.link_bytes.max() / (RATE / 1e12 * found.duration) > 0.99
    assert found.flow_end.min() > 0.9 * found.flow_end.max()


def test_first_windows_of_dctcp_double() -> None:
    """10, 20 and 40 packets, in three round trips, of which the last ends at the receiver."""
    topology = star(2)
    (one,) = [flow(topology, 0, 1, 70 * 1500)]
    found = simulate_packets(topology, [one], dctcp(65))
    trip, packet = found.plan.pair_trip[0], 1500 / RATE * 1e12
    assert found.plan.pair_trip[0] > 40 * packet  # no window fills the path
    way = latency(topology, 0, 1)
    assert found.duration == pytest.approx(2 * trip + way + 40 * packet, rel=0.1)


@pytest.mark.parametrize(
    ("parameters", "changes"), [("sigcomm2015", {"window_scales": "1"}), ("simai", {})]
)
def test_dctcp_has_no_windows_that_shrink_with_rates(
    parameters: str, changes: dict[str, str]
) -> None:
    with pytest.raises(InputError, match=r"window_scales is 1: allowed with it: 0$"):
        packet_settings(parameters, changes, congestion="dctcp")
    packet_settings(parameters, {"window_scales": "0"}, congestion="dctcp")


def test_dctcp_has_no_losses() -> None:
    with pytest.raises(InputError, match="dctcp's window follows marks alone; recovery is 'go-b"):
        packet_settings(congestion="dctcp", pfc=False, recovery="go-back-n")


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
