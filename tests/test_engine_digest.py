"""The digest: what changes it, what must not, and that sums are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs

from mpisim.engine import simulate
from mpisim.engine.digest import hash_ends, summed, summed_over_processes
from mpisim.program import Communicators, Operation, Program, ProgramBuilder

pytestmark = pytest.mark.mpi_calls

words = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(words, words), max_size=20))
def test_sum_is_modulo_2_to_the_128(pairs: list[tuple[int, int]]) -> None:
    hashes = np.array(pairs, np.uint64).reshape(-1, 2)
    assert summed(hashes) == sum(low + (high << 64) for low, high in pairs) % 2**128


@pytest.mark.mpi
def test_sum_over_processes_carries(comm) -> None:
    # Parts of 2^128 - 1, which is -1: the sum is minus the number of processes.
    expected = f"{2**128 - comm.size:032x}"
    assert summed_over_processes(2**128 - 1, comm) == expected
    assert summed_over_processes(2**128 - 1, None) == "f" * 32


def test_ends_hash_differently() -> None:
    hashes = hash_ends(np.arange(-1000, 1000))
    assert len(np.unique(hashes)) == hashes.size


@given(program=programs(), seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_rank_and_communicator_numbers_do_not_matter(program: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank_to = rng.permutation(program.n_ranks)
    group_to = rng.permutation(len(program.communicators))
    old_rank, old_group = np.argsort(rank_to), np.argsort(group_to)
    groups = program.communicators
    slots = [group_to[program.slots_of(rank)] for rank in old_rank]
    renumbered = program.replace(
        communicators=Communicators.of(
            [rank_to[list(groups.group(c))].tolist() for c in old_group]
        ),
        table=program.table[old_rank],
        slot_index=np.concatenate([[0], np.cumsum([len(bound) for bound in slots])]),
        slots=np.concatenate([np.empty(0, np.int32), *slots]),
        speed=program.speed[old_rank],
        start=program.start[old_rank],
    )
    assert simulate(renumbered).digest == simulate(program).digest


def digest_of(
    operation: Operation = Operation.ALL_REDUCE,
    size: int = 64,
    duration: int = 10,
    n_ranks: int = 2,
    start: int = 0,
    kernel: int = 0,
    copies: int = 1,
) -> str:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 1, kernel)
    rows.collective(operation, 0, 0, size, duration=duration)
    builder.add_table(rows.build())
    for copy in range(copies):
        members = range(copy * n_ranks, (copy + 1) * n_ranks)
        for rank in members:
            group = builder.communicator(members)
            builder.add_rank(0, [group], start=start if rank == members[0] else 0)
    return simulate(builder.build()).digest


@pytest.mark.parametrize(
    "change",
    [
        {"operation": Operation.BROADCAST},
        {"size": 65},
        {"duration": 11},
        {"n_ranks": 3},
        {"start": 1},
        {"kernel": 11},
        {"copies": 2},
    ],
)
def test_digest_changes_with(change: dict[str, int]) -> None:
    assert digest_of(**change) != digest_of()  # type: ignore[arg-type]


def test_digest_does_not_depend_on_kernels_that_nothing_waits_for() -> None:
    assert digest_of(kernel=9) == digest_of()


def test_digest_of_copies_is_a_multiple() -> None:
    one, three = int(digest_of(), 16), int(digest_of(copies=3), 16)
    assert three == 3 * one % 2**128
