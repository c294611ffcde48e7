"""Memory of the simulator: counted before a run, compared with what the machine has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from programs import programs

from mpisim.base import machine_memory
from mpisim.base.errors import InputError
from mpisim.base.machine_memory import capacity
from mpisim.engine import memory_needed, simulate
from mpisim.engine.fold import every_rank, fold_ranks
from mpisim.engine.memory_needed import Memory, count, needed, on_this_machine
from mpisim.program import Jitter, Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

GB = 10**9
COST = AlphaBeta(latency=3e-12, bandwidth=5e14)


def alike() -> Program:
    """8 ranks that compute and meet twice, all the same."""
    builder = ProgramBuilder()
    world = builder.communicator(range(8))
    rows = builder.table()
    for _ in range(2):
        rows.kernel("k", 0, 10)
        rows.collective(Operation.ALL_REDUCE, 0, 1, 64, duration=5)
    number = builder.add_table(rows.build())
    for _ in range(8):
        builder.add_rank(number, [world])
    return builder.build()


@given(program=programs(unpriced=True))
@settings(max_examples=100)
def test_counts_are_those_of_the_plan(program: Program) -> None:
    given = simulate(program, network=COST, fold=False).solution._input
    counts = count(every_rank(program, None), np.arange(program.n_ranks, dtype=np.int32))
    assert counts.rows == given.n_rows
    assert counts.table_rows == sum(len(code.table) for code in given.lowered)
    assert counts.structure_rows == sum(
        len(array) for array in {id(c.instructions): c.instructions for c in given.lowered}.values()
    )
    assert counts.groups == given.n_communications
    assert counts.slots == len(given.slot_first)


def test_ranks_may_have_more_slots_than_their_table_uses() -> None:
    builder = ProgramBuilder()
    number = builder.add_table(builder.table().build())
    builder.add_rank(number, [builder.communicator((0,))])
    assert count(every_rank(builder.build(), None), np.zeros(1, np.int32)) == (0, 0, 0, 0, 1, 0, 1)


def test_kernels_with_times_of_their_own_are_counted() -> None:
    program = alike().replace(jitter=Jitter(0.1))
    counts = count(every_rank(program, None), np.arange(8, dtype=np.int32))
    assert (counts.rows, counts.varied_rows) == (32, 32)


def test_ranks_of_one_speed_share_their_durations() -> None:
    speed = np.array([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.9])
    counts = count(every_rank(alike().replace(speed=speed), None), np.arange(8, dtype=np.int32))
    assert (counts.rows, counts.varied_rows) == (32, 3 * 4)
    every = alike().replace(speed=np.linspace(0.5, 1, 8))
    assert count(every_rank(every, None), np.arange(8, dtype=np.int32)).varied_rows == 32


def test_tables_that_differ_in_times_alone_share_instructions() -> None:
    program = alike()
    first = program.tables[0]
    assert first is not None
    tables = [first.replace(duration=first.duration + i) for i in range(8)]
    apart = program.replace(tables=tuple(tables), table=np.arange(8, dtype=np.int32))
    counts = count(every_rank(apart, None), np.arange(8, dtype=np.int32))
    assert (counts.structure_rows, counts.table_rows, counts.rows) == (4, 32, 32)
    one = count(every_rank(program, None), np.arange(8, dtype=np.int32))
    # Durations take 8 bytes, instructions and all else more than 200.
    assert needed(counts, True, False) - needed(one, True, False) <= 20 * (32 - 4)


def test_a_folded_run_counts_classes() -> None:
    program = alike()
    cast = fold_ranks(program, COST, None, None)
    assert cast is not None
    found = count(cast, np.arange(cast.n, dtype=np.int32))
    assert found == (4, 4, 4, 0, 1, 2, 1)
    assert count(every_rank(program, None), np.arange(8, dtype=np.int32)) == (4, 4, 32, 0, 8, 2, 8)
    assert count(cast, np.zeros(0, np.int32)) == (0, 0, 0, 0, 0, 0, 0)


def test_bytes_are_counts_times_the_data_file() -> None:
    counts = memory_needed.Counts(10**6, 10**7, 10**9, 10**8, 10**4, 10**7, 10**5)
    of = memory_needed._constants()
    flat = 10**6 * of.dataflow.structure_row.value + 10**7 * of.dataflow.table_row.value
    flat += 10**8 * of.dataflow.varied_row.value + 10**4 * of.dataflow.rank.value
    flat += 10**7 * of.dataflow.group.value + 10**5 * of.dataflow.slot.value
    assert needed(counts, contended=False, timeline=False) == round(flat)
    more = needed(counts, contended=False, timeline=True) - needed(counts, False, False)
    assert more == pytest.approx(10**9 * of.timeline.row.value)
    assert needed(counts, contended=True, timeline=False) > flat


@pytest.mark.parametrize(
    ("folded", "timeline", "advice"),
    [
        (True, False, "spread it over more machines with mpirun"),
        (False, False, "let equivalent ranks be simulated once, or spread it over"),
        (True, True, "leave out the timeline, or spread it"),
    ],
)
def test_what_cannot_fit_is_refused_in_a_line(folded: bool, timeline: bool, advice: str) -> None:
    Memory(23 * GB, 23 * GB).check(folded=folded, timeline=timeline)
    with pytest.raises(InputError) as caught:
        Memory(1234 * GB, 24 * GB).check(folded=folded, timeline=timeline)
    text = str(caught.value)
    assert text.startswith("this run needs about 1,234 GB of memory, and this machine has 24 GB: ")
    assert advice in text
    assert "\n" not in text


@pytest.mark.mpi
def test_all_processes_refuse(comm: Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only one of them is on a machine that is too small."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(memory_needed, "capacity", lambda: 1000)
    with pytest.raises(InputError, match=r"needs about .* GB of memory, and this machine has"):
        simulate(alike(), comm, fold=False)


@pytest.mark.mpi
def test_processes_of_a_machine_share_it(comm: Intracomm) -> None:
    several = comm if comm.size > 1 else None
    found = on_this_machine(3 * GB, several)
    assert found.needed >= 3 * GB * comm.size  # all tests run on one machine
    assert found.capacity == capacity() > 0
    assert found.needed < 3 * GB * comm.size + found.capacity


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "5000"}, [5000]),
        (
            "0::/job/step\n",
            {"sys/fs/cgroup/job/memory.max": "700", "sys/fs/cgroup/job/step/memory.max": "max"},
            [700],
        ),
        (
            "3:cpu,memory:/job\n1:name=x:/\n",
            {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9",
                "sys/fs/cgroup/cpu/job/memory.max": "1",
            },
            [9],
        ),
        ("0::/gone\n", {}, []),
        (None, {}, []),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, lines: str | None, files: dict[str, str], expected: list[int]
) -> None:
    for name, text in {**files, **({} if lines is None else {"proc/self/cgroup": lines})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine_memory.group_limits(tmp_path) == expected


def test_progress_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpisim.mpi import parallel

    seen: list[str] = []
    original = parallel.progress

    def watched(comm: Any, label: str, total: int, **options: Any) -> Any:
        seen.append(label)
        return original(comm, label, total, **options)

    monkeypatch.setattr(parallel, "progress", watched)
    monkeypatch.setattr(memory_needed, "capacity", lambda: 24 * GB)
    simulate(alike(), progress="simulating")
    assert len(seen) == 1
    # As much as this process holds already, which other tests decide, and more.
    assert re.fullmatch(r"simulating, [0-9.]+ GB of 24 GB of memory", seen[0])
