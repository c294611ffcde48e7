"""Communications that share links, on one process: by hand, and long ones against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contended import Links
from reference.comparison import assert_matches
from reference.simulation import simulate as expect

from mpisim.base.errors import DeadlockError
from mpisim.engine import simulate
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# --- by hand ------------------------------------------------------------------------------------


def steps(sizes: list[tuple[int, int]], groups: list[list[int]], n_ranks: int) -> Program:
    """Ranks that work and then all-reduce: (work in ps, bytes) for each of some groups."""
    builder = ProgramBuilder()
    for rank in range(n_ranks):
        rows = builder.table(f"rank {rank}")
        bound = []
        for (work, size), group in zip(sizes, groups, strict=True):
            if rank in group:
                rows.kernel("work", 0, work)
                rows.collective(Operation.ALL_REDUCE, len(bound), 0, size)
                bound.append(builder.communicator(group))
        builder.add_table(rows.build())
        builder.add_rank(rank, bound)
    return builder.build()


def wires(*links: float, **settings: int) -> Links:
    """Every rank loads the link of its node of two; `links` are capacities in bytes per ps."""
    routes = tuple(((rank // 2, 1.0),) for rank in range(2 * len(links)))
    return Links(links, {"nic": routes}, **settings)  # type: ignore[arg-type]


def test_two_groups_over_one_nic() -> None:
    """Ranks 0 and 1 on one node, 2 and 3 on another; each pair across shares both NICs."""
    program = steps([(100, 1000), (300, 1000)], [[0, 2], [1, 3]], 4)
    run = simulate(program, network=wires(1, 1, latency=50), fold=False)
    # The first flows alone from 150 to 350: 200 of its 1000 bytes. Then each has 1/2: the first
    # needs 1600 ps for the other 800, until 1950. The second has sent 800 by then, and its last
    # 200 have the NIC alone: until 2150.
    assert [run.rows(r).end.tolist() for r in range(4)] == [[100, 1950], [300, 2150]] * 2
    assert [run.rows(r).wire.tolist()[1] for r in range(4)] == [100, 300] * 2
    assert (run.mode, run.contended, run.domains, run.links) == ("relaxation", 2, 1, 2)


def test_nothing_shared_is_dataflow_mode() -> None:
    """A NIC that carries both at their highest rates holds nobody back."""
    program = steps([(100, 1000), (300, 1000)], [[0, 2], [1, 3]], 4)
    run = simulate(program, network=wires(2, 2, latency=50), fold=False)
    assert [run.rows(r).end.tolist()[1] for r in range(4)] == [100 + 1050, 300 + 1050] * 2
    assert (run.mode, run.contended, run.domains, run.links) == ("dataflow", 0, 0, 0)
    shared = simulate(program, network=wires(1, 1, latency=50), contention=False)
    assert (shared.digest, shared.mode) == (run.digest, "dataflow")


def test_oversubscribed_tree() -> None:
    """Four pairs over their own NICs of 1 byte/ps and one spine of 1: a quarter each."""
    nic = tuple(((rank % 4, 1.0), (4, 0.5)) for rank in range(8))
    network = Links((1, 1, 1, 1, 1), {"tree": nic}, rate=1.0)
    # Both members of a pair load its NIC, so that alone it has 1/2 as well.
    program = steps([(0, 1000)] * 4, [[i, i + 4] for i in range(4)], 8)
    run = simulate(program, network=network, fold=False)
    assert run.rank_end.tolist() == [4000] * 8
    assert run.links == 5
    alone = simulate(steps([(0, 1000)], [[0, 4]], 8), network=network, fold=False)
    assert alone.step_time == 2000


def test_slow_link() -> None:
    """Two groups over three nodes: one is held back by a slow link, the other has what is left."""
    # Group A on nodes 0 and 1, B on 1 and 2; capacities 3, 4 and 1 bytes/ps; rates up to 4.
    program = steps([(0, 4000), (0, 4000)], [[0, 2], [3, 4]], 6)
    run = simulate(program, network=wires(3, 4, 1, rate=4), fold=False)
    # B is held to 1 by node 2: 4000 ps. A has 3 (node 0; node 1 leaves it 4 - 1 = 3): 1334 ps.
    assert run.rank_end.tolist() == [1334, 0, 1334, 4000, 4000, 0]


def test_send_beside_an_all_reduce() -> None:
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        pair = builder.communicator((0, 2) if rank in (0, 2) else (1, 3))
        if rank in (0, 2):
            rows.collective(Operation.ALL_REDUCE, 0, 1, 3000)
        else:
            rows.host(500)
            kind = Kind.SEND if rank == 1 else Kind.RECV
            row = rows.point_to_point(kind, 0, 0, 300)
            rows.kernel("next", 1, 10, waits=[row])
        builder.add_table(rows.build())
        builder.add_rank(rank, [pair])
    network = Links(
        (1, 1),
        {
            "ring": tuple(((rank // 2, 1.0),) for rank in range(4)),
            "pair": tuple(((rank // 2, 1.0),) for rank in range(4)),
        },
        by_operation={Operation.SEND_RECV: "pair"},
    )
    run = simulate(builder.build(), network=network, critical_path=True, fold=False)
    # The all-reduce has 1 until 500, then 1/2 until the message of 300 is through at 1100 (800
    # bytes by then), then 1 again for the other 2200.
    assert run.rank_end.tolist() == [3300, 1110, 3300, 1110]
    assert run.critical_path is not None
    assert run.critical_path.end.tolist() == [3300]


def test_two_patterns_of_one_group_and_what_is_too_small_to_flow() -> None:
    program = steps([(0, 1000), (0, 10)], [[0, 2], [1, 3]], 4)
    run = simulate(program, network=wires(1, 1, latency=50, small=10), fold=False)
    assert run.rank_end.tolist() == [1050, 50, 1050, 50]
    assert run.mode == "dataflow"


def test_next_operation_follows_at_once() -> None:
    """A communicator's operations take turns; another's fills in."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        for size in (100, 100) if rank % 2 == 0 else (50, 250):
            rows.collective(Operation.ALL_REDUCE, 0, 0, size)
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    run = simulate(builder.build(), network=wires(1, 1), fold=False)
    # Halves until 100: 50 each. Then 50 left of the first, 250 of the other: until 200, and the
    # second 100 of the first until 400; the last 100 of the other alone until 500.
    assert run.rows(0).end.tolist() == [200, 400]
    assert run.rows(1).end.tolist() == [100, 500]


