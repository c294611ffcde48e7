"""Distribution of ranks and communicators over processes: placement and owners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from mpisim.engine.cost import price
from mpisim.engine.distribution import Distribution, Role, distribute
from mpisim.engine.fold import every_rank
from mpisim.program import Operation, Program, ProgramBuilder


def distributed(
    program: Program, placement: list[int], n_processes: int, max_peers: int = 4
) -> list[Distribution]:
    placed = np.array(placement, np.int32)
    found = []
    for process in range(n_processes):
        hosted = np.flatnonzero(placed == process).astype(np.int32)
        priced = price(program, hosted)
        found.append(distribute(every_rank(program), placed, process, priced, max_peers=max_peers))
    return found


@given(program=programs(), data=st.data())
def test_processes_agree_on_owners(program: Program, data: st.DataObject) -> None:
    max_peers = data.draw(st.integers(1, 4))
    n = data.draw(st.integers(1, 4))
    placement = data.draw(
        st.lists(st.integers(0, n - 1), min_size=program.n_ranks, max_size=program.n_ranks)
    )
    seen: dict[int, set[int]] = {}
    for plan in distributed(program, placement, n, max_peers):
        for i, c in enumerate(plan.communicators.tolist()):
            members = set(program.communicators.group(c))
            processes = {placement[member] for member in members}
            others = plan.others[plan.others_index[i] : plan.others_index[i + 1]].tolist()
            assert sorted([*others, plan.process]) == sorted(processes)
            owner = int(plan.owner[i])
            assert owner in processes
            role = Role(int(plan.role[i]))
            if len(processes) == 1:
                assert role is Role.LOCAL
            elif len(processes) <= max_peers:
                assert role is Role.PEER
            else:
                assert role is (Role.OWNER if owner == plan.process else Role.MEMBER)
            seen.setdefault(c, set()).add(owner)
            given = plan.core_input
            for local, rank in enumerate(plan.hosted.tolist()):
                bound = program.slots_of(rank).tolist()
                operations = given.lowered_of(local).table.operations
                for slot in [s for s, at in enumerate(bound) if at == c and operations[s]]:
                    at = given.slot_index[local] + slot
                    assert given.slot_first[at] == plan.first_communication[i]
                    assert given.slot_members[at] == len(members & set(plan.hosted.tolist()))
                    assert given.slot_remote[at] == (1 if role is Role.MEMBER else len(others))
    assert all(len(owners) == 1 for owners in seen.values())


def test_owners_are_spread() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    for slot in range(100):
        rows.collective(Operation.BARRIER, slot, 0, 0, duration=1)
    builder.add_table(rows.build())
    groups = [builder.communicator((0, 1), f"group {i}") for i in range(100)]
    for _ in range(2):
        builder.add_rank(0, groups)
    owned = np.bincount(distributed(builder.build(), [0, 1], 2)[0].owner, minlength=2)
    assert owned.min() >= 30


def test_a_process_lowers_the_tables_of_its_ranks_alone() -> None:
    builder = ProgramBuilder()
    for label in ("unused", "first", "nobody's", "second"):
        rows = builder.table(label)
        rows.kernel("gemm", 0, 10)
        builder.add_table(rows.build())
    for table in (3, 1, 3):
        builder.add_rank(table)
    program = builder.build()
    for plan in distributed(program, [0, 1, 2], 4):  # the last has no rank
        given = plan.core_input
        tables = [given.lowered_of(local).table for local in range(len(plan.hosted))]
        assert tables == [program.table_of(rank) for rank in plan.hosted.tolist()]
        assert {id(each.table) for each in given.lowered} == {id(each) for each in tables}


def test_locate_inverts_group_of() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    for slot in (0, 1, 0):
        rows.collective(Operation.BARRIER, slot, 0, 0, duration=1)
    builder.add_table(rows.build())
    builder.communicator((0, 1), "unused")
    groups = [builder.communicator((1, 0), name) for name in ("a", "b")]
    for _ in range(2):
        builder.add_rank(0, groups)
    plan = distributed(builder.build(), [0, 0], 1)[0]
    # What the rows of rank 1 post to, as its instructions and slots say.
    core_input = plan.core_input
    rows = core_input.lowered_of(1).instructions[:3]
    slots = core_input.slot_first[core_input.slot_index[1] + rows["slot"]]
    found = slots + rows["ordinal"]
    index, k = plan.locate(found)
    assert plan.communicators[index].tolist() == [1, 2, 1]
    assert k.tolist() == [0, 0, 1]


@pytest.mark.parametrize("n_processes", [1, 3])
def test_process_without_ranks(n_processes: int) -> None:
    builder = ProgramBuilder()
    builder.add_table(builder.table().build())
    builder.add_rank(0)
    plan = distributed(builder.build(), [0], n_processes)[-1]
    assert len(plan.hosted) == (1 if n_processes == 1 else 0)
