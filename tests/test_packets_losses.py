"""Packets that are dropped: closed forms, and an event loop in plain Python to the picosecond."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from packet_flows import BYTES, PLAIN, RATE, US, flow, latency, leaves, star, uneven
from reference.lossy_packets import Links, Sender, run

from mpisim.base.errors import DeadlockError, InputError
from mpisim.topo.packets import (
    PacketFlow,
    PacketRun,
    PacketSettings,
    packet_settings,
    simulate_packets,
)
from mpisim.topo.packets.plan import PacketInput, packet_input
from mpisim.topo.topology import Topology

RECOVERIES = ("go-back-n", "selective-repeat")


def lossy(recovery: str, **more: object) -> PacketSettings:
    """Queues alone, of which switches drop."""
    return replace(PLAIN, recovery=recovery, **more)


def ports(found: PacketRun) -> np.ndarray:
    return np.flatnonzero(found.plan.marking)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_where_nothing_is_lost_it_is_as_without(recovery: str) -> None:
    topology = star(4)
    flows = [flow(topology, a, 3, BYTES // (a + 1), str(a)) for a in range(3)]
    large = lossy(recovery, buffer=1 << 40, drop_share=1000.0)
    found, plain = (simulate_packets(topology, flows, each) for each in (large, PLAIN))
    assert (found.message_end == plain.message_end).all()
    assert (found.link_bytes == plain.link_bytes).all()
    assert found.dropped.sum() == found.resent.sum() == found.timeouts.sum() == 0


@pytest.mark.parametrize("share", [0.25, 1.0, 4.0])
def test_a_queue_takes_its_part_of_the_buffer(share: float) -> None:
    """A queue q that is all of what waits: q <= share (B - q), so q <= share B / (1 + share)."""
    topology, buffer = star(5), 400_000
    flows = [flow(topology, a, 4, BYTES, str(a)) for a in range(4)]
    given_ = lossy("selective-repeat", buffer=buffer, drop_share=share)
    found = simulate_packets(topology, flows, given_)
    expected = share * buffer / (1 + share)
    assert found.dropped.sum() > 0
    assert expected - 2 * PLAIN.mtu < found.queue_max[ports(found)].max() <= expected + PLAIN.mtu


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_lost_tail_waits_for_the_timeout(recovery: str) -> None:
    """Two senders of a packet each into a port that holds none but the one it sends.

    The third packet to come finds the queue full. Nothing is behind it: it is sent again when the
    timeout, from when it was sent, is over, and then takes what a packet takes alone.
    """
    topology = star(4)
    mtu, timeout = PLAIN.mtu, 200 * US
    flows = [flow(topology, a, 3, mtu, str(a)) for a in range(3)]
    tight = lossy(recovery, buffer=mtu, timeout=timeout / 1e12)
    found = simulate_packets(topology, flows, tight)
    alone = simulate_packets(topology, flows[:1], PLAIN)
    first, second, third = np.sort(found.flow_end)
    assert first == alone.duration
    assert second == pytest.approx(first + mtu / RATE * 1e12, abs=2)
    sent = alone.plan.pair_delay[0]
    assert third == timeout + alone.duration
    assert third - sent > timeout
    assert (found.dropped.sum(), found.resent.sum(), found.timeouts.sum()) == (1, 1, 1)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_what_is_sent_again_is_a_window_or_what_is_missing(recovery: str) -> None:
    """Go-back-N sends everything behind a gap again, selective repeat the gap."""
    topology = star(9)
    flows = [flow(topology, a, 8, BYTES, str(a)) for a in range(8)]
    found = simulate_packets(topology, flows, lossy(recovery, buffer=1_000_000, window_rtts=2.0))
    assert found.dropped.sum() > 0
    last = topology.route(0, 8)[-1]
    useful, packets = 8 * BYTES, 8 * -(-BYTES // PLAIN.mtu)
    sent = int(
        found.link_packets[np.unique(found.plan.path_link[found.plan.path_first[:-1]])].sum()
    )
    assert sent == packets + found.resent.sum()
    twice = int(found.resent.sum() - found.dropped.sum())  # arrived, or were thrown away
    if recovery == "selective-repeat":
        # Nothing comes twice but what a timeout took for lost too early.
        assert 0 <= twice <= found.timeouts.sum() * found.plan.window.max() / PLAIN.mtu
        assert found.link_bytes[last] <= useful + twice * PLAIN.mtu
    else:
        assert twice > 0
        assert found.link_bytes[last] > useful
    assert found.duration >= useful / RATE * 1e12 + latency(topology, 0, 8)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_acknowledgements_are_not_dropped(recovery: str) -> None:
    """All data comes, and no more acknowledgements leave than data packets have come."""
    topology, buffer, size = star(5), 400_000, 66
    flows = [flow(topology, a, 4, BYTES, str(a)) for a in range(4)]
    found = simulate_packets(topology, flows, lossy(recovery, buffer=buffer, ack_size=size))
    plan = found.plan
    assert found.dropped.sum() > 0
    assert (found.message_end > 0).all()
    back = plan.path_link[plan.ack_first[0]]  # the first link of all acknowledgements
    assert found.link_bytes[back] == size * found.link_packets[back]
    came = found.link_packets[plan.path_link[plan.path_first[1] - 1]]
    assert 4 * BYTES // PLAIN.mtu * 0.9 < found.link_packets[back] <= came


def test_selective_repeat_is_faster_than_go_back_n() -> None:
    topology = star(9)
    flows = [flow(topology, a, 8, BYTES, str(a)) for a in range(8)]
    times = [
        simulate_packets(topology, flows, lossy(each, buffer=1_000_000, window_rtts=2.0)).duration
        for each in RECOVERIES
    ]
    assert times[1] < times[0]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_ends_are_those_of_plain_python(data: st.DataObject) -> None:
    """Random links, buffers of some packets, queue pairs of several messages, short timeouts."""
    seed, recovery = data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from(RECOVERIES))
    window = data.draw(st.sampled_from([0, 1, 20_000, 100_000]))
    topology, flows, tight = random_losses(seed, recovery, window, data.draw(st.integers(1, 8)))
    try:
        found = simulate_packets(topology, flows, tight)
    except DeadlockError:  # these senders repeat themselves (test_senders_that_repeat_themselves…)
        reject()
    ends, senders = plain_python(found.plan, tight, recovery)
    assert found.message_end.tolist() == ends
    assert found.resent.tolist() == [sender.resent for sender in senders]
    assert found.timeouts.tolist() == [sender.timeouts for sender in senders]


def test_senders_that_repeat_themselves_are_told_from_slow_ones() -> None:
    """All of a stream is sent again after each timeout, and its head is what finds no room."""
    topology, flows, tight = random_losses(3_834_339_929, "go-back-n", 0, 3)
    with pytest.raises(DeadlockError, match="lost and sent again without end"):
        simulate_packets(topology, flows, tight)
    plan = packet_input(topology, flows, tight)
    half, whole = (
        plain_python(plan, tight, "go-back-n", most_events=most)[1] for most in (50_000, 100_000)
    )
    assert [sender.answered for sender in half] == [sender.answered for sender in whole]
    assert (
        sum(after.timeouts - before.timeouts for before, after in zip(half, whole, strict=True))
        > 100
    )


def random_losses(
    seed: int, recovery: str, window: int, pairs: int
) -> tuple[Topology, list[PacketFlow], PacketSettings]:
    """Numbers → links, flows of so many queue pairs, and settings, by chance."""
    rng = np.random.default_rng(seed)
    changed = uneven(leaves(8, 2, 3), rng)
    tight = lossy(
        recovery,
        switching="store-and-forward",
        buffer=int(rng.integers(2 * PLAIN.mtu, 40 * PLAIN.mtu)),
        drop_share=float(rng.uniform(0.5, 4)),
        timeout=float(rng.uniform(2e-6, 300e-6)),
        window=window,
        seed=int(rng.integers(2**31)),
    )
    flows = []
    target = int(rng.integers(8))  # of most
    for i in range(pairs):
        b = target if rng.random() < 0.8 else int(rng.integers(8))
        a = int(rng.choice([each for each in range(8) if each != b]))
        starts = np.sort(rng.integers(0, 30 * US, rng.integers(1, 4)))
        for start in starts.tolist():
            flows.append(flow(changed, a, b, int(rng.integers(1, 200_000)), str(i), start=start))
    return changed, flows, tight


def plain_python(
    plan: PacketInput, tight: PacketSettings, recovery: str, most_events: float = math.inf
) -> tuple[list[int], list[Sender]]:
    """Queue pairs of a plan → ends of messages, and the senders at the end, by the reference."""
    senders, numbers = [], []
    for pair in range(len(plan.cap)):
        first, last = plan.path_first[plan.pair_first[pair] : plan.pair_first[pair] + 2].tolist()
        mine = np.flatnonzero(plan.message_pair == pair)
        starts = plan.message_start[mine] + plan.pair_delay[pair]
        messages = list(zip(plan.message_bytes[mine].tolist(), starts.tolist(), strict=True))
        window_of = float(plan.window[pair])
        timeout, back = int(plan.pair_timeout[pair]), int(plan.pair_return[pair])
        path = plan.path_link[first:last].tolist()
        senders.append(Sender(path, messages, back, timeout, window_of))
        numbers.append(mine)
    links = Links(plan.rate.tolist(), plan.latency.tolist(), plan.target.tolist(), plan.marking > 0)
    selective = recovery == "selective-repeat"
    sizes = tight.mtu, tight.buffer, tight.drop_share
    expected = run(links, senders, *sizes, selective, most_events)
    ends = np.zeros(len(plan.message_pair), np.int64)
    for mine, each in zip(numbers, expected, strict=True):
        ends[mine] = each
    return ends.tolist(), senders


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"pfc": True}, "with PFC nothing is lost"),
        ({"buffer": 100}, "an empty queue takes 100 B, less than a packet"),
        ({"drop_share": 0.001, "buffer": 4096}, "less than a packet"),
        ({"recovery": "go-back"}, "allowed: none, go-back-n, selective-repeat"),
        ({"timeout": 1e9}, "timeout is 1"),
    ],
)
def test_settings_are_checked(more: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        lossy(**({"recovery": "go-back-n"} | more))


def test_the_timeout_covers_a_full_buffer() -> None:
    """By default: a round trip, and all of a buffer at the slowest link of the way."""
    topology = star(3)
    found = simulate_packets(topology, [flow(topology, 0, 1)], packet_settings())
    path = list(found.plan.path_link[found.plan.path_first[0] : found.plan.path_first[1]])
    rates = topology.bandwidth[path]
    trip = 2 * topology.latency[path].sum() + (PLAIN.mtu / rates).sum()
    assert found.plan.pair_trip[0] == pytest.approx(trip * 1e12, abs=1)
    expected = trip + PLAIN.buffer / rates.min()
    assert found.plan.pair_timeout[0] == pytest.approx(expected * 1e12, abs=1)
