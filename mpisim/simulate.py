"""Simulate an experiment or a program: the entry of the library and of the command line.

    experiment, or program file ─► prepare ─► execute ─► statements ─► results
    program ────────────────────────────────────┘

`simulate` is one line for each arrow: `prepared` looks up the hardware, the memory and the network
and writes the program; `execution` runs the engine; `statements` adds uncertainty, assumptions and
limits; `cost` adds energy and dollars; and `results` collects or writes it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .base.errors import InputError, UsageError
from .base.files import check_output
from .experiment import Experiment, ProgramExperiment
from .experiment.serialization import serialize_any
from .mpi.parallel import collective_errors
from .mpi.parallel import progress as show_progress
from .prediction.execution import check_seeds, execute, sample_statements, sampled_steps
from .prediction.launches import launch_bound_statement
from .prediction.long_steps import LongStep, long_step
from .prediction.prepared import PreparedExperiment, prepare
from .program import Program
from .results import Results, collect, write_results
from .topo import Network

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .engine import Run
    from .engine.repetition import Repetition
    from .overlap import OverlapSummary
    from .prediction.prepared_program import PreparedProgram
    from .results.sensitivities import Sensitivities

__all__ = ["Simulated", "simulate"]


class Simulated(NamedTuple):
    """A finished run with the program that it was of, as one process holds it.

    Attributes
    ----------
    run : Run
    prepared : PreparedExperiment, PreparedProgram or Program
        What was run; of a long step that follows from two short ones, with the program of the
        longer of these.
    repetition : Repetition or None
        How such a step follows from them.
    """

    run: Run
    prepared: PreparedExperiment | PreparedProgram | Program
    repetition: Repetition | None

    @property
    def program(self) -> Program:
        """What was run; the program of `run` may be slowed, and hold own ranks' tables alone."""
        return self.prepared if isinstance(self.prepared, Program) else self.prepared.program


def simulate(
    what: Experiment | ProgramExperiment | PreparedExperiment | PreparedProgram | Program,
    comm: Intracomm | None = None,
    *,
    network: Network | None = None,
    contention: bool = True,
    output: str | Path | None = None,
    timeline: bool = False,
    overwrite: bool = False,
    text: str = "",
    origin: str = "",
    attributes: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    seeds: int = 1,
    progress: bool = False,
    repeat: bool = True,
    simulated: list[Simulated] | None = None,
) -> Results | None:
    """Simulate an experiment or a program, and return its result. **Collective.**

    Parameters
    ----------
    what : Experiment, ProgramExperiment, PreparedExperiment, PreparedProgram or Program
        The prepared ones are what `mpisim.prediction.prepared.prepare` and
        `mpisim.extrapolate.prepare.prepare_workload` return.
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
    origin : str
        What `mpisim export` is to simulate again, to be kept with the file; by default the
        experiment, where `what` is one.
    attributes : mapping, optional
        What else is to be kept with the result.
    fold : bool, optional
        Whether to simulate one rank of each equivalence class; see `mpisim.engine.simulate`.
    seeds : int
        Runs of an experiment with random factors, with seeds in sequence. The results have the
        spread of the step time; everything else in them is of the first run.
    progress : bool
        Show the progress of a long run, if a person is watching.
    repeat : bool
        Whether rounds of micro-batches that repeat to the picosecond may be simulated once. The
        result is the same. With a timeline all are simulated, and so is what is prepared already.
    simulated : list of Simulated, optional
        Gets the run that the result is of.

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

    with collective_errors(comm):
        if output is not None and comm.rank == 0:
            check_output(output, overwrite=overwrite)  # before the work, not after
    found: LongStep | None = None
    repetition: Repetition | None = None
    if repeat and isinstance(what, Experiment) and network is None and not timeline and seeds == 1:
        found = long_step(what, comm, fold=fold, progress=progress)
    if found is None:
        prepared = _prepared(what, comm, seeds, progress)
        run, overlap = execute(
            prepared,
            comm,
            network=network,
            contention=contention,
            fold=fold,
            critical_path=True,
            progress=progress,
            timeline=timeline,
        )
    else:
        prepared, run, overlap, repetition = found
    if simulated is not None:
        simulated.append(Simulated(run, prepared, repetition))

    stated = dict(attributes or {})
    if not isinstance(prepared, Program) and seeds > 1:
        steps = sampled_steps(prepared, comm, seeds, fold=fold, show=progress)
        stated |= sample_statements(steps)
    if isinstance(prepared, PreparedExperiment):
        # May simulate a second time.
        stated |= launch_bound_statement(prepared, run, comm, found is not None)
    sensitivities: Sensitivities | None = None
    with show_progress(comm, "adding up what every rank did" if progress else ""):
        if not isinstance(prepared, Program) and comm.rank == 0:
            further, sensitivities = _stated(prepared, run, overlap)
            stated |= further
        if network is None and not isinstance(prepared, Program):
            network = prepared.network
        cost = partial(_cost, prepared) if isinstance(prepared, PreparedExperiment) else None
        if output is not None and not origin and isinstance(what, Experiment | ProgramExperiment):
            origin = serialize_any(what)
        finish = (
            partial(collect, run)
            if output is None
            else partial(
                write_results, run, output, timeline=timeline, origin=origin, overwrite=overwrite
            )
        )
        return finish(
            comm=comm,
            experiment=text,
            attributes=stated,
            network=network,
            repetition=repetition,
            sensitivities=sensitivities,
            stated=cost,
        )


def _prepared(
    what: Experiment | ProgramExperiment | PreparedExperiment | PreparedProgram | Program,
    comm: Intracomm,
    seeds: int,
    progress: bool,
) -> PreparedExperiment | PreparedProgram | Program:
    """Experiment or program → the same, prepared, once its seeds are checked. **Collective.**"""
    label = "generating what every rank does" if progress else ""
    with show_progress(comm, label), collective_errors(comm):
        if isinstance(what, Experiment):
            what = prepare(what)
        elif not isinstance(what, PreparedExperiment | Program):
            from .extrapolate.prepare import prepare_workload
            from .prediction.prepared_program import PreparedProgram

            what = what if isinstance(what, PreparedProgram) else prepare_workload(what)
        if seeds > 1:
            if isinstance(what, Program):
                raise UsageError("seeds are for experiments; a program has no random factors")
            check_seeds(what, seeds)
        return what


def _cost(prepared: PreparedExperiment, results: Results) -> dict[str, Any]:
    """Return power, energy and price of the step, as attributes of its result."""
    from .cost.step import step_cost

    try:
        return step_cost(prepared, results).attributes()
    except InputError as error:
        return {"cost": [str(error)]}


def _stated(
    prepared: PreparedExperiment | PreparedProgram, run: Run, overlap: OverlapSummary | None
) -> tuple[dict[str, Any], Sensitivities]:
    """Return the statements of a prediction, and the sensitivities of its step time.

    Other processes need not even load what makes them.
    """
    from .prediction.path_shares import PathShares
    from .prediction.program_statements import program_statements
    from .prediction.sensitivities import path_sensitivities
    from .prediction.statements import statements

    shares = PathShares(prepared, run)
    if not isinstance(prepared, PreparedExperiment):  # the speed of kernels is one number there
        found = path_sensitivities(prepared, run, shares=shares)
        return program_statements(prepared, run, shares, overlap), found
    found = path_sensitivities(prepared, run, overlap, shares)
    defaults = prepared.experiment.left_to_defaults()
    return statements(prepared, run, defaults, overlap, shares), found