def test_streams_do_not_wait_for_rows_of_others() -> None:
    """What a stream posts does not have to wait for a row above it on another stream."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        if rank % 2 == 0:  # two all-reduces on one stream, a third on another, launched last
            for slot, stream in ((0, 0), (0, 0), (1, 1)):
                rows.collective(Operation.ALL_REDUCE, slot, stream, 1000)
            bound = [builder.communicator((0, 2)), builder.communicator((0, 2), "other")]
        else:
            rows.host(1)
            bound = []
        builder.add_table(rows.build())
        builder.add_rank(rank, bound)
    run = simulate(builder.build(), network=wires(1, 1), fold=False)
    # Three times 1000 over a link of 1: first and third share it until 2000.
    assert run.rows(0).end.tolist() == [2000, 3000, 2000]


@pytest.mark.parametrize("other_stream", [False, True])
def test_bytes_do_not_flow_before_what_led_to_them(other_stream: bool) -> None:
    """A trace says that the second begins 30 ps before the first has ended, which it follows."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        pair = (0, 2) if rank % 2 == 0 else (1, 3)
        first = rows.collective(Operation.ALL_REDUCE, 0, 0, 100)
        if rank % 2 == 0:
            waits = [first] if other_stream else []
            stream = slot = int(other_stream)
            rows.collective(Operation.ALL_REDUCE, slot, stream, 100, gap=-30, waits=waits)
        builder.add_table(rows.build())
        bound = [builder.communicator(pair, name) for name in ("first", "second")]
        builder.add_rank(rank, bound)
    program, network = builder.build(), wires(1, 1, latency=10)
    run = simulate(program, network=network, fold=False, critical_path=True)
    # Both flow from 10 to 210 at half the rate. The second is ready at 180, and would flow at 190.
    assert run.rows(0).wire.tolist() == [0, 180]
    assert run.rows(0).end.tolist() == [210, 310]
    assert_matches(run, expect(program, network))


def test_eager_and_given_durations_do_not_wait_for_the_flow() -> None:
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        flags = Flag.EAGER if rank == 0 else Flag.NONE
        rows.collective(
            Operation.BROADCAST, 0, 0, 1000, flags=flags, duration=70 if rank == 3 else -1
        )
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    run = simulate(builder.build(), network=wires(1, 1), fold=False)
    # Rank 0 goes ahead for what it takes alone; rank 3 knows its own duration.
    assert run.rank_end.tolist() == [1000, 2000, 2000, 70]


def test_deadlock_is_named() -> None:
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        order = (0, 1) if rank in (0, 1) else (1, 0)
        for slot in order:
            rows.collective(Operation.ALL_REDUCE, slot, 0, 1000, name=f"sum {slot}")
        builder.add_table(rows.build())
        pair = (0, 2) if rank % 2 == 0 else (1, 3)
        builder.add_rank(rank, [builder.communicator(pair, n) for n in ("left", "right")])
    with pytest.raises(DeadlockError) as caught:
        simulate(builder.build(), network=wires(1, 1), fold=False)
    assert str(caught.value).startswith(
        "deadlock: rank 0 waits at row 1 (sum 1) for operation 0 of communicator 0 (left), to "
        "which rank 2 never came; rank 1 waits at row 1"
    )


