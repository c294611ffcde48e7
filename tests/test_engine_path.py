"""The critical path in cases done by hand; test_engine_reference.py has random ones."""

from __future__ import annotations

from programs import one_rank_a_table

from mpisim.engine import PieceKind, simulate
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder


def path_of(program: Program) -> list[tuple[str, int, int, int, int, str]]:
    path = simulate(program, critical_path=True).critical_path
    assert path is not None
    return [
        (PieceKind(kind).name, rank, row, begin, end, path.names[name])
        for kind, rank, row, begin, end, name in zip(
            *(getattr(path, c).tolist() for c in ("kind", "rank", "row", "begin", "end", "name"))
        )
    ]


def test_across_ranks_by_the_last_member() -> None:
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table()]
    for rows, work in zip(tables, (1000, 1500), strict=True):
        a = rows.kernel("a", 0, work, host=10, launch=5, launch_cost=2)
        c = rows.collective(
            Operation.ALL_REDUCE, 0, 1, 64, duration=300, waits=[a], host=1, launch=5, gap=4
        )
        rows.kernel("b", 0, 100, waits=[c], host=1, launch=5)
    group = builder.communicator((0, 1))
    assert path_of(one_rank_a_table(*tables, builder=builder, slots=[[group]] * 2)) == [
        ("HOST", 1, 0, 0, 10, "a"),
        ("LAUNCH", 1, 0, 10, 15, "a"),
        ("COMPUTE", 1, 0, 15, 1515, "a"),
        ("GAP", 1, 1, 1515, 1519, "all_reduce"),
        ("COMMUNICATION", 0, 1, 1519, 1819, "all_reduce"),
        ("COMPUTE", 0, 2, 1819, 1919, "b"),
    ]


def test_back_through_the_host() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    a = rows.kernel("a", 0, 100, host=10, launch=5, launch_cost=3)
    rows.host_wait([a], host=2, tail=6, name="sync")
    rows.host(20, "python")
    rows.kernel("b", 0, 10, host=1, launch=4, launch_cost=2)
    rows.host(3, "end")
    rows.kernel("c", 0, 50, host=1, launch=4, launch_cost=2, kind=Kind.COPY)
    builder.add_table(rows.build())
    builder.add_rank(0, start=7)
    # a: 22 to 122; sync until 128; python until 148; b is called at 149 (until 151); end until
    # 154; c is called at 155 and runs from 159, though b is over at 163: c runs 163 to 213.
    assert path_of(builder.build()) == [
        ("START", 0, -1, 0, 7, "start"),
        ("HOST", 0, 0, 7, 17, "a"),
        ("LAUNCH", 0, 0, 17, 22, "a"),
        ("COMPUTE", 0, 0, 22, 122, "a"),
        ("HOST", 0, 1, 122, 128, "sync"),
        ("HOST", 0, 2, 128, 148, "python"),
        ("HOST", 0, 3, 148, 149, "b"),
        ("LAUNCH", 0, 3, 149, 153, "b"),
        ("COMPUTE", 0, 3, 153, 163, "b"),
        ("COPY", 0, 5, 163, 213, "c"),
    ]


def test_back_through_launching_calls_and_waits_that_did_not_wait() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    a = rows.kernel("a", 0, 1, host=5, launch_cost=30)
    rows.host_wait([a], host=2, tail=6, name="sync")
    rows.kernel("b", 1, 10, host=1, launch=4)
    builder.add_table(rows.build())
    builder.add_rank(0)
    assert path_of(builder.build()) == [
        ("HOST", 0, 0, 0, 5, "a"),
        ("HOST", 0, 0, 5, 35, "a"),
        ("HOST", 0, 1, 35, 37, "sync"),
        ("HOST", 0, 1, 37, 43, "sync"),
        ("HOST", 0, 2, 43, 44, "b"),
        ("LAUNCH", 0, 2, 44, 48, "b"),
        ("COMPUTE", 0, 2, 48, 58, "b"),
    ]


def test_a_full_queue_leads_to_the_kernel_that_left_it() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 0, 100)
    rows.kernel("b", 0, 1)
    rows.host(50, "python")
    builder.add_table(rows.build(queue_depth=1))
    builder.add_rank(0)
    # b is called when a has ended, at 100, and the CPU works from then to 150.
    assert path_of(builder.build()) == [
        ("COMPUTE", 0, 0, 0, 100, "a"),
        ("HOST", 0, 2, 100, 150, "python"),
    ]


def test_negative_launch_counts_shared_time_once() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.host(20, "python")
    rows.kernel("a", 0, 10, host=4, launch=-6)
    builder.add_table(rows.build())
    builder.add_rank(0)
    # Called at 24, on the device at 18: the host's part is cut there.
    assert path_of(builder.build()) == [
        ("HOST", 0, 0, 0, 18, "python"),
        ("COMPUTE", 0, 1, 18, 28, "a"),
    ]


def test_through_the_longer_part_of_a_batch_and_past_an_eager_member() -> None:
    builder = ProgramBuilder()
    middle, left = builder.table(), builder.table()
    middle.host(10)
    middle.point_to_point(Kind.SEND, 0, 0, 8, duration=40, name="send", flags=Flag.EAGER)
    middle.point_to_point(Kind.RECV, 1, 0, 8, duration=20, name="recv", flags=Flag.JOINED)
    middle.kernel("next", 0, 5)
    left.host(12, "late")
    left.point_to_point(Kind.RECV, 0, 0, 8, duration=1)
    left.point_to_point(Kind.SEND, 1, 0, 8, duration=20, flags=Flag.JOINED)
    a, b = builder.communicator((0, 1)), builder.communicator((1, 0))
    # The send runs 10 to 50 by itself; the receive 12 to 32.
    assert path_of(one_rank_a_table(middle, left, builder=builder, slots=[[a, b], [a, b]])) == [
        ("HOST", 0, 0, 0, 10, "host"),
        ("COMMUNICATION", 0, 1, 10, 50, "send"),
        ("COMPUTE", 0, 3, 50, 55, "next"),
    ]


def test_of_many_waits_the_right_one_is_followed() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    waits = [rows.kernel(f"k{stream}", stream, 10 + stream) for stream in range(150)]
    rows.kernel("last", 150, 1, waits=waits)
    builder.add_table(rows.build())
    builder.add_rank(0)
    assert path_of(builder.build()) == [
        ("COMPUTE", 0, 149, 0, 159, "k149"),
        ("COMPUTE", 0, 150, 159, 160, "last"),
    ]


def test_of_ranks_that_end_together_the_lowest_is_followed() -> None:
    builder = ProgramBuilder()
    tables = [builder.table(), builder.table(), builder.table()]
    for rows, work in zip(tables, (5, 9, 9), strict=True):
        rows.kernel("a", 0, work)
    assert path_of(one_rank_a_table(*tables, builder=builder, slots=[[]] * 3)) == [
        ("COMPUTE", 1, 0, 0, 9, "a")
    ]


def test_nothing_happens() -> None:
    builder = ProgramBuilder()
    builder.add_table(builder.table().build())
    builder.add_rank(0)
    assert path_of(builder.build()) == []
