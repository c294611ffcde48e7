"""What is said to whoever starts more processes than help."""

from __future__ import annotations

from typing import Any

import pytest

from mpisim.cli.processes import advice, advise

pytestmark = pytest.mark.mpi_calls


@pytest.mark.parametrize(
    ("processes", "cores", "seconds", "parts", "said"),
    [
        (8, 2, 30.0, 100, "8 processes take turns on 2 cores; 2 or fewer are faster"),
        (8, 8, 30.0, 3, "8 processes share 3 ranks to simulate; more do not help"),
        (2, 8, 0.2, 100, "the work that 2 processes share took 0.2 s; one process is as fast"),
        (8, 8, 30.0, 100, ""),
    ],
)
def test_advice(processes: int, cores: int, seconds: float, parts: int, said: str) -> None:
    found = advice(processes, cores, seconds, parts, "rank")
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.mpi
@pytest.mark.parametrize("watched", ["0", "1"])
def test_only_a_person_is_advised(
    comm: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, watched: str
) -> None:
    monkeypatch.setenv("MPISIM_PROGRESS", watched)
    advise(comm, 0.0, 0, "rank")
    written = capsys.readouterr().err
    assert bool(written) == (comm.rank == 0 < comm.size - 1 and watched == "1")
    assert written.count("\n") <= 1
