"""Reductions over processes: right for every sign and size, on every MPI library."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import UsageError
from mpisim.mpi.library import check_library
from mpisim.mpi.reductions import (
    allreduce_any,
    allreduce_max,
    allreduce_min,
    allreduce_sum,
    allreduce_sum_whole,
    allreduce_sum_words,
)

pytestmark = pytest.mark.mpi_calls

REPOSITORY = Path(__file__).resolve().parent.parent
REDUCING = {
    "Allreduce",
    "Reduce",
    "Scan",
    "Exscan",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Iallreduce",
    "Ireduce",
    "Iscan",
    "Iexscan",
    "Ireduce_scatter",
    "Ireduce_scatter_block",
    "allreduce",
    "exscan",
    "Accumulate",
    "Get_accumulate",
    "Fetch_and_op",
}
WORD = 2**64


@pytest.mark.mpi
def test_unsigned_words_above_the_signed_range(comm):
    """Open MPI 4.1 takes these for negative when it looks for the largest."""
    own = np.zeros((comm.size, 2), np.uint64)
    own[comm.rank] = (2**63 + 5 + comm.rank, 7)
    found = allreduce_sum_words(own, comm)
    assert found.dtype == np.uint64
    assert found.tolist() == [[2**63 + 5 + rank, 7] for rank in range(comm.size)]


@pytest.mark.mpi
@given(words=st.lists(st.integers(0, WORD - 1), min_size=1, max_size=4))
def test_sums_of_words_wrap_around(words):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    each = [[(word * (rank + 1)) % WORD for word in words] for rank in range(comm.size)]
    found = allreduce_sum_words(np.array(each[comm.rank], np.uint64), comm)
    assert found.tolist() == [sum(column) % WORD for column in zip(*each)]


@pytest.mark.mpi
@given(values=st.lists(st.integers(-(2**90), 2**90), min_size=1, max_size=4))
def test_whole_numbers_of_any_size(values):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    each = [[(-1) ** rank * value // (rank + 1) for value in values] for rank in range(comm.size)]
    found = allreduce_sum_whole(np.array(each[comm.rank], object), comm)
    assert found.tolist() == [sum(column) for column in zip(*each)]


@pytest.mark.mpi
@given(values=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=4))
def test_signed_values(values):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    each = np.array([[(-1) ** rank * v // (rank + 1) for v in values] for rank in range(comm.size)])
    own = each[comm.rank].copy()
    assert allreduce_max(own, comm).tolist() == each.max(axis=0).tolist()
    assert allreduce_min(own, comm).tolist() == each.min(axis=0).tolist()
    assert (
        allreduce_sum(own // comm.size, comm).tolist() == (each // comm.size).sum(axis=0).tolist()
    )
    assert own.tolist() == each[comm.rank].tolist()  # what is given stays


@pytest.mark.mpi
def test_parts_of_arrays_and_empty_ones(comm):
    grid = np.arange(6, dtype=np.int64).reshape(2, 3) * (comm.rank + 1)
    assert allreduce_max(grid[:, ::2], comm).tolist() == [
        [0, 2 * comm.size],
        [3 * comm.size, 5 * comm.size],
    ]
    assert allreduce_sum(np.zeros((0, 4), np.int64), comm).shape == (0, 4)


@pytest.mark.mpi
def test_anywhere(comm):
    assert allreduce_any(comm.rank == comm.size - 1, comm)
    assert not allreduce_any(False, comm)
    assert allreduce_any(True, None)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.uint64, np.float64, np.int32, np.bool_])
def test_other_types_are_refused(comm, dtype):
    for reduce in (allreduce_sum, allreduce_max, allreduce_min):
        with pytest.raises(TypeError, match="int64 is reduced"):
            reduce(np.zeros(1, dtype), comm)
    with pytest.raises(TypeError, match="words are uint64"):
        allreduce_sum_words(np.zeros(1, np.int64), comm)


def test_nothing_else_reduces():
    """Every reduction of the product goes through `mpisim.mpi.reductions`."""
    found = []
    for folder in ("mpisim", "kernels", "topo"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if path == REPOSITORY / "mpisim" / "mpi" / "reductions.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in REDUCING:
                    owner = node.value
                    if not (isinstance(owner, ast.Name) and owner.id == "functools"):
                        found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.attr}")
    # an enumeration's members and collectives of the simulated ranks are in capitals
    assert found == []


class Wrong:
    """A communicator whose reductions compare as if there were no sign."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Allreduce(self, sent, received, op):  # noqa: N802
        flip = np.int64(-(2**63))
        self.comm.Allreduce(sent ^ flip, received, op=op)
        received ^= flip


@pytest.mark.mpi
def test_a_library_that_is_right_passes(comm):
    check_library(comm)


@pytest.mark.mpi
def test_a_library_that_is_wrong_is_refused(comm):
    if comm.size == 1:
        check_library(Wrong(comm))  # nothing is reduced
        return
    with pytest.raises(UsageError, match=r"the MPI library \S.* gives wrong results for MAX, MIN"):
        check_library(Wrong(comm))
