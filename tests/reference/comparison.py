"""Assertions: a run is what a reference says, or what another run found, to the picosecond."""

from __future__ import annotations

import numpy as np

from mpisim.engine import CriticalPath, PieceKind, Run

from .critical_path import Piece, critical_path
from .digest import digest
from .rank_by_rank import Times
from .simulation import Timeline

__all__ = ["assert_equal_runs", "assert_matches", "assert_times", "pieces"]


def pieces(path: CriticalPath | None) -> list[Piece]:
    """Return the pieces of a run's critical path."""
    assert path is not None
    columns = ("kind", "rank", "row", "begin", "end", "name")
    found = zip(*(getattr(path, name).tolist() for name in columns), strict=True)
    return [Piece(PieceKind(kind), *rest, path.names[name]) for kind, *rest, name in found]


def assert_matches(run: Run, expected: Timeline) -> None:
    """Check everything that a run with a critical path found on this process."""
    for i, rank in enumerate(run.hosted.tolist()):
        rows = run.rows(i)
        for name in ("begin", "wire", "end"):
            found, wanted = getattr(rows, name), expected.times(name, rank)
            np.testing.assert_array_equal(found, wanted, f"{name} of rank {rank}")
        np.testing.assert_array_equal(rows.binding, expected.binding(rank))
        assert rows.host_end == expected.host_end(rank)
    ends = [expected.rank_end(rank) for rank in range(expected.program.n_ranks)]
    assert run.rank_end.tolist() == ends
    assert run.step_time == max(ends)
    assert run.digest == digest(expected)
    assert pieces(run.critical_path) == critical_path(expected)


def assert_times(run: Run, expected: Times) -> None:
    """Check the times of every row that a run found on this process."""
    for i, rank in enumerate(run.hosted.tolist()):
        for name in ("begin", "wire", "end"):
            np.testing.assert_array_equal(
                getattr(run.rows(i), name), getattr(expected, name)[rank], f"{name} of rank {rank}"
            )
    np.testing.assert_array_equal(run.rank_end, expected.rank_end)


def assert_equal_runs(run: Run, other: Run) -> None:
    """Check that a run found what another did that hosted all ranks, critical paths included."""
    assert run.digest == other.digest
    assert run.step_time == other.step_time
    np.testing.assert_array_equal(run.rank_end, other.rank_end)
    for i, rank in enumerate(run.hosted.tolist()):
        for one, two in zip(run.rows(i), other.rows(rank), strict=True):
            np.testing.assert_array_equal(one, two)
    if run.critical_path is not None or other.critical_path is not None:
        assert pieces(run.critical_path) == pieces(other.critical_path)
