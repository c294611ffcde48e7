"""Optical circuits: when they are set up, against a reference that goes event by event."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs
from reference.circuits import Communication, run_steps

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.base.text import percentage
from mpisim.experiment import NetworkChoice, load
from mpisim.prediction.circuits import circuits_of, set_up_notes, uses_of, with_set_ups
from mpisim.prediction.network import network_of
from mpisim.prediction.prepared import prepare
from mpisim.program import Operation, Program, ProgramBuilder
from mpisim.simulate import simulate
from mpisim.topo import Cluster, find_cluster
from mpisim.topo.circuits import CircuitSwitch, rounds_of, steady_set_ups
from mpisim.topo.fabrics import Fabric
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.nodes import Node
from mpisim.topo.traffic.steps import collective_steps

SETUP = 20_000_000_000  # 20 ms


def cluster(ports: int) -> Cluster:
    def speed(value: float) -> Quantity:
        return Quantity(value, "GB/s", 0.1, "made up")

    latency = Quantity(20, "ms", 0.1, "made up")
    fabric = Fabric("circuit", link_bandwidth=speed(10), ports=ports, setup_latency=latency)
    return Cluster("made up", "a100-sxm", 1, Node("direct", link_bandwidth=speed(80)), fabric)


def circuit_network(nodes: int, ports: int, *, first_step: bool = False) -> NcclNetwork:
    choice = NetworkChoice(algorithm="ring", first_step=first_step)
    found = network_of(cluster(ports), nodes, choice)
    assert isinstance(found, NcclNetwork)
    return found


def program_of(groups: list[tuple[int, ...]], ranks: int) -> Program:
    """All-reduces of 1 MiB, each rank its own in this order, on one stream."""
    builder = ProgramBuilder()
    names = list(dict.fromkeys(groups))
    communicators = [builder.communicator(group) for group in names]
    for rank in range(ranks):
        table = builder.table(f"rank {rank}")
        mine = [group for group in names if rank in group]
        for group in groups:
            if rank in group:
                table.collective(Operation.ALL_REDUCE, mine.index(group), 0, 1 << 20)
        builder.add_rank(
            builder.add_table(table.build()), [communicators[names.index(g)] for g in mine]
        )
    return builder.build()


def reference_of(
    program: Program, network: NcclNetwork, ports: int, steps: int
) -> list[tuple[int, int, int]]:
    communications = []
    for use in uses_of(program):
        members = program.communicators.group(use.communicator)
        n = len(members)  # of a ring each with the next
        pairs = {tuple(sorted((members[i], members[(i + 1) % n]))) for i in range(n)}
        price = network.price(use.operation, use.bytes, network.placement(members))
        communications.append(Communication(members, [sorted(pairs)], price.duration))
    found = run_steps(communications, ports, SETUP, steps)
    return [(each.duration, each.set_up, each.evicted) for each in found]


def step_time(program: Program, network: NcclNetwork) -> int:
    late = with_set_ups(program, network)
    return engine.simulate(late, network=network, contention=False).step_time


def test_a_circuit_is_set_up_on_first_use_and_after_eviction_alone() -> None:
    switch = CircuitSwitch(ports=2)
    assert [switch.use([[pair]]) for pair in ((0, 1), (0, 2), (0, 1))] == [1, 1, 0]
    assert switch.use([[(0, 3)]]) == 1  # (0, 2) has been idle for longer than (0, 1)
    assert switch.order == [(0, 1), (0, 3)]
    assert switch.use([[(0, 1)]]) == 0
    assert switch.use([[(0, 2)]]) == 1
    assert (switch.set_up, switch.evicted) == (4, 2)


def test_a_circuit_in_use_is_not_evicted() -> None:
    switch = CircuitSwitch(ports=2)
    switch.use([[(0, 1)]])
    switch.use([[(0, 2)]])
    switch.use([[(0, 1), (0, 3)]])  # (0, 1) is older, and needed
    assert switch.order == [(0, 1), (0, 3)]


def test_more_peers_than_ports_go_in_rounds() -> None:
    for n, ports in ((5, 1), (8, 3), (84, 8)):
        steps = collective_steps(Operation.ALL_TO_ALL, "send", range(n), 1)
        rounds = rounds_of(steps, range(n), ports)
        pairs = [pair for each in rounds for pair in each]
        assert len(pairs) == len(set(pairs)) == n * (n - 1) // 2
        for each in rounds:
            assert np.bincount(np.array(each).reshape(-1), minlength=n).max() <= ports
        assert len(rounds) <= 2 * -(-(n - 1) // ports)  # greedy: less than twice the least


def random_groups(seed: int, ranks: int, *, common: bool) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    kinds = []
    for _ in range(rng.randint(1, 4)):
        others = rng.sample(range(1, ranks), rng.randint(1, ranks - 1))
        kinds.append((0, *others) if common or len(others) < 2 else tuple(others))
    return [rng.choice(kinds) for _ in range(rng.randint(1, 8))]


@given(st.integers(0, 2**32), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_one_after_another_it_is_what_happens_event_by_event(seed: int, ports: int) -> None:
    ranks = 7
    program = program_of(random_groups(seed, ranks, common=True), ranks)
    first, *_, last = reference_of(program, circuit_network(ranks, ports), ports, 12)
    for expected, first_step in ((first, True), (last, False)):
        network = circuit_network(ranks, ports, first_step=first_step)
        assert step_time(program, network) == expected[0]
        circuits = circuits_of(network)
        assert circuits is not None
        line = set_up_notes(program, network)[0]
        assert f"sets up {expected[1]} and destroys {expected[2]} " in line


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_with_ports_enough_the_order_does_not_matter(seed: int) -> None:
    ranks = 7
    program = program_of(random_groups(seed, ranks, common=False), ranks)
    first, *_, last = reference_of(program, circuit_network(ranks, ranks), ranks, 3)
    assert step_time(program, circuit_network(ranks, ranks, first_step=True)) == first[0]
    assert step_time(program, circuit_network(ranks, ranks)) == last[0]
    assert last[1] == first[2] == 0


def test_two_rings_on_too_few_ports_evict_each_other_in_every_step() -> None:
    ring, other = tuple(range(7)), (0, 2, 4, 6, 1, 3, 5)
    program = program_of([ring, ring, other], 7)
    for ports, rounds, set_up in ((2, [1, 0, 1], 14), (4, [0, 0, 0], 0)):
        network = circuit_network(7, ports)
        uses = [
            rounds_of(network.steps(use.operation, use.bytes, members)[1], members, ports)
            for use in uses_of(program)
            for members in (program.communicators.group(use.communicator),)
        ]
        found, steady = steady_set_ups(uses, ports)
        assert steady
        assert found.rounds == rounds
        assert found.circuits == found.evicted == set_up


def test_uses_follow_each_rank_and_do_not_stop_at_crossed_orders() -> None:
    """Ranks that issue two communications in opposite orders, on two streams, still have both."""
    builder = ProgramBuilder()
    groups = [builder.communicator((0, 1)), builder.communicator((1, 0))]
    for order in ((0, 1), (1, 0)):
        table = builder.table()
        for slot in order:
            table.collective(Operation.ALL_REDUCE, slot, slot, 1 << 20)
        builder.add_rank(builder.add_table(table.build()), groups)
    program = builder.build()
    assert sorted(use.communicator for use in uses_of(program)) == [0, 1]
    found = with_set_ups(program, circuit_network(2, 1, first_step=True))
    engine.simulate(found, network=circuit_network(2, 1))


@given(programs(max_events=12, unpriced=True), st.integers(1, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_random_programs_are_the_same_folded_and_not(
    program: Program, ports: int, first_step: bool
) -> None:
    network = circuit_network(max(program.n_ranks, 2), ports, first_step=first_step)
    late = with_set_ups(program, network)
    folded, whole = (
        engine.simulate(late, network=network, contention=False, fold=fold)
        for fold in (True, False)
    )
    assert folded.digest == whole.digest
    plain = engine.simulate(program, network=network, contention=False)
    assert plain.step_time <= whole.step_time
    waits = sum(
        int((a.duration != b.duration).sum())
        for a, b in (
            (late.table_of(rank), program.table_of(rank)) for rank in range(program.n_ranks)
        )
    )
    assert (late is program) == (waits == 0)


def test_folded_and_unfolded_steps_are_equal() -> None:
    _, experiment = load("triosim-wafer-vgg19-circuit", ["network.first_step=true"])
    folded, whole = (simulate(experiment, fold=fold) for fold in (None, False))
    assert folded is not None
    assert whole is not None
    assert folded.digest == whole.digest


def test_the_first_all_reduce_of_the_wafer_waits_once_and_no_later_step_does() -> None:
    times = {}
    for name in ("first", "steady"):
        changes = ["plan.overlap.dp=false", f"network.first_step={str(name == 'first').lower()}"]
        _, experiment = load("triosim-wafer-vgg19-circuit", changes)
        found = simulate(experiment)
        assert found is not None
        times[name] = found.step_time
    assert times["first"] - times["steady"] == pytest.approx(0.020, rel=1e-6)
    prepared = prepare(experiment)
    assert "sets up 0 and destroys 0" in set_up_notes(prepared.program, prepared.network)[0]


def test_a_set_up_has_its_own_error_bar_and_answers_to_latency() -> None:
    changes = ["plan.overlap.dp=false", "network.first_step=true", "overlap.model=off"]
    _, experiment = load("triosim-wafer-vgg19-circuit", changes)
    found = simulate(experiment)
    assert found is not None
    (line,) = (
        each for each in found.attributes["uncertainty_sources"] if each.startswith("setup_latency")
    )
    assert f"± 50 % on {percentage(0.020 / found.step_time, 1)} of the step" in line
    assert found.sensitivities is not None
    _, longer = load("triosim-wafer-vgg19-circuit", [*changes, "scale.latency=1.1"])
    slower = simulate(longer)
    assert slower is not None
    derivative = (slower.step_time / found.step_time - 1) / 0.1
    assert derivative > 0.020 / found.step_time  # and what hops and launches take
    known = dict(zip(found.sensitivities.keys, found.sensitivities.elasticity, strict=True))
    assert known["scale.latency"] == pytest.approx(derivative, rel=0.01)


def test_one_key_swaps_the_network_and_nothing_else() -> None:
    swap = ["cluster.preset=wafer-84-circuit"]
    _, swapped = load("triosim-wafer-vgg19-mesh", swap)
    _, optical = load("triosim-wafer-vgg19-circuit")
    _, mesh = load("triosim-wafer-vgg19-mesh")
    programs = [prepare(each).program for each in (swapped, optical, mesh)]
    for program in programs[1:]:
        for mine, other in zip(programs[0].tables, program.tables, strict=True):
            assert (mine.duration == other.duration).all()  # no kernel knows of the network
    found = [simulate(each) for each in (swapped, optical)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].digest == found[1].digest


def test_where_the_ring_goes_by_rank_circuits_take_half_as_the_paper_says() -> None:
    size = 574_668_960  # VGG-19's gradients
    rings = {"wafer-84-mesh": "ranks", "wafer-84-circuit": None}
    times = []
    for name, order in rings.items():
        network = network_of(
            find_cluster(name), 84, NetworkChoice(algorithm="ring", ring_order=order)
        )
        group = network.placement(range(84), Operation.ALL_REDUCE)
        times.append(network.price(Operation.ALL_REDUCE, size, group).duration)
        # Each way round a half, in 2 (n - 1) steps, over links of 60 GB/s and of 60.5.
        link, hops = (60e9, 2) if order else (60.5e9, 1)
        assert times[-1] == pytest.approx(size * 83 / 84 / link * hops * 1e12, rel=0.02)
    assert times[1] / times[0] == pytest.approx(0.5, abs=0.03)  # "nearly half"


def test_collectives_keep_to_the_circuits_of_rings() -> None:
    network = network_of(find_cluster("wafer-84-circuit"), 84)
    assert isinstance(network, NcclNetwork)
    for operation in (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.BROADCAST):
        for size in (1, 1 << 12, 1 << 30):
            _, steps = network.steps(operation, size, range(84))
            ((*pairs,),) = rounds_of(steps, range(84), 8)
            assert {(b - a) % 84 for a, b in pairs} <= {1, 83}


@pytest.mark.parametrize(("n", "size", "room"), [(4, 1 << 20, 30_000), (7, 7 * 99_999, 1e9)])
def test_messages_wait_for_room_at_the_receiver(n: int, size: int, room: float) -> None:
    """A ring, message by message: what fits goes, and the rest when that has been taken."""
    plain = cluster(8)
    assert plain.fabric is not None
    buffer = Quantity(room, "B", 0.1, "made up")
    small = dataclasses.replace(plain, fabric=dataclasses.replace(plain.fabric, buffer=buffer))
    prices = []
    for each in (plain, small):
        network = network_of(each, n, NetworkChoice(algorithm="ring"))
        assert isinstance(network, NcclNetwork)
        group = network.placement(range(n), Operation.ALL_REDUCE)
        prices.append(network.price(Operation.ALL_REDUCE, size, group).duration / 1e12)
    topology = plain.topology(n)
    way = topology.latency[topology.route(0, 1)].sum()
    time = 0.0
    for _ in range(2 * (n - 1)):
        left = size / n / 2  # each way round a half
        while left > 1e-9:
            part = min(left, room)
            time, left = time + part / 10e9 + way, left - part
    launch = prices[0] - (2 * (n - 1) * (size / n / 2 / 10e9 + way))
    assert prices[1] == pytest.approx(launch + time, rel=1e-4)
    assert (prices[1] > prices[0]) == (room < size / n / 2)


def test_other_networks_have_no_circuits() -> None:
    network = network_of(find_cluster("wafer-84-mesh"), 84)
    program = program_of([(0, 1)], 2)
    assert with_set_ups(program, network) is program
    assert set_up_notes(program, network) == ()
    with pytest.raises(InputError, match="has no circuits"):
        network_of(find_cluster("wafer-84-mesh"), 84, NetworkChoice(first_step=True))
    with pytest.raises(InputError, match="first_step is given"):
        NetworkChoice(model="alpha-beta", first_step=True)
    with pytest.raises(InputError, match="at most 2048"):
        dataclasses.replace(cluster(8), gpus_per_node=1).topology(2049)
