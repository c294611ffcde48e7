"""Experiment or program → results of a simulated training step: entry of library and CLI.

    experiment, or program file ─► prepare ─► execute ─► statements ─► results
    program ────────────────────────────────────┘

`simulate` has one step for each arrow. `prediction.prepared` looks up the hardware, checks whether
the model fits into memory, builds the network and generates the program. `prediction.execution`
runs the engine. `prediction.statements` adds uncertainty, assumptions and limits, and `cost` adds
energy and dollars. `results` collects all of it, or writes it to a file.
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
    """A finished run and the program that was simulated, as one MPI process holds them.

    Attributes
    ----------
    run : Run
    prepared : PreparedExperiment, PreparedProgram or Program
        The input of the run. Where a long step was derived from two short ones, its program is
        that of the longer of the two.
    repetition : Repetition or None
        How the long step is derived from the two short ones; None if it was simulated itself.
    """

    run: Run
    prepared: PreparedExperiment | PreparedProgram | Program
    repetition: Repetition | None

    @property
    def program(self) -> Program:
        """The program as prepared; `run.program` may have slowed kernels and fewer tables."""
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
    """Experiment or program → results of its simulated training step. **Collective.**

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
        Also write the start and end of every row.
    overwrite : bool
        Whether a file of that name may be replaced.
    text : str
        The text of the experiment, to be kept with the result.
    origin : str
        Experiment that `mpisim export` simulates again, kept with the file; by default `what`, if
        it is an experiment.
    attributes : mapping, optional
        Further attributes to keep with the result.
    fold : bool, optional
        Whether to simulate one rank of each equivalence class; see `mpisim.engine.simulate`.
    seeds : int
        Runs of an experiment with random factors, with seeds in sequence. The results have the
        spread of the step time; everything else in them is of the first run.
    progress : bool
        Show the progress of a long run, if a person is watching.
    repeat : bool
        Whether rounds of micro-batches that repeat to the picosecond may be simulated once. The
        result is the same. A run with a timeline, and any input that is prepared already, is
        simulated in full.
    simulated : list of Simulated, optional
        The finished run is appended to this list.

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
    """Experiment or program → its prepared form, with `seeds` checked. **Collective.**"""
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

    Called on process 0 alone, so that other processes never import these modules.
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