# --- many rows, many streams --------------------------------------------------------------------


def check(program: Program, network: Links) -> None:
    """Compare runs with the reference."""
    expected = expect(program, network)
    for relax, mode in ((True, "relaxation"), (False, "events")):
        run = simulate(program, network=network, fold=False, critical_path=True, relax=relax)
        assert run.mode == mode
        assert_matches(run, expected)


def test_rows_are_read_from_far_back() -> None:
    """CPUs run thousands of rows ahead of streams that wait for a flow, or to a full queue."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        rows.collective(Operation.ALL_REDUCE, 0, 1, 5000 * (1 + rank % 2))
        work = [rows.kernel("first", 0, 7 * rank)]
        for i in range(2400):
            waits = [work[-1], work[i // 2]]
            work.append(rows.kernel("work", i % 2 * 2, 3 + i % 5, host=1, waits=waits))
            if i % 100 == 50:
                waits = [work[0], work[-1]]
                rows.collective(Operation.ALL_REDUCE, 0, 1, 100, waits=waits)
            if i == 700:
                rows.host_wait([work[0], work[-1]])
        builder.add_table(rows.build(queue_depth=rank // 2 * 300))
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    check(builder.build(), wires(1, 1))


def test_more_streams_than_bits_of_a_word() -> None:
    """Each of 130 streams waits for a kernel of another, and all for flows that take turns."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        done: list[int] = []
        for stream in range(130):
            waits = [] if rank % 2 else done[-1:]
            if stream % 13 == 0:
                row = rows.collective(Operation.ALL_REDUCE, 0, stream, 100 + stream, waits=waits)
            else:
                row = rows.kernel("work", stream, 5 + stream % 7, waits=waits)
            done.append(row)
        for stream in range(130):
            rows.kernel("again", stream, 3, waits=[done[(37 * stream) % 130]])
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    check(builder.build(), wires(1, 1))


def test_many_flows_at_once() -> None:
    """200 communicators of two ranks each, all flows over one wire."""
    builder = ProgramBuilder()
    for rank in range(2):
        rows = builder.table(f"rank {rank}")
        for slot in range(200):
            rows.collective(Operation.ALL_REDUCE, slot, slot, 10 + 7 * slot % 50, host=slot % 3)
        builder.add_table(rows.build())
    for rank in range(2):
        groups = [builder.communicator((0, 1), f"group {slot}") for slot in range(200)]
        builder.add_rank(rank, groups)
    check(builder.build(), Links((3,), {"wire": (((0, 0.5),), ((0, 0.5),))}, latency=2))


def chains(meet: int, then: int) -> Program:
    """Two chains of flows that meet at so many steps, and then take so many others by turns."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        for i in range(meet):
            rows.kernel("work", 0, 50 + 7 * (i * (1 + rank % 2) % 5))
            rows.collective(Operation.ALL_REDUCE, 0, 0, 400 + 90 * (i * (3 + rank % 2) % 7))
        for i in range(then):
            rows.kernel("work", 0, 20_000)
            if i % 2 == rank % 2:
                rows.collective(Operation.ALL_REDUCE, 0, 0, 400)
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    return builder.build()


def test_passes_that_change_hardly_less_give_way_to_events() -> None:
    """Two chains of flows that meet at every step: each pass makes one step more of them final."""
    program, network = chains(60, 0), wires(1, 1)
    run = simulate(program, network=network, fold=False, critical_path=True)
    assert run.mode == "events"
    assert_matches(run, expect(program, network))


@pytest.mark.mpi
@pytest.mark.parametrize(("meet", "then"), [(3, 0), (6, 30), (9, 100)])
def test_passes_go_on_from_where_they_differ(world: Intracomm, meet: int, then: int) -> None:
    """What changes early is run again up to a horizon, what is late but once it is final."""
    program, network = chains(meet, then), wires(1, 1)
    run = simulate(program, world, network=network, fold=False, critical_path=True)
    assert run.mode == "relaxation"
    assert_matches(run, expect(program, network))


def test_folded_runs_have_little_patience() -> None:
    """Events take as long as five passes: further runs of what took more try no relaxation."""
    program, network = chains(9, 100), wires(1, 1)
    patient = simulate(program, network=network, fold=False)
    folded = simulate(program, network=network, fold=True)
    assert (patient.mode, folded.mode) == ("relaxation", "events")
    assert (patient.setup.relaxes, folded.setup.relaxes) == (True, False)
    again = simulate(program, network=network, fold=True, setup=folded.setup)
    assert again.mode == "events"
    assert patient.digest == folded.digest == again.digest
    few = simulate(chains(3, 0), network=network, fold=True)
    assert (few.mode, few.setup.relaxes) == ("relaxation", True)
