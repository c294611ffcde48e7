"""Predictions of measured steps, spread over processes: each row is simulated by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import MpisimError
from ...experiment import Experiment, Transformer
from ...parallel import progress
from ...prediction import Case, prepare
from ...program import Phase
from ...quantity import PICOSECONDS
from ...results import Results
from ...simulate import simulate
from .experiments import Mapped
from .steady import extended, shorter, with_micro_batches

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Outcome", "predict"]

PARTS = ("compute", "exposed_wire", "exposed_waiting", "idle")
"""What a step is divided into; they add up to it."""


@dataclass(frozen=True)
class Outcome:
    """What the simulation of one experiment gave.

    Attributes
    ----------
    seconds : float
        Of the step.
    before_optimizer : float
        Seconds until the last row that is not the optimizer's has ended.
    uncertainty : float
        Relative, one standard deviation, as predictions state it.
    fits : bool
        Whether the memory model says that it fits.
    breakdown : dict of str to float
        Mean over ranks of the share of the step that each of `PARTS` takes, and of ``host_busy``.
    failed : str
        Why there is no prediction; empty if there is one.
    """

    seconds: float = 0.0
    before_optimizer: float = 0.0
    uncertainty: float = 0.0
    fits: bool = True
    breakdown: dict[str, float] | None = None
    failed: str = ""


def predict(
    rows: Sequence[Mapped], comm: Intracomm, *, every: bool = False
) -> list[Outcome] | None:
    """Simulate rows. **Collective**: every process gives the same rows.

    Equal experiments are simulated once. A row that cannot be simulated has an outcome that says
    why; it never stops the others. The outcomes do not depend on the number of processes.

    Parameters
    ----------
    rows : sequence of Mapped
    comm : mpi4py.MPI.Intracomm
    every : bool
        Whether to simulate every micro-batch of long steps (`mpisim.validate.e2e.steady`).

    Returns
    -------
    list of Outcome or None
        In the order of `rows`, on process 0; None on the others.
    """
    number: dict[str, int] = {}
    unique: list[Mapped] = []
    for row in rows:
        if row.text not in number:
            number[row.text] = len(unique)
            unique.append(row)
    mine = _shares([_effort(each.experiment, every) for each in unique], comm.size)[comm.rank]
    found: dict[int, Outcome] = {}
    with progress(comm, "rows simulated", len(mine)) as update:
        for done, i in enumerate(mine):
            update(done)
            found[i] = _simulated(unique[i], every)
    gathered = comm.gather(found, root=0)
    if gathered is None:
        return None
    whole = {i: outcome for part in gathered for i, outcome in part.items()}
    return [whole[number[row.text]] for row in rows]


def _shares(efforts: Sequence[float], processes: int) -> list[list[int]]:
    """Deal work to processes: the largest piece first, to whom has the least."""
    load = [0.0] * processes
    shares: list[list[int]] = [[] for _ in load]
    for i in sorted(range(len(efforts)), key=lambda i: (-efforts[i], i)):
        process = load.index(min(load))
        load[process] += efforts[i]
        shares[process].append(i)
    return shares


def _effort(experiment: Experiment, every: bool) -> float:
    """Return about how many rows there are to simulate, of one rank of each stage."""
    plan, model = experiment.plan, experiment.model
    layers = model.layers if isinstance(model, Transformer) else 50
    dp = plan.dp or 1
    micro_batches = plan.global_batch / (dp * plan.micro_batch)
    numbers = None if every else shorter(experiment)
    if numbers is not None:
        micro_batches = numbers[0] + numbers[1]
    return micro_batches * (layers + 2 * plan.pp * plan.vpp) + 50.0


def _simulated(row: Mapped, every: bool) -> Outcome:
    """Simulate one experiment on this process alone."""
    try:
        numbers = None if every else shorter(row.experiment)
        if numbers is None:
            return _outcome(row.experiment)
        first, second = (
            _outcome(with_micro_batches(row.experiment, number)) for number in numbers[:2]
        )
        return _extended(first, second, numbers)
    except MpisimError as error:
        return Outcome(failed=str(error).removeprefix(f"{row.row.where}: "))
    except Exception as error:  # a bug met by one row must not cost the other rows
        return Outcome(failed=f"internal error: {type(error).__name__}: {error}")


def _outcome(experiment: Experiment) -> Outcome:
    from mpi4py import MPI

    case = prepare(experiment)
    results = simulate(case, MPI.COMM_SELF)
    assert results is not None
    shares = {
        name: float(np.mean(results.ranks[name])) / results.step_time_ps
        for name in (*PARTS, "host_busy")
    }
    return Outcome(
        seconds=results.step_time,
        before_optimizer=_before_optimizer(case, results) / PICOSECONDS,
        uncertainty=float(results.attributes["uncertainty"]),
        fits=case.memory.fits,
        breakdown=shares,
    )


def _extended(first: Outcome, second: Outcome, numbers: tuple[int, int, int]) -> Outcome:
    """Return the outcome of more micro-batches."""
    assert first.breakdown is not None
    assert second.breakdown is not None
    seconds = extended(first.seconds, second.seconds, numbers)
    shares = {
        name: extended(first.breakdown[name] * first.seconds, share * second.seconds, numbers)
        / seconds
        for name, share in second.breakdown.items()
    }
    return Outcome(
        seconds=seconds,
        before_optimizer=extended(first.before_optimizer, second.before_optimizer, numbers),
        uncertainty=second.uncertainty,
        fits=second.fits,
        breakdown=shares,
    )


def _before_optimizer(case: Case, results: Results) -> int:
    """Return when the critical path leaves the last row that is not the optimizer's."""
    path = results.critical_path
    assert path is not None
    for piece in range(len(path.end) - 1, -1, -1):
        row = int(path.row[piece])
        table = case.program.table_of(int(path.rank[piece]))
        if row < 0 or table.phase[row] != Phase.OPTIMIZER:
            return int(path.end[piece])
    return 0
