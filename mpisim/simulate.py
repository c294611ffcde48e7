"""The hall: what is to be simulated comes in, its result goes out.

    experiment, of a model or a program file ─► case: program and network ─► engine ─► results
    program ─────────────────────────────────────────────────────────────────┘

Each arrow is one line of `simulate`. The command line and whoever uses mpisim as a library come
through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base.errors import UsageError
from .base.files import check_output
from .experiment import Experiment, ProgramExperiment
from .mpi.parallel import agreed
from .mpi.parallel import progress as show
from .prediction.execution import check_seeds, execute, sampled_steps, summary
from .prediction.launches import launch_bound
from .prediction.prepared import Case, prepare
from .prediction.prepared_program import ProgramCase, prepare_program
from .prediction.statements import program_statements, statements
from .program import Program
from .results import Results, collect, write_results
from .topo import Network

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["simulate"]


def simulate(
    what: Experiment | ProgramExperiment | Case | ProgramCase | Program,
    comm: Intracomm | None = None,
    *,
    network: Network | None = None,
    contention: bool = True,
    output: str | Path | None = None,
    timeline: bool = False,
    overwrite: bool = False,
    text: str = "",
    attributes: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    seeds: int = 1,
    progress: bool = False,
) -> Results | None:
    """Simulate an experiment or a program, and return its result. **Collective.**

    Parameters
    ----------
    what : Experiment, ProgramExperiment, Case, ProgramCase or Program
        A case is an experiment that `mpisim.prediction.prepared.prepare` or
        `mpisim.prediction.prepared_program.prepare_program` has made ready.
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the work; by default this one alone.
    network : Network, optional
        Prices communications without a duration; an experiment brings its own.
    contention : bool
        Whether communications share the links of such a network; an experiment says so itself.
    output : str or Path, optional
        Write the result to this HDF5 file, in a folder that the first process sees.
    timeline : bool
        Write every row, too.
    overwrite : bool
        Whether a file of that name may be replaced.
    text : str
        The text of the experiment, to be kept with the result.
    attributes : mapping, optional
        What else is to be kept with the result.
    fold : bool, optional
        Whether to simulate one rank for all that are alike; see `mpisim.engine.simulate`.
    seeds : int
        Run an experiment with random factors so often, with seeds in sequence, and tell how the
        step time spreads. All else that is told is of the first.
    progress : bool
        Show the progress of a long run, if a person is watching.

    Returns
    -------
    Results or None
        On process 0; None on the others.

    Raises
    ------
    MpisimError
        On all processes: bad input, a program that deadlocks, a file that cannot be written.

    Examples
    --------
    >>> from mpisim.experiment import load
    >>> text, experiment = load()
    >>> simulate(experiment).n_ranks
    8
    """
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_SELF

    with show(comm, "generating what every rank does" if progress else ""), agreed(comm):
        if output is not None and comm.rank == 0:
            check_output(output, overwrite=overwrite)  # before the work, not after
        case = _ready(what)
        if seeds > 1:
            if isinstance(case, Program):
                raise UsageError("seeds are for experiments; a program has no random factors")
            check_seeds(case, seeds)

    run, overlap = execute(
        case,
        comm,
        network=network,
        contention=contention,
        fold=fold,
        critical_path=True,
        progress=progress,
        timeline=timeline,
    )

    said = dict(attributes or {})
    if not isinstance(case, Program) and seeds > 1:
        said |= summary(sampled_steps(case, comm, seeds, fold=fold, show=progress))
    if isinstance(case, Case):
        said |= launch_bound(case, run, comm)  # simulates a second time if need be
    with show(comm, "adding up what every rank did" if progress else ""):
        if isinstance(case, Case) and comm.rank == 0:
            said |= statements(case, run, case.experiment.left_to_defaults(), overlap)
        if isinstance(case, ProgramCase) and comm.rank == 0:
            said |= program_statements(case, run)
        if network is None and not isinstance(case, Program):
            network = case.network
        if output is None:
            return collect(run, comm=comm, experiment=text, attributes=said, network=network)
        return write_results(
            run,
            output,
            comm=comm,
            timeline=timeline,
            experiment=text,
            overwrite=overwrite,
            attributes=said,
            network=network,
        )


def _ready(
    what: Experiment | ProgramExperiment | Case | ProgramCase | Program,
) -> Case | ProgramCase | Program:
    if isinstance(what, Experiment):
        return prepare(what)
    return prepare_program(what) if isinstance(what, ProgramExperiment) else what
