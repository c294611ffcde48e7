"""Many runs of one experiment, each with random factors of its own seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..engine import RunSetup
from ..mpi.parallel import agreed, progress
from ..mpi.reductions import largest
from .case import Case
from .execution import execute
from .program_case import ProgramCase

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["check_seeds", "sampled_steps", "summary"]

QUANTILES = (50, 95, 99)


def check_seeds(case: Case | ProgramCase, count: int) -> None:
    """Refuse a number of seeds that would all give the same.

    Raises
    ------
    UsageError
    """
    if count > 1 and not case.experiment.variation.random:
        raise UsageError(
            f"{count} seeds would give the same step {count} times: set variation.kernels or "
            "variation.gpus above 0"
        )


def sampled_steps(
    case: Case | ProgramCase,
    comm: Intracomm,
    count: int,
    *,
    fold: bool | None = None,
    show: bool = False,
) -> NDArray[np.int64]:
    """Return the step time with each seed. **Collective.**

    Samples are spread over groups of processes; with as many samples as processes or more, each
    process runs its own.

    Parameters
    ----------
    case : Case or ProgramCase
    comm : mpi4py.MPI.Intracomm
    count : int
        The seeds are that of the experiment and the ``count - 1`` after it.
    fold : bool, optional
        As for `mpisim.simulate`.
    show : bool
        Show progress, if a person is watching.

    Returns
    -------
    int64, shape (count,)
        In ps; complete on every process, and the same for any number of them.
    """
    groups = min(count, comm.size)
    mine = comm.rank * groups // comm.size
    own = cast("Intracomm", comm.Split(mine, comm.rank))
    steps = np.zeros(count, np.int64)
    setup: RunSetup | None = None
    label = "simulating with other seeds" if show else ""
    with agreed(comm), progress(comm, label, count) as update:
        for number in range(mine, count, groups):
            run, _ = execute(case.sample(number), own, fold=fold, setup=setup)
            setup = run.setup
            steps[number] = run.step_time
            update(min(count, (number // groups + 1) * groups))
    own.Free()
    return largest(steps, comm)


def summary(steps: NDArray[np.int64]) -> dict[str, Any]:
    """Return what is said of sampled steps, as attributes of results.

    Returns
    -------
    dict
        ``sampled_steps`` (list of ps) and, in ps, ``sampled_mean``, ``sampled_p50``,
        ``sampled_p95`` and ``sampled_p99``. Quantiles are those of the sample itself (Hyndman and
        Fan's type 1: the smallest step that so many are not above).
    """
    found = np.quantile(steps, [q / 100 for q in QUANTILES], method="inverted_cdf")
    return {
        "sampled_steps": [int(step) for step in steps],
        "sampled_mean": float(steps.mean()),
        **{f"sampled_p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)},
    }
