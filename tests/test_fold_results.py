"""The result of a folded run says what that of the whole run says, of every rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from programs import programs
from test_fold import COST, grid, late_starts, odd_speeds, symmetric

import mpisim
from mpisim.engine import Run, simulate
from mpisim.program import Program, save
from mpisim.report import figures, render
from mpisim.results import Results, collect, write_results

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.two_processes]


def both(program: Program, comm: Intracomm) -> tuple[Run, Run]:
    folded, whole = (
        simulate(program, comm, network=COST, critical_path=True, fold=fold)
        for fold in (True, False)
    )
    return folded, whole


def assert_equal_results(folded: Results, whole: Results) -> None:
    """All is the same, but for how it was simulated."""
    assert folded.digest == whole.digest
    for name in ("ranks", "steps", "kernels", "communications"):
        one, other = getattr(folded, name), getattr(whole, name)
        assert list(one) == list(other)
        for column in one:
            if column not in ("process", "class"):
                np.testing.assert_array_equal(one[column], other[column], f"{name}/{column}")
    how = {column: whole.ranks[column] for column in ("process", "class")}
    assert folded.parts is not None
    times = folded.parts.times[folded.ranks["class"]]
    folded = replace(
        folded,
        classes=whole.classes,
        rounds=whole.rounds,
        ranks={**folded.ranks, **how},
        parts=folded.parts._replace(times=times),
    )
    assert json.dumps(figures(folded)) == json.dumps(figures(whole))
    assert render(folded) == render(whole)


@given(
    program=programs(max_tables=3, max_replicas=5, unpriced=True), odd=odd_speeds, late=late_starts
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_programs(
    comm: Intracomm, program: Program, odd: dict[int, float], late: dict[int, int]
) -> None:
    folded, whole = (collect(run, comm=comm) for run in both(symmetric(program, odd, late), comm))
    assert (folded is None) == (whole is None) == (comm.rank > 0)
    if folded is not None and whole is not None:
        assert_equal_results(folded, whole)


def test_files(comm: Intracomm, shared_folder: Path) -> None:
    program = grid(4, 6, {5: 0.5})
    folded, whole = both(program, comm)
    for run, name in ((folded, "folded"), (whole, "whole")):
        write_results(run, shared_folder / name, comm=comm, timeline=True)
    with (
        mpisim.open_results(shared_folder / "folded") as one,
        mpisim.open_results(shared_folder / "whole") as other,
    ):
        assert_equal_results(one, other)
        assert (one.n_classes, other.n_classes) == (4, 24)
        assert one.timeline is not None
        assert other.timeline is not None
        assert len(one.timeline) * 6 == len(other.timeline)
        for rank in range(24):
            a, b = one.timeline.rank(rank), other.timeline.rank(rank)
            for column in b:
                np.testing.assert_array_equal(a[column], b[column], column)
    with h5py.File(shared_folder / "folded") as file:
        of_rank = file["ranks/class"][:]
        np.testing.assert_array_equal(np.bincount(of_rank), file["classes/count"])
        assert file["classes/representative"][:].tolist() == [0, 1, 4, 5]
        assert file["classes/apart"][:].tolist() == [0, 4, 4, 1]
        assert file["classes/speed"][:].tolist() == [1.0, 1.0, 1.0, 0.5]
        assert file["timeline/begin"].shape == (4 * 7,)
    comm.Barrier()


def test_reports_give_reasons_for_separate_classes(comm: Intracomm) -> None:
    run = simulate(grid(4, 6, {5: 0.5}), network=COST, critical_path=True)
    results = collect(run, comm=comm.Split(comm.rank))
    assert results is not None
    text = render(results)
    assert "24 on 1 process, 4 classes, 0 rounds" in text
    assert (
        "classes 3 of 4 differ from the largest with the same rows: 1 by their speed, 2 by the "
        "ranks they communicate with"
    ) in " ".join(text.split())
    assert figures(results)["n_classes"] == 4


def test_command(call_mpisim: Callable[..., Any], comm: Intracomm, tmp_path: Path) -> None:
    if comm.size > 1:
        pytest.skip("starts processes of its own")
    save(grid(4, 6).replace(attributes={}), tmp_path / "grid.h5")
    texts = []
    for option in ([], ["--no-fold"]):
        done = call_mpisim(
            [
                *("program", "run", "grid.h5", "--cluster", "dgx-h100"),
                *("--json", "a.json", "--overwrite", "--details", *option),
            ]
        )
        assert done.rc == 0, done.stderr
        texts.append(done.stdout)
        classes = json.loads((tmp_path / "a.json").read_text())["n_classes"]
        assert classes == (24 if option else 1)
    assert "24 on 1 process, 1 class, 0 rounds" in texts[0]
    assert "24 on 1 process, 0 rounds" in texts[1]
