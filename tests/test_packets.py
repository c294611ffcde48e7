"""Packets: closed forms, an event loop in plain Python, ECMP's chances, DCQCN, PFC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fabrics
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_flows import BYTES, PLAIN, RATE, US, flow, latency, leaves, star, uneven
from reference.packets import ends

from mpisim.base.errors import DeadlockError, InputError
from mpisim.base.kinds import Operation
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.topo import Topology, find_cluster
from mpisim.topo.flows import flow_list
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.packets import (
    PacketRun,
    flows_of_list,
    packet_settings,
    simulate_packets,
)
from mpisim.topo.topology import LinkKind


def outside(topology: Topology, a: int, b: int) -> int:
    """Links of a way from the sender's NIC on."""
    kinds = topology.kind[topology.route(a, b)]
    return len(kinds) - int(np.argmax(kinds >= LinkKind.NIC))


def packets_of(bytes: int) -> int:
    return -(-bytes // PLAIN.mtu)


# --- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes", [1, 4096, 4097, BYTES])
def test_one_flow_takes_its_bytes_over_the_rate(bytes: int) -> None:
    topology = star(2)
    found = simulate_packets(topology, [flow(topology, 0, 1, bytes)], PLAIN)
    expected = latency(topology, 0, 1) + bytes / RATE * 1e12
    assert found.duration == pytest.approx(expected, abs=packets_of(bytes) + 10_000)
    assert found.queue_max.max() <= PLAIN.mtu


def test_stored_packets_take_a_packet_more_for_each_switch() -> None:
    topology = star(2)
    stored = replace(PLAIN, switching="store-and-forward")
    runs = [simulate_packets(topology, [flow(topology, 0, 1)], each) for each in (PLAIN, stored)]
    # The switch and the receiver's NIC: behind the first of them as fast as before, then faster.
    assert outside(topology, 0, 1) == 4
    more = PLAIN.mtu / RATE + 2 * PLAIN.mtu / 1e12
    assert runs[1].duration - runs[0].duration == pytest.approx(more * 1e12, rel=0.01)


@pytest.mark.parametrize("packets", [1, 2, 3])
def test_a_window_has_its_packets_under_way_each_round_trip(packets: int) -> None:
    """Packet and acknowledgement go to and fro: so many packets in that time, or at the rate."""
    topology, count = star(2), 30
    bytes = count * PLAIN.mtu
    windowed = replace(PLAIN, window=packets * PLAIN.mtu)
    free = simulate_packets(topology, [flow(topology, 0, 1, bytes)], PLAIN)
    found = simulate_packets(topology, [flow(topology, 0, 1, bytes)], windowed)
    plan = found.plan
    single = simulate_packets(topology, [flow(topology, 0, 1, PLAIN.mtu)], PLAIN)
    trip = int(single.duration - plan.pair_delay[0] + plan.pair_return[0])
    takes = math.ceil(PLAIN.mtu / plan.rate[plan.path_link[0]])
    assert packets * takes < trip  # the window holds it back
    last = (count - 1) // packets * trip + (count - 1) % packets * takes
    assert found.duration == single.duration + last
    assert found.duration > 1.2 * free.duration


@pytest.mark.parametrize("size", [66, 1024])
def test_acknowledgements_take_their_share_of_links_both_ways(size: int) -> None:
    """Data of either direction shares its links with as many acknowledgements of the other's."""
    topology = star(2)
    both = [flow(topology, 0, 1), flow(topology, 1, 0)]
    found = simulate_packets(topology, both, replace(PLAIN, ack_size=size))
    way, one = latency(topology, 0, 1), (PLAIN.mtu + size) / RATE * 1e12
    most = way + BYTES // PLAIN.mtu * one
    # As the last packet leaves, those on their way are not answered, nor the ones behind a queue.
    unanswered = way / one + outside(topology, 0, 1)
    assert most - unanswered * size / RATE * 1e12 <= found.duration <= most + 10_000
    one_way = simulate_packets(topology, both[:1], replace(PLAIN, ack_size=size))
    free = simulate_packets(topology, both[:1], PLAIN)
    assert one_way.duration == free.duration
    back = one_way.plan.path_link[one_way.plan.ack_first[0] :]
    packets = BYTES // PLAIN.mtu
    assert one_way.link_bytes[back[0]] == pytest.approx(packets * size, rel=0.01)
    assert not set(back.tolist()) & set(topology.route(0, 1).tolist())


def test_acknowledgements_wait_for_their_turn_where_windows_wait_for_them() -> None:
    """A window of a packet: each round trip has a packet there and an acknowledgement back."""
    topology, count, size = star(2), 10, 1024
    windowed = replace(PLAIN, window=PLAIN.mtu, switching="store-and-forward")
    one = flow(topology, 0, 1, count * PLAIN.mtu)
    by_latency = simulate_packets(topology, [one], windowed)
    found = simulate_packets(topology, [one], replace(windowed, ack_size=size))
    plan = found.plan
    way = plan.path_link[plan.ack_first[0] : plan.ack_first[1]]
    longer = sum(math.ceil(size / rate) for rate in plan.rate[way])
    assert found.duration - by_latency.duration == (count - 1) * longer


def test_links_without_a_way_back_cannot_answer() -> None:
    topology = star(2)
    cut = topology.bandwidth.copy()
    back = topology.route(1, 0)
    cut[back[topology.kind[back] >= LinkKind.NIC][0]] = 0
    with pytest.raises(InputError, match=r"no link leads back beside .*ack_size bytes$"):
        simulate_packets(
            replace(topology, bandwidth=cut), [flow(topology, 0, 1)], replace(PLAIN, ack_size=66)
        )


def test_a_window_of_a_round_trip_costs_nothing_alone_and_bounds_an_incast() -> None:
    topology, senders = star(9), 8
    alone = [flow(topology, 0, 8)]
    windowed = replace(PLAIN, window_rtts=1)
    times = [simulate_packets(topology, alone, each).duration for each in (PLAIN, windowed)]
    assert times[1] == pytest.approx(times[0], rel=2e-3)
    flows = [flow(topology, a, 8) for a in range(senders)]
    found, free = (simulate_packets(topology, flows, each) for each in (windowed, PLAIN))
    assert found.duration == pytest.approx(free.duration, rel=2e-3)
    windows = found.plan.window.sum() + senders * PLAIN.mtu
    assert found.queue_max.max() <= windows < free.queue_max.max() / 10


@pytest.mark.parametrize("control", ["none", "dcqcn"])
def test_windows_shrink_with_rates_alone(control: Any) -> None:
    """Scaled windows are whole as long as senders keep the line's rate."""
    topology, senders = star(9), 8
    flows = [flow(topology, a, 8, 4 * BYTES) for a in range(senders)]
    fixed, scaled = (
        simulate_packets(
            topology,
            flows,
            packet_settings(
                changes={"window_rtts": "4", "window_scales": scales}, congestion=control
            ),
        )
        for scales in ("0", "1")
    )
    assert np.array_equal(fixed.message_end, scaled.message_end) == (control == "none")
    for found in (fixed, scaled):
        assert found.queue_max.max() <= found.plan.window.sum() + senders * PLAIN.mtu


@pytest.mark.parametrize("control", ["none", "dcqcn"])
def test_two_flows_into_one_port_share_it(control: Any) -> None:
    topology = star(3)
    flows = [flow(topology, a, 2) for a in (0, 1)]
    found = simulate_packets(topology, flows, packet_settings(congestion=control))
    assert found.duration >= 2 * BYTES / RATE * 1e12
    if control == "none":
        expected = latency(topology, 0, 2) + 2 * BYTES / RATE * 1e12
        assert found.duration == pytest.approx(expected, rel=1e-3)
        assert found.flow_end[0] == pytest.approx(found.flow_end[1], rel=2e-3)


@pytest.mark.parametrize("pfc", [False, True])
def test_incast_of_unequal_flows_is_processor_sharing(pfc: bool) -> None:
    """Every flow ends when all of it, and as much of each other, is through the last port."""
    sizes = [k * BYTES // 4 for k in (1, 2, 5, 3, 8)]
    topology = star(6)
    flows = [flow(topology, a, 5, size) for a, size in enumerate(sizes)]
    found = simulate_packets(topology, flows, replace(PLAIN, pfc=pfc, buffer=4_000_000))
    for size, end in zip(sizes, found.flow_end):
        expected = latency(topology, 0, 5) + sum(min(size, each) for each in sizes) / RATE * 1e12
        assert end == pytest.approx(expected, rel=0.02)
    assert (found.pauses.sum() > 0) == pfc


def test_queue_pairs_of_one_sender_take_turns() -> None:
    topology = star(3)
    flows = [flow(topology, 0, b, channel=str(b)) for b in (1, 2)]
    found = simulate_packets(topology, flows, PLAIN)
    assert found.flow_end[0] == pytest.approx(found.flow_end[1], abs=PLAIN.mtu / RATE * 2.1e12)
    together = [flow(topology, 0, 1), flow(topology, 0, 1)]  # one queue pair: in order
    found = simulate_packets(topology, together, PLAIN)
    assert found.flow_end[1] - found.flow_end[0] == pytest.approx(BYTES / RATE * 1e12, rel=1e-3)


@pytest.mark.parametrize("hops", [2, 5])
def test_a_chain_is_pipelined_by_chunks(hops: int) -> None:
    topology = star(hops + 1)
    chunks = 16
    cut = replace(PLAIN, chunk=BYTES // chunks)
    flows = [flow(topology, i, i + 1, step=i) for i in range(hops)]
    found = simulate_packets(topology, flows, cut)
    one = BYTES / chunks / RATE * 1e12
    expected = (chunks + hops - 1) * one + hops * latency(topology, 0, 1)
    assert found.duration == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("repeats", [1, 6])
def test_steps_of_a_ring_follow_each_other(repeats: int) -> None:
    n = 4
    topology = star(n)
    flows = [flow(topology, i, (i + 1) % n, 1 << 16, repeats=repeats) for i in range(n)]
    found = simulate_packets(topology, flows, PLAIN)
    one = latency(topology, 0, 1) + (1 << 16) / RATE * 1e12
    assert found.duration == pytest.approx(repeats * one, rel=0.01)


def test_a_flow_begins_when_it_is_said_to() -> None:
    topology = star(2)
    found = simulate_packets(topology, [flow(topology, 0, 1, start=50 * US)], PLAIN)
    assert found.flow_begin[0] >= 50 * US
    assert found.flow_end[0] >= 50 * US + BYTES / RATE * 1e12


# --- an event loop that shares nothing with the compiled one --------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_ends_are_those_of_plain_python(data: st.DataObject) -> None:
    """With windows, from one packet to more than a round trip, and acknowledgements of any size."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    changed = uneven(leaves(8, 2, 3), rng)
    flows = []
    for i in range(data.draw(st.integers(1, 12))):
        a, b = rng.choice(8, 2, replace=False)
        size, start = int(rng.integers(1, 200_000)), int(rng.integers(0, 30 * US))
        flows.append(flow(changed, int(a), int(b), size, str(i), start=start))
    window = data.draw(st.sampled_from([0, 1, 5_000, 20_000, 100_000]))
    plain = replace(
        PLAIN,
        switching="store-and-forward",
        seed=int(rng.integers(2**31)),
        window=window,
        ack_size=data.draw(st.sampled_from([0, 66, PLAIN.mtu])),
    )
    found = simulate_packets(changed, flows, plain)
    plan = found.plan
    messages, answers = [], []
    for number, pair in enumerate(plan.message_pair.tolist()):
        path = int(plan.pair_first[pair])
        first, last = plan.path_first[path : path + 2].tolist()
        start = int(plan.message_start[number] + plan.pair_delay[pair])
        links = plan.path_link[first:last].tolist()
        messages.append((links, int(plan.message_bytes[number]), start))
        begin, end = plan.ack_first[path : path + 2].tolist()
        answers.append((plan.path_link[begin:end].tolist(), int(plan.ack_delay[path])))
    capped = plan.cap[plan.message_pair] < plan.rate[[links[0] for links, _, _ in messages]]
    assert not capped.any()  # the reference has no links inside of senders' nodes
    windows, back = (array[plan.message_pair].tolist() for array in (plan.window, plan.pair_return))
    given = (windows, back) if window else ((), ())
    also = (answers, plain.ack_size) if plain.ack_size else ()
    expected, carried = ends(
        plan.rate.tolist(), plan.latency.tolist(), messages, plain.mtu, *given, *also
    )
    assert found.message_end.tolist() == expected
    # The last acknowledgements are still on their way; some may set out as the last message ends.
    last = max(expected)
    before, by_then = (sum(n for time, n in carried if time < end) for end in (last, last + 1))
    assert before <= found.link_bytes.sum() <= by_then
    assert before >= sum(len(links) * bytes for links, bytes, _ in messages)  # nothing is lost


# --- ECMP ----------------------------------------------------------------------------------------


def expected_fullest(flows: int, paths: int) -> float:
    """Balls into bins, exactly: the mean of the fullest."""
    count = sum(max(np.bincount(each)) for each in itertools.product(range(paths), repeat=flows))
    return count / paths**flows


@pytest.mark.parametrize(("flows", "paths"), [(2, 2), (4, 4), (6, 3)])
def test_collisions_are_as_frequent_as_chance_has_them(flows: int, paths: int) -> None:
    from mpisim.topo.packets.plan import packet_input

    topology = leaves(2 * flows, flows, paths)
    sent = [flow(topology, i, flows + i) for i in range(flows)]
    up = np.flatnonzero((topology.kind == LinkKind.FABRIC) & (topology.share < 1))
    fullest = []
    for seed in range(200):
        plan = packet_input(topology, sent, replace(PLAIN, seed=seed))
        fullest.append(plan.chosen[up].max() / BYTES)
    error = np.std(fullest) / math.sqrt(len(fullest))
    assert np.mean(fullest) == pytest.approx(expected_fullest(flows, paths), abs=4 * error)


@pytest.mark.parametrize("seed", range(4))
def test_packets_take_what_the_fullest_path_takes(seed: int) -> None:
    topology = leaves(8, 4, 4)
    sent = [flow(topology, i, 4 + i) for i in range(4)]
    found = simulate_packets(topology, sent, replace(PLAIN, seed=seed))
    assert found.duration == pytest.approx(found.collided, rel=0.02)
    assert found.collided >= found.even * (1 - 1e-12)


def test_sprayed_packets_use_all_paths() -> None:
    topology = leaves(8, 4, 4)
    sent = [flow(topology, i, 4 + i) for i in range(4)]
    found = simulate_packets(topology, sent, replace(PLAIN, routing="spray"))
    assert found.duration == pytest.approx(found.even, rel=0.05)
    up = found.link_bytes[(topology.kind == LinkKind.FABRIC) & (found.link_bytes > 0)]
    assert up.min() == pytest.approx(up.max(), rel=0.15)


# --- PFC -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders", [2, 7])
def test_pauses_bound_what_waits(senders: int) -> None:
    """Lossless: no port fills more than its share, and what was on its link as it was paused."""
    topology = star(senders + 1)
    flows = [flow(topology, a, senders) for a in range(senders)]
    paused = replace(PLAIN, pfc=True, buffer=1_000_000)
    found = simulate_packets(topology, flows, paused)
    switch = topology.names.index("switch")
    headroom = 2 * topology.latency.max() * RATE + 2 * PLAIN.mtu
    share = paused.pfc_share * paused.buffer
    assert 0 < found.buffer_max[switch] <= senders * (share + headroom)
    assert found.pauses.sum() > 0
    assert found.link_bytes[topology.route(0, senders)[-1]] == senders * BYTES  # all has come
    unpaused = simulate_packets(topology, flows, PLAIN)
    assert unpaused.pauses.sum() == 0
    assert unpaused.buffer_max[switch] > found.buffer_max[switch]
    assert found.duration == pytest.approx(unpaused.duration, rel=0.01)


def test_a_pause_holds_up_flows_that_go_elsewhere() -> None:
    """Head of line: a flow whose own way is free waits behind a paused link."""
    topology = leaves(8, 4, 1)
    incast = [flow(topology, a, 4, channel=str(a)) for a in range(3)]
    victim = flow(topology, 3, 5, BYTES // 2, "victim")
    alone = simulate_packets(topology, [victim], PLAIN).flow_end[0]
    paused = simulate_packets(topology, [*incast, victim], replace(PLAIN, pfc=True, buffer=500_000))
    free = simulate_packets(topology, [*incast, victim], PLAIN)
    assert free.flow_end[3] < 1.1 * alone
    assert paused.flow_end[3] > 1.5 * alone


def test_a_circle_of_pauses_is_named() -> None:
    topology = fabrics.direct(1, kind="torus", dims=(4,)).topology(4)
    flows = [flow(topology, i, (i + 2) % 4, channel=str(i)) for i in range(4)]
    forward = [each for each in flows if len(each.links) > 2]
    assert len(forward) == 4
    small = replace(PLAIN, pfc=True, buffer=20_000)
    ring = [
        each._replace(
            links=tuple(topology.route(i, (i + 1) % 4).tolist())[:-1]
            + tuple(topology.route((i + 1) % 4, (i + 2) % 4).tolist())[1:]
        )
        for i, each in enumerate(forward)
    ]
    with pytest.raises(DeadlockError, match="wait for each other in a circle"):
        simulate_packets(topology, ring, small)
    assert simulate_packets(topology, ring, replace(small, pfc=False)).duration > 0


# --- ECN and DCQCN -------------------------------------------------------------------------------


def test_packets_are_marked_between_the_thresholds() -> None:
    topology = star(3)
    flows = [flow(topology, a, 2) for a in (0, 1)]
    low = replace(PLAIN, reference_rate=RATE)
    port = topology.route(0, 2)
    never = simulate_packets(topology, flows, replace(low, kmin=10**9, kmax=2 * 10**9))
    assert never.link_marked.sum() == 0
    always = simulate_packets(topology, flows, replace(low, kmin=0, kmax=1))
    waited = always.link_marked[port].sum()
    assert waited > 0.9 * packets_of(BYTES)
    half = simulate_packets(topology, flows, replace(low, kmin=1, kmax=10**12, pmax=1.0))
    assert half.link_marked.sum() < 0.01 * waited


def test_marks_grow_with_the_queue() -> None:
    """Two senders into one port: the queue rises evenly to the bytes of one, and then falls."""
    topology = star(3)
    flows = [flow(topology, a, 2) for a in (0, 1)]
    ramp = replace(PLAIN, reference_rate=RATE, kmin=0, kmax=2 * BYTES, pmax=1.0)
    marked = [
        int(simulate_packets(topology, flows, replace(ramp, seed=seed)).link_marked.sum())
        for seed in range(8)
    ]
    many, share = 2 * packets_of(BYTES), 0.25  # on arrival half of BYTES in the mean, of 2 BYTES
    error = math.sqrt(many * share * (1 - share) / len(marked))
    assert np.mean(marked) == pytest.approx(many * share, abs=4 * error)
    half = replace(ramp, kmin=BYTES // 2, kmax=BYTES, pmax=0.5)  # the upper half: 0 to 0.5
    found = simulate_packets(topology, flows, half).link_marked.sum()
    error = math.sqrt(many / 2 * share)
    assert found == pytest.approx(many / 2 * share, abs=4 * error)


def throughput(found: PacketRun, flows: Sequence[int], begin: int, end: int) -> list[float]:
    """Bytes per second of flows between two times, from the ends of their messages."""
    rates = []
    for number in flows:
        mine = found.plan.message_flow == number
        inside = mine & (found.message_end > begin) & (found.message_end <= end)
        rates.append(float(found.plan.message_bytes[inside].sum()) / (end - begin) * 1e12)
    return rates


@pytest.mark.parametrize("senders", [2, 4])
def test_long_flows_come_to_a_fair_share(senders: int) -> None:
    """As in the paper: flows that start at different times share a port of 40 Gb/s alike."""
    topology = star(senders + 1)
    topology = replace(topology, bandwidth=np.where(topology.kind == LinkKind.NIC, 5e9, 1e12))
    flows = [
        flow(topology, a, senders, 1 << 18, str(a), repeats=3000 // senders, start=a * 5000 * US)
        for a in range(senders)
    ]
    found = simulate_packets(topology, flows, packet_settings())
    begin, end = int(found.duration * 0.4), int(found.flow_end.min())
    rates = np.array(throughput(found, range(senders), begin, end))
    fairness = rates.sum() ** 2 / (senders * (rates**2).sum())  # Jain's index
    assert fairness > 0.95
    assert rates.sum() > 0.9 * 5e9
    assert found.notifications.min() > 0
    port = int(topology.route(0, senders)[-3])
    assert found.queue_mean[port] < 300_000  # about kmax


def test_dcqcn_keeps_queues_short() -> None:
    topology = star(9)
    flows = [flow(topology, a, 8) for a in range(8)]
    queues = [
        simulate_packets(topology, flows, packet_settings(congestion=control, pfc=False))
        for control in ("none", "dcqcn")
    ]
    assert queues[1].queue_mean.max() < 0.5 * queues[0].queue_mean.max()
    assert queues[1].duration >= queues[0].duration


# --- beside the flow model -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "variables", "within"),
    [(Operation.ALL_TO_ALL, {}, 0.03), (Operation.ALL_GATHER, {"NCCL_ALGO": "ring"}, 0.1)],
)
def test_without_collisions_it_is_the_flow_model(
    operation: Operation, variables: dict[str, str], within: float
) -> None:
    network = network_of(find_cluster("h100-roce"), 2, NetworkChoice(nccl=variables))
    assert isinstance(network, NcclNetwork)
    size, members = 1 << 28, list(range(16))
    found = flow_list(network, operation, size, members)
    large = packet_settings(changes={"mtu": "65536"})  # and so fewer
    run = simulate_packets(found.topology, flows_of_list(found), large)
    np.testing.assert_allclose(run.link_bytes.sum() / run.plan.chosen.sum(), 1, rtol=1e-3)
    assert run.duration == pytest.approx(run.even, rel=within)
    assert run.notifications.sum() == 0


def test_one_input_has_one_result() -> None:
    topology = leaves(8, 4, 4)
    flows = [flow(topology, a, b, channel=f"{a}{b}") for a in range(4) for b in range(4, 8)]
    runs = [simulate_packets(topology, flows, packet_settings(seed=seed)) for seed in (3, 3, 4)]
    assert (runs[0].message_end == runs[1].message_end).all()
    assert (runs[0].message_end != runs[2].message_end).any()
